#include "tools/sim/run/simulation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/policy.h"

namespace bfio::sim {
namespace {

// The paper's model has no KV limit; room enough that it never binds, small enough that sums do not overflow.
constexpr int64_t kUnlimitedKv = std::numeric_limits<int64_t>::max() / 4;

// Arrivals above saturation pile up, which is what is being measured then; but not until memory is full.
constexpr int64_t kMostWaiting = 2'000'000;

core::SchedulerOptions SchedulerOptionsFor(const SimOptions& options) {
  core::SchedulerOptions result;
  result.plan_mode = core::PlanMode::kLockstep;
  result.max_waiting = kMostWaiting;
  result.window = options.window > 0 ? options.window : std::max(result.window, options.reveal);
  return result;
}

int64_t LongestOutput(const Trace& trace) {
  int64_t longest = 1;
  for (const TraceRequest& request : trace.requests) longest = std::max(longest, request.output_tokens);
  return longest;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Simulation>> Simulation::Create(const SimOptions& options,
                                                               const Trace& trace) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  if (trace.requests.empty()) return absl::InvalidArgumentError(absl::StrCat(trace.source, ": no requests"));
  if (options.mode == "arrivals" && !trace.has_arrivals) {
    return absl::InvalidArgumentError(
        absl::StrCat(trace.source, " has no arrival times, which --mode=arrivals needs"));
  }
  absl::StatusOr<PolicyStack> policy = MakePolicyStack(options);
  if (!policy.ok()) return policy.status();
  absl::StatusOr<std::unique_ptr<core::Lookahead>> lookahead = core::MakeLookahead(options.lookahead);
  if (!lookahead.ok()) return lookahead.status();
  return std::unique_ptr<Simulation>(
      new Simulation(options, trace, *std::move(policy), *std::move(lookahead)));
}

Simulation::Simulation(const SimOptions& options, const Trace& trace, PolicyStack policy,
                       std::unique_ptr<core::Lookahead> lookahead)
    : options_(options),
      trace_(trace),
      source_(trace, options.load),
      max_new_tokens_(options.max_new_tokens > 0 ? options.max_new_tokens : LongestOutput(trace)),
      tell_lengths_(options.lookahead == "oracle"),
      shadows_(policy.shadows),
      lp_dump_(policy.lp_dump),
      scheduler_(SchedulerOptionsFor(options), std::move(policy.policy), std::move(lookahead)),
      group_(options.workers, max_new_tokens_),
      finished_(options.workers) {
  core::EpochMember member;
  member.spec.slots = options.batch;
  member.spec.kv_tokens = kUnlimitedKv;
  scheduler_.OpenEpoch(std::vector<core::EpochMember>(options.workers, member));
}

absl::StatusOr<nlohmann::ordered_json> Simulation::Run(const Progress& progress, const LoadTap& tap) {
  const int64_t last = options_.warmup + options_.steps;
  while (step_ <= last) {
    if (absl::Status status = Step(tap); !status.ok()) return status;
    if (progress && !progress(step_ - 1)) return absl::CancelledError("stopped by a signal");
  }
  for (const auto& [id, waiting] : waiting_) statistics_.AddStillWaiting(step_ - 1 - waiting.since_step);
  nlohmann::ordered_json run = statistics_.ToJson(options_, trace_.source);
  if (shadows_ != nullptr) run["shadows"] = ShadowsJson(*shadows_);
  return run;
}

absl::Status Simulation::Step(const LoadTap& tap) {
  if (absl::Status status = Reveal(); !status.ok()) return status;
  const bool counted = step_ > options_.warmup;
  if (shadows_ != nullptr && step_ == options_.warmup + 1) shadows_->ResetRegrets();
  const absl::Time before = MonotonicNow();
  const std::optional<core::Plan> plan = scheduler_.MakePlan();
  const absl::Duration decide = MonotonicNow() - before;
  if (!plan.has_value()) return absl::InternalError(absl::StrCat("no plan for step ", step_));
  if (lp_dump_ != nullptr && !lp_dump_->status().ok()) return lp_dump_->status();
  Admit(*plan);

  const std::vector<int64_t>& loads = group_.Loads(step_);
  const double seconds = options_.cost.StepSeconds(*std::max_element(loads.begin(), loads.end()));
  if (tap) tap(step_, loads);
  now_s_ += seconds;
  if (counted) {
    statistics_.AddDecision(absl::ToDoubleMicroseconds(decide));
    statistics_.AddStep(loads, group_.active(), seconds);
    for (const core::Placement& placement : plan->placements) statistics_.AddAdmission(placement.wait_steps);
    for (double arrival_s : admitted_arrivals_) statistics_.AddFirstToken(now_s_ - arrival_s);
  }
  if (absl::Status status = Report(); !status.ok()) return status;
  ++step_;
  return absl::OkStatus();
}

absl::Status Simulation::Reveal() {
  if (options_.mode == "overload") {
    while (scheduler_.waiting() < options_.reveal) {
      SimRequest request = source_.Next();
      request.arrival_s = now_s_;
      if (absl::Status status = Enqueue(request); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  // Nobody runs and nobody waits: time passes until somebody comes; no step is made meanwhile.
  if (group_.active() == 0 && scheduler_.waiting() == 0) now_s_ = std::max(now_s_, source_.NextArrival());
  while (source_.NextArrival() <= now_s_) {
    if (absl::Status status = Enqueue(source_.Next()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Simulation::Enqueue(SimRequest request) {
  core::RequestSpec spec;
  spec.id = request.id;
  spec.prefill_tokens = request.prefill_tokens;
  // All say the same: what a request will really make is for the oracle only.
  spec.max_new_tokens = max_new_tokens_;
  request.output_tokens = std::min(request.output_tokens, max_new_tokens_);
  if (tell_lengths_) spec.predicted_output_tokens = request.output_tokens;
  waiting_[request.id] = {request, step_};
  return scheduler_.Enqueue(spec);
}

void Simulation::Admit(const core::Plan& plan) {
  admitted_arrivals_.clear();
  for (const core::Placement& placement : plan.placements) {
    const auto it = waiting_.find(placement.id);
    admitted_arrivals_.push_back(it->second.request.arrival_s);
    group_.Admit(it->second.request, placement.worker, step_, now_s_);
    waiting_.erase(it);
  }
}

// Every worker's report of the step, with those that complete in it.
absl::Status Simulation::Report() {
  const std::vector<int64_t> loads = group_.Loads(step_);
  for (std::vector<core::RequestId>& ids : finished_) ids.clear();
  for (const Resident& resident : group_.Finish(step_)) {
    finished_[resident.worker].push_back(resident.request.id);
    if (step_ > options_.warmup) {
      statistics_.AddFinish((now_s_ - resident.start_s) /
                            static_cast<double>(resident.request.output_tokens));
    }
  }
  for (core::WorkerIndex g = 0; g < options_.workers; ++g) {
    core::StepReport report;
    report.step = step_;
    report.applied_plan = step_;
    report.load_tokens = loads[g];
    report.finished = finished_[g];
    report.group_idle = group_.active() == 0;
    if (absl::Status status = scheduler_.OnReport(g, report); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
