#include "tools/sim/run/simulation.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/core/admission/admission_text.h"
#include "router/core/lookahead/lookahead.h"
#include "tools/sim/rank/shared.h"

namespace bfio::sim {
namespace {

// Above saturation the pool grows, as it should in such a run; this limit protects the machine's memory.
constexpr int64_t kMostWaiting = 2'000'000;

// Longer than any delay between a free slot and the plan that fills it.
constexpr int64_t kMostStuckSteps = 1000;

// With instant dispatch, more than requests ever queue at a worker.
constexpr int32_t kInstantSlots = 1 << 20;

// Random streams of a request.
constexpr uint64_t kClass = 1, kTenant = 2;
// Share of the requests of each class or tenant after the first.
constexpr double kFurtherPart = 0.2;

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

core::SchedulerOptions SchedulerOptionsOf(const SimOptions& options) {
  core::SchedulerOptions result;
  if (options.plan_mode == "pipelined") result.plan_mode = core::PlanMode::kPipelined;
  result.max_waiting = kMostWaiting;
  result.window = options.window > 0 ? options.window : std::max(result.window, options.reveal);
  result.report_delay_steps = options.report_delay;
  const core::AdmissionSetting admission = *core::ParseAdmission(options.admission);
  result.admission = admission.kv;
  result.wait = admission.wait;
  // The cost of a step is known here; a cost in the settings takes precedence.
  if (!absl::StrContains(options.admission, "tokens=") && options.cost.tl_s_per_token > 0)
    result.wait.fixed_tokens = std::max(1.0, options.cost.c_s / options.cost.tl_s_per_token);
  return result;
}

}  // namespace

core::PolicySetting PolicyOf(const SimOptions& options) {
  core::PolicySetting policy{.name = options.policy};
  policy.options.seed = options.seed;
  policy.options.horizon = options.horizon;
  policy.options.objective = options.objective;
  policy.options.discount = options.discount;
  policy.options.wait_ratio = options.wait_ratio;
  return policy;
}

absl::StatusOr<std::unique_ptr<Simulation>> Simulation::Create(const SimOptions& options,
                                                               const Trace& trace) {
  BFIO_RETURN_IF_ERROR(Validate(options));
  if (trace.requests.empty()) return absl::InvalidArgumentError(absl::StrCat(trace.source, ": no requests"));
  if (options.mode == "arrivals" && !trace.has_arrivals) {
    return absl::InvalidArgumentError(
        absl::StrCat(trace.source, " has no arrival times; --mode=arrivals needs them"));
  }
  BFIO_ASSIGN_OR_RETURN(const Drift drift, Drift::Parse(options.drift, options.seed));
  std::unique_ptr<Simulation> simulation(new Simulation(options, trace, drift));
  BFIO_RETURN_IF_ERROR(simulation->MakeDispatcher());
  return simulation;
}

Simulation::Simulation(const SimOptions& options, const Trace& trace, const Drift& drift)
    : options_(options),
      trace_(trace),
      source_(trace, options.load, options.requests),
      max_new_tokens_(options.max_new_tokens > 0 ? options.max_new_tokens : LongestOutput(trace)),
      local_time_(options),
      hints_{options.hint_lead, options.hint_noise, options.seed},
      group_({.ranks = options.workers,
              .slots = options.batch,
              .longest_output = max_new_tokens_,
              .kv_tokens = options.kv_tokens,
              .returns_requests = true,
              .drift = drift,
              .time = [this](ServeStep& step) { Begin(step); }},
             &requests_),
      prefill_(options.workers),
      loads_(options.workers),
      active_(options.workers),
      finished_(options.workers),
      hints_of_(options.workers) {}

absl::Status Simulation::MakeDispatcher() {
  ClusterDispatcher::Options router{.policy = PolicyOf(options_),
                                    .kind = ClusterDispatcher::Kind::kDecode,
                                    .token_budget = std::numeric_limits<int64_t>::max(),
                                    .scheduler = SchedulerOptionsOf(options_),
                                    .workers = WorkerSpecs(options_)};
  if (instant()) {
    // Requests queue in the workers, so that for the router there are slots for all.
    router.kind = ClusterDispatcher::Kind::kPlain;
    for (core::WorkerSpec& worker : router.workers) worker.slots = kInstantSlots;
  }
  router.describe = [this](const ServeRequest& request, core::RequestSpec& spec) { Describe(request, spec); };
  if (options_.lookahead == "hint") router.hints = [this](int32_t rank) { return Hints(rank); };
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<core::Lookahead> lookahead, core::MakeLookahead(options_.lookahead));
  BFIO_ASSIGN_OR_RETURN(dispatcher_,
                        ClusterDispatcher::Make(router, &group_, &requests_, std::move(lookahead)));
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::ordered_json> Simulation::Run(const Progress& progress, const StepTap& tap) {
  progress_ = progress;
  tap_ = tap;
  BFIO_RETURN_IF_ERROR(RunEngines(group_, *this, *dispatcher_));
  BFIO_RETURN_IF_ERROR(status_);
  for (const Record& record : records_)
    if (record.waits) statistics_.AddStillWaiting(step_ - 1 - record.since_step);
  nlohmann::ordered_json run = statistics_.ToJson(options_, trace_.source);
  run["overloaded_fraction"] = overload_.share();
  if (const core::RuleChooser& chooser = dispatcher_->scheduler().chooser(); chooser.chooses()) {
    run["placement"] = {{"rule", core::PlacementRuleName(chooser.rule())}, {"switches", chooser.switches()}};
    // Time of the slowest worker, in tokens of an ordinary one; 0: not known yet.
    for (const core::RuleChooser::Candidate& candidate : chooser.candidates()) {
      run["placement"]["time"][std::string(core::PlacementRuleName(candidate.rule))] = candidate.time;
    }
  }
  return run;
}

bool Simulation::Done(double) const {
  if (!status_.ok()) return true;
  if (options_.steps > 0 && step_ > options_.warmup + options_.steps) return true;
  return source_.Exhausted() && in_system_ == 0;
}

// --- arrivals ---

double Simulation::NextArrival() const {
  // Requests are revealed between steps.
  if (!status_.ok() || source_.Exhausted() || group_.in_step(0)) return kNever;
  if (options_.mode == "arrivals") return source_.NextArrival();
  const bool wanted = options_.mode == "overload"
                          ? (instant() ? waiting_ : dispatcher_->waiting()) < options_.reveal
                          : in_system_ < options_.concurrency;
  return wanted ? 0 : kNever;
}

std::optional<ServeRequestIndex> Simulation::Arrive(double now_s) {
  ServeRequest request = source_.Next();
  if (options_.mode != "arrivals") request.arrival_s = now_s;
  request.output = std::min(request.output, max_new_tokens_);
  request.max_new_tokens = max_new_tokens_;
  if (request.prompt + max_new_tokens_ - 1 > KvTokens(options_)) {
    statistics_.AddRefused();
    // No request of a whole repetition of the trace fits, so none ever will.
    if (std::cmp_greater_equal(++refused_in_a_row_, trace_.requests.size())) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          "--kv_tokens=", options_.kv_tokens, ": the limit is too small, no request of ", trace_.source,
          " fits with its prompt and the ", max_new_tokens_, " tokens that it may generate"));
    }
    return std::nullopt;
  }
  refused_in_a_row_ = 0;
  ++in_system_;
  ++waiting_;
  overload_.Add(request.prompt);
  if (unused_.empty()) {
    unused_.push_back(static_cast<ServeRequestIndex>(requests_.size()));
    requests_.emplace_back();
    records_.emplace_back();
  }
  const ServeRequestIndex index = unused_.back();
  unused_.pop_back();
  requests_[index] = std::move(request);
  records_[index] = {.since_step = step_};
  return index;
}

