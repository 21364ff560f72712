#include "tools/sim/run/simulation.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace bfio::sim {
namespace {

// The paper's model has no KV limit. Large enough that it never binds, small enough that sums do not
// overflow.
constexpr int64_t kUnlimitedKv = std::numeric_limits<int64_t>::max() / 4;

// Longer than any delay between a free slot and the plan that fills it.
constexpr int64_t kMostStuckSteps = 1000;

// Random streams of a request.
constexpr uint64_t kClass = 1, kTenant = 2;
// Share of the requests of each class or tenant after the first.
constexpr double kFurtherPart = 0.2;

int64_t LongestOutput(const Trace& trace) {
  int64_t longest = 1;
  for (const TraceRequest& request : trace.requests) longest = std::max(longest, request.output_tokens);
  return longest;
}

int64_t KvTokens(const SimOptions& options) {
  return options.kv_tokens > 0 ? options.kv_tokens : kUnlimitedKv;
}

std::vector<core::WorkerSpec> WorkerSpecs(const SimOptions& options) {
  std::vector<core::WorkerSpec> specs(options.workers);
  const LocalTime local_time(options);
  for (core::WorkerIndex g = 0; g < options.workers; ++g) {
    specs[g].slots = options.batch;
    specs[g].kv_tokens = KvTokens(options);
    if (options.tell_speeds) local_time.Describe(g, specs[g]);
  }
  return specs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Simulation>> Simulation::Create(const SimOptions& options,
                                                               const Trace& trace) {
  BFIO_RETURN_IF_ERROR(Validate(options));
  if (trace.requests.empty()) return absl::InvalidArgumentError(absl::StrCat(trace.source, ": no requests"));
  if (options.mode == "arrivals" && !trace.has_arrivals) {
    return absl::InvalidArgumentError(
        absl::StrCat(trace.source, " has no arrival times; --mode=arrivals needs them"));
  }
  BFIO_ASSIGN_OR_RETURN(Drift drift, Drift::Parse(options.drift, options.seed));
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<Dispatcher> dispatcher,
                        MakeDispatcher(options, WorkerSpecs(options)));
  std::unique_ptr<Simulation> simulation(new Simulation(options, trace, std::move(drift)));
  simulation->dispatcher_ = std::move(dispatcher);
  return simulation;
}

Simulation::Simulation(const SimOptions& options, const Trace& trace, Drift drift)
    : options_(options),
      trace_(trace),
      source_(trace, options.load, options.requests),
      max_new_tokens_(options.max_new_tokens > 0 ? options.max_new_tokens : LongestOutput(trace)),
      local_time_(options),
      group_(options.workers, max_new_tokens_, std::move(drift)),
      hints_{options.hint_lead, options.hint_noise, options.seed},
      prefill_(options.workers),
      active_(options.workers) {}

absl::StatusOr<nlohmann::ordered_json> Simulation::Run(const Progress& progress, const StepTap& tap) {
  while (!Done()) {
    BFIO_RETURN_IF_ERROR(Step(tap));
    if (progress && !progress(step_ - 1)) return absl::CancelledError("stopped by a signal");
  }
  for (const auto& [id, waiting] : waiting_) statistics_.AddStillWaiting(step_ - 1 - waiting.since_step);
  nlohmann::ordered_json run = statistics_.ToJson(options_, trace_.source);
  run["overloaded_fraction"] = overload_.share();
  if (const core::RuleChooser* const chooser = dispatcher_->chooser()) {
    run["placement"] = {{"rule", core::PlacementRuleName(chooser->rule())},
                        {"switches", chooser->switches()}};
    // Time of the slowest worker, in tokens of an ordinary one; 0: not known yet.
    for (const core::RuleChooser::Candidate& candidate : chooser->candidates()) {
      run["placement"]["time"][std::string(core::PlacementRuleName(candidate.rule))] = candidate.time;
    }
  }
  return run;
}

bool Simulation::Done() const {
  if (options_.steps > 0 && step_ > options_.warmup + options_.steps) return true;
  return source_.Exhausted() && waiting_.empty() && group_.active() == 0;
}

absl::Status Simulation::Step(const StepTap& tap) {
  BFIO_RETURN_IF_ERROR(Reveal());
  if (Done()) return absl::OkStatus();  // the last requests were refused
  if (step_ > options_.warmup) {
    overload_.Decide(int64_t{options_.workers} * options_.batch - group_.active());
  }
  started_.clear();
  const absl::Time before = MonotonicNow();
  absl::Status status = dispatcher_->Start(step_, started_);
  const absl::Duration decide = MonotonicNow() - before;
  status.Update(Admit());
  if (!status.ok()) return status;
  if (options_.admission != "none") PreemptOverflow();

  StepView view;
  view.step = step_;
  view.begin_s = now_s_;
  view.loads = group_.Loads(step_);
  for (core::WorkerIndex g = 0; g < options_.workers; ++g) active_[g] = group_.ActiveOn(g);
  view.active = active_;
  if (status = CheckLimits(view.loads); !status.ok()) return status;
  const std::vector<double>& local = local_time_.Measure(view.loads, prefill_);
  view.local_s = local;
  view.seconds = *std::max_element(local.begin(), local.end()) + options_.overhead_s;
  view.balanced_s = local_time_.Balanced(view.loads, prefill_) + options_.overhead_s;
  view.tokens = group_.Tokens(step_);
  view.residents = group_.active();
  view.waiting = static_cast<int64_t>(waiting_.size());
  view.started = started_;
  now_s_ += view.seconds;
  // The group empties: there are no more requests to choose from.
  const bool draining = source_.Exhausted() && waiting_.empty();
  if (step_ > options_.warmup && (options_.count_drain || !draining)) {
    Count(view, absl::ToDoubleMicroseconds(decide));
  }
  GroupReport report = MakeReport(view);
  view.finished = report.finished;
  if (tap) tap(view);
  ++step_;
  return dispatcher_->OnReport(std::move(report));
}

absl::Status Simulation::Reveal() {
  const auto wanted = [&] {
    if (source_.Exhausted()) return false;
    if (options_.mode == "overload") return dispatcher_->waiting() < options_.reveal;
    if (options_.mode == "closed") {
      return static_cast<int64_t>(waiting_.size()) + group_.active() < options_.concurrency;
    }
    return source_.NextArrival() <= now_s_;
  };
  // No request runs or waits: time passes until the next arrival, without steps.
  if (options_.mode == "arrivals" && group_.active() == 0 && waiting_.empty() && !source_.Exhausted()) {
    now_s_ = std::max(now_s_, source_.NextArrival());
  }
  while (wanted()) {
    SimRequest request = source_.Next();
    if (options_.mode != "arrivals") request.arrival_s = now_s_;
    BFIO_RETURN_IF_ERROR(Enqueue(request));
  }
  return absl::OkStatus();
}

absl::Status Simulation::Enqueue(SimRequest request) {
  request.output_tokens = std::min(request.output_tokens, max_new_tokens_);
  const core::RequestSpec spec = SpecOf(request);
  if (spec.kv_reserve_tokens() > KvTokens(options_)) {
    statistics_.AddRefused();
    // No request of a whole repetition of the trace fits, so none ever will.
    if (++refused_in_a_row_ < static_cast<int64_t>(trace_.requests.size())) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "--kv_tokens=", options_.kv_tokens, ": the limit is too small, no request of ", trace_.source,
        " fits with its prompt and the ", max_new_tokens_, " tokens that it may generate"));
  }
  refused_in_a_row_ = 0;
  waiting_[request.id] = {request, step_};
  overload_.Add(request.prefill_tokens);
  return dispatcher_->Enqueue(spec);
}