int32_t Simulation::Part(core::RequestId id, uint64_t stream, int32_t parts) const {
  if (parts == 1) return 0;
  const double drawn = Rng(options_.seed).Fork(id).Fork(stream).Uniform() / kFurtherPart;
  return drawn < parts - 1 ? 1 + static_cast<int32_t>(drawn) : 0;
}

void Simulation::Describe(const ServeRequest& request, core::RequestSpec& spec) const {
  // As in the router, preempted requests come before all new ones.
  spec.priority = request.made > 0 ? options_.classes : Part(request.id, kClass, options_.classes);
  spec.tenant = static_cast<uint32_t>(Part(request.id, kTenant, options_.tenants));
  spec.waited_steps = records_[static_cast<size_t>(&request - requests_.data())].waited_steps;
  // All requests have the same limit: only the oracle lookahead is given the actual lengths.
  if (options_.lookahead != "oracle") return;
  double told = static_cast<double>(request.made + request.output);
  if (options_.prediction_error > 0) {
    told *= 1 + options_.prediction_error * (2 * Rng(options_.seed).Fork(request.id).Uniform() - 1);
  }
  spec.predicted_output_tokens =
      std::clamp<int64_t>(std::llround(told) - request.made, 1, spec.max_new_tokens);
}

// --- steps ---

void Simulation::Deciding(double now_s) {
  begin_s_ = now_s;
  if (step_ > options_.warmup && in_system_ > 0)
    overload_.Decide(int64_t{options_.workers} * options_.batch - (in_system_ - waiting_));
}

void Simulation::Begin(ServeStep& step) {
  started_.clear();
  const auto place = [&](ServeRequestIndex index) {
    Record& record = records_[index];
    record.waited_steps = record.waited_steps.value_or(0) + step_ - record.since_step;
    record.waits = false;
    record.start_s = begin_s_;
    --waiting_;
    overload_.Remove(requests_[index].prompt);
  };
  for (const auto& [index, rank] : step.began) {
    started_.push_back({requests_[index].id, rank});
    place(index);
  }
  int32_t last = -1;
  for (const auto& [index, rank] : step.returned) {
    Record& record = records_[index];
    // Where it would have begun now, no token was computed.
    const bool began_now = record.waits;
    if (began_now) place(index);
    if (requests_[index].made > 0 && !record.began_s) record.began_s = record.start_s;
    record.since_step = step_;
    record.waits = true;
    ++waiting_;
    overload_.Add(requests_[index].prompt);
    if (step_ > options_.warmup)
      statistics_.AddPreemption(began_now ? 0 : requests_[index].prompt, rank != last);
    last = rank;
  }
  draining_ = source_.Exhausted() && waiting_ == 0;
  for (size_t g = 0; g < prefill_.size(); ++g) {
    prefill_[g] = step.loads[g].tokens - step.decode_loads[g].tokens;
    loads_[g] = group_.ranks()[g].decode_context + prefill_[g];
  }
  step.rank_s = local_time_.Measure(loads_, prefill_);
  step.seconds = *std::max_element(step.rank_s.begin(), step.rank_s.end()) + options_.overhead_s;
}

void Simulation::Stepped(const ServeStep& step, double now_s) {
  for (std::vector<core::RequestId>& ended : finished_) ended.clear();
  for (size_t g = 0; g < active_.size(); ++g) active_[g] = group_.ranks()[g].running();
  for (const auto& [index, rank] : step.ended) {
    finished_[rank].push_back(requests_[index].id);
    ++active_[rank];
  }
  StepView view;
  view.step = step_;
  view.begin_s = begin_s_;
  view.loads = loads_;
  view.active = active_;
  view.local_s = step.rank_s;
  view.seconds = step.seconds;
  view.balanced_s = local_time_.Balanced(view.loads, prefill_) + options_.overhead_s;
  view.tokens = step.tokens;
  view.residents = in_system_ - waiting_;
  view.waiting = waiting_;
  view.started = started_;
  view.finished = finished_;
  status_ = CheckLimits(view.loads);
  stuck_steps_ = view.residents == 0 && view.waiting > 0 ? stuck_steps_ + 1 : 0;
  if (stuck_steps_ > kMostStuckSteps + options_.report_delay)
    status_ = absl::InternalError(absl::StrCat(view.waiting, " requests wait and the policy starts none"));
  if (step_ > options_.warmup) Count(view, step, now_s);
  if (tap_) tap_(view);
  for (const auto& [index, rank] : step.ended) {
    records_[index].waits = false;
    unused_.push_back(index);
    --in_system_;
  }
  ++step_;
  if (progress_ && !progress_(step_ - 1)) status_ = absl::CancelledError("stopped by a signal");
}

void Simulation::Count(const StepView& view, const ServeStep& step, double now_s) {
  if (options_.count_drain || !draining_) {
    statistics_.AddStep(view);
    statistics_.AddDecision(decide_us_);
    for (const auto& [index, rank] : step.began) {
      if (requests_[index].made > 0) continue;
      statistics_.AddAdmission(step_ - records_[index].since_step);
      statistics_.AddFirstToken(now_s - requests_[index].arrival_s);
    }
  }
  for (const auto& [index, rank] : step.ended) {
    const ServeRequest& request = requests_[index];
    statistics_.AddFinish((now_s - records_[index].began_s.value_or(records_[index].start_s)) /
                          static_cast<double>(request.made + request.output));
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

std::vector<core::CompletionHint> Simulation::Hints(int32_t rank) {
  if (rank == 0) {
    for (std::vector<core::CompletionHint>& hints : hints_of_) hints.clear();
    group_.ForEachDecode([&](ServeRequestIndex index, int32_t on, int64_t left) {
      const core::RequestId id = requests_[index].id;
      if (const auto shown = hints_.Show(id, step_, left)) hints_of_[on].push_back({id, *shown});
    });
  }
  return hints_of_[rank];
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