int32_t Simulation::Part(core::RequestId id, uint64_t stream, int32_t parts) const {
  if (parts == 1) return 0;
  const double drawn = Rng(options_.seed).Fork(id).Fork(stream).Uniform() / kFurtherPart;
  return drawn < parts - 1 ? 1 + static_cast<int32_t>(drawn) : 0;
}

core::RequestSpec Simulation::SpecOf(const SimRequest& request) const {
  core::RequestSpec spec;
  spec.id = request.id;
  spec.prefill_tokens = request.prefill_tokens;
  // All requests have the same limit: only the oracle lookahead is given the actual lengths.
  spec.max_new_tokens = max_new_tokens_ - request.made;
  spec.generated_tokens = request.made;
  spec.waited_steps = request.waited_steps;
  // As in the router, preempted requests come before all new ones.
  spec.priority = request.made > 0 ? options_.classes : Part(request.id, kClass, options_.classes);
  spec.tenant = static_cast<uint32_t>(Part(request.id, kTenant, options_.tenants));
  if (options_.lookahead == "oracle") {
    double told = static_cast<double>(request.made + request.output_tokens);
    if (options_.prediction_error > 0) {
      told *= 1 + options_.prediction_error * (2 * Rng(options_.seed).Fork(request.id).Uniform() - 1);
    }
    spec.predicted_output_tokens =
        std::clamp<int64_t>(std::llround(told) - request.made, 1, spec.max_new_tokens);
  }
  return spec;
}

absl::Status Simulation::Admit() {
  admitted_.clear();
  std::fill(prefill_.begin(), prefill_.end(), 0);
  for (const Started& started : started_) {
    const auto it = waiting_.find(started.id);
    if (it == waiting_.end()) {
      return absl::InternalError(absl::StrCat("request ", started.id, " was started twice or never arrived"));
    }
    admitted_.push_back(it->second);
    overload_.Remove(it->second.request.prefill_tokens);
    prefill_[started.worker] += it->second.request.prefill_tokens;
    SimRequest& request = it->second.request;
    request.waited_steps = request.waited_steps.value_or(0) + step_ - it->second.since_step;
    group_.Admit(request, started.worker, step_, now_s_);
    waiting_.erase(it);
  }
  stuck_steps_ = group_.active() == 0 && !waiting_.empty() ? stuck_steps_ + 1 : 0;
  if (stuck_steps_ > kMostStuckSteps + options_.report_delay) {
    return absl::InternalError(absl::StrCat(waiting_.size(), " requests wait and the policy starts none"));
  }
  return absl::OkStatus();
}

void Simulation::PreemptOverflow() {
  preempted_.assign(options_.workers, {});
  const int64_t capacity = KvTokens(options_);
  for (core::WorkerIndex g = 0; g < options_.workers; ++g) {
    bool over = false;
    while (group_.Loads(step_)[g] > capacity) {
      Resident resident = group_.PreemptYoungest(g, step_);
      const bool began_now = resident.first_step == step_;
      if (began_now) {  // no token was computed
        prefill_[g] -= resident.request.prefill_tokens;
        std::erase_if(admitted_,
                      [&](const Waiting& waiting) { return waiting.request.id == resident.request.id; });
      }
      if (resident.request.made > 0 && !resident.request.began_s) resident.request.began_s = resident.start_s;
      preempted_[g].push_back(SpecOf(resident.request));
      waiting_[resident.request.id] = {resident.request, step_};
      overload_.Add(resident.request.prefill_tokens);
      if (step_ > options_.warmup) {
        statistics_.AddPreemption(began_now ? 0 : resident.request.prefill_tokens, !over);
      }
      over = true;
    }
  }
}

absl::Status Simulation::CheckLimits(absl::Span<const int64_t> loads) const {
  for (core::WorkerIndex g = 0; g < options_.workers; ++g) {
    if (active_[g] > options_.batch) {
      return absl::InternalError(absl::StrCat("step ", step_, ": worker ", g, " runs ", active_[g],
                                              " requests but has ", options_.batch, " slots"));
    }
    if (loads[g] < 0 || loads[g] > KvTokens(options_)) {
      return absl::InternalError(absl::StrCat("step ", step_, ": worker ", g, " holds ", loads[g],
                                              " tokens but has a KV capacity of ", KvTokens(options_)));
    }
  }
  return absl::OkStatus();
}

void Simulation::Count(const StepView& view, double decide_us) {
  statistics_.AddStep(view);
  statistics_.AddDecision(decide_us);
  for (const Waiting& admitted : admitted_) {
    if (admitted.request.made > 0) continue;
    statistics_.AddAdmission(step_ - admitted.since_step);
    statistics_.AddFirstToken(now_s_ - admitted.request.arrival_s);
  }
}

// The reports of all workers for the step, with the requests that finish in it.
GroupReport Simulation::MakeReport(const StepView& view) {
  GroupReport report;
  report.step = step_;
  report.loads.assign(view.loads.begin(), view.loads.end());
  report.finished.resize(options_.workers);
  for (const Resident& resident : group_.Finish(step_)) {
    report.finished[resident.worker].push_back(resident.request.id);
    if (step_ > options_.warmup) {
      const SimRequest& request = resident.request;
      statistics_.AddFinish((now_s_ - request.began_s.value_or(resident.start_s)) /
                            static_cast<double>(request.made + request.output_tokens));
    }
  }
  if (options_.lookahead == "hint") {
    report.hints.resize(options_.workers);
    group_.ForEachResident(step_, [&](const Resident& resident, int64_t tokens_left) {
      if (const auto shown = hints_.Show(resident.request.id, step_, tokens_left)) {
        report.hints[resident.worker].push_back({resident.request.id, *shown});
      }
    });
  }
  report.preempted = std::exchange(preempted_, {});
  report.idle = group_.active() == 0;
  return report;
}

void OverloadWatch::Add(int64_t prompt_tokens) {
  const int64_t count = ++waiting_[prompt_tokens];
  if (count == static_cast<int64_t>(lengths_with_.size())) lengths_with_.push_back(0);
  --lengths_with_[count - 1];
  ++lengths_with_[count];
  most_ = std::max(most_, count);
  ++pool_;
}

void OverloadWatch::Remove(int64_t prompt_tokens) {
  const auto it = waiting_.find(prompt_tokens);
  const int64_t count = it->second--;
  if (count == 1) waiting_.erase(it);
  --lengths_with_[count];
  ++lengths_with_[count - 1];
  // The length that had the maximum number of requests now has one less.
  if (count == most_ && lengths_with_[count] == 0) --most_;
  --pool_;
}

void OverloadWatch::Decide(int64_t free_slots) {
  if (free_slots <= 0) return;
  ++decisions_;
  if (pool_ - most_ >= free_slots) ++met_;
}

double OverloadWatch::share() const {
  return decisions_ == 0 ? 1 : static_cast<double>(met_) / static_cast<double>(decisions_);
}

}  // namespace bfio::sim
