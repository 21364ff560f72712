// Runs one simulation in the BF-IO paper's model: a prompt takes one step, and all residents generate in
// every step; the group is controlled by the router's own decision code. One step, in this order: reveal;
// decide; admit; measure the loads, a newly admitted request counting s; advance time by the slowest worker's
// C + t_l * L_g (LocalTime has the other terms); every active request generates a token (or more:
// drift.h); requests with all their tokens complete; the workers report. A worker without enough KV memory
// for a step first preempts its youngest requests, which wait again, before all others.
//
// Invariants, whose violation ends the run with INTERNAL: no worker has more requests than slots or more
// tokens than its KV capacity; every request is admitted once, and once more after each preemption; an
// admitted request generates exactly its number of tokens. Deterministic except for the measured decision
// times. Runs in different threads share only the trace, which they read.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/rng.h"
#include "common/cost/step_time.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "router/core/model/request.h"
#include "router/core/scheduler/events.h"
#include "tools/sim/rank/cluster_dispatcher.h"
#include "tools/sim/run/options.h"
#include "tools/sim/run/statistics.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {

// Every worker's local time in a step: from its load, its speed and random jitter. Converts loads to seconds,
// for equal and unequal workers. local_g = (C + t_l L_g + c_p * prompt tokens) / speed_g * jitter. Threads:
// none; one run owns it. Deterministic for a seed. Tokens in, seconds out.
class LocalTime {
 public:
  explicit LocalTime(const SimOptions& options)
      : cost_(options.cost),
        jitter_(options.jitter),
        speeds_(options.workers, 1.0),
        rng_(Rng(options.seed).Fork(0x717e)),
        local_(options.workers) {
    for (size_t g = 0; g < speeds_.size() && !options.speeds.empty(); ++g)
      speeds_[g] = options.speeds[g % options.speeds.size()];
    speed_sum_ = std::accumulate(speeds_.begin(), speeds_.end(), 0.0);
  }

  // Local times by rank; valid until the next call. Called once per step.
  const std::vector<double>& Measure(absl::Span<const int64_t> loads,
                                     absl::Span<const int64_t> prefill_tokens) {
    for (size_t g = 0; g < loads.size(); ++g) {
      local_[g] = cost_.StepSeconds(loads[g], prefill_tokens[g]) / speeds_[g];
      if (jitter_ > 0) local_[g] *= std::exp(jitter_ * rng_.Normal() - 0.5 * jitter_ * jitter_);
    }
    return local_;
  }

  // The step time under perfect balance: the time of all workers if they shared the total work, without
  // jitter. For equal workers C + t_l * mean L (+ prompts).
  double Balanced(absl::Span<const int64_t> loads, absl::Span<const int64_t> prefill_tokens) const {
    // All workers end at T: the sum of speed * T is the sum of their times at speed 1.
    double work = 0;
    for (size_t g = 0; g < loads.size(); ++g) work += cost_.StepSeconds(loads[g], prefill_tokens[g]);
    return work / speed_sum_;
  }

  // Sets the speed of worker g in `spec`, in units of the time per token of a worker with speed 1.
  void Describe(core::WorkerIndex g, core::WorkerSpec& spec) const {
    const double speed = speeds_[static_cast<size_t>(g)];
    spec.time_per_token = 1 / speed;
    if (cost_.tl_s_per_token > 0) spec.time_offset = cost_.c_s / cost_.tl_s_per_token * (1 / speed - 1);
  }

 private:
  StepCost cost_;
  double jitter_;
  // By rank.
  std::vector<double> speeds_;
  double speed_sum_ = 0;
  Rng rng_;
  std::vector<double> local_;
};

// Whether a run meets the overload condition of the BF-IO paper's theorems (Definition 1): without the
// requests of any one prompt length, the pool still has at least as many requests as there are free slots.
// The theorems hold for overloaded runs. Which requests wait depends on the policy, so the condition is
// measured. Threads: none; one run owns it. Constant time per request and decision.
class OverloadWatch {
 public:
  // A request with this prompt length starts to wait, or stops waiting.
  void Add(int64_t prompt_tokens);
  // REQUIRES: a request of this length waits.
  void Remove(int64_t prompt_tokens);

  // Counts a decision about the waiting requests, unless there is no free slot.
  void Decide(int64_t free_slots);

  // Share of the counted decisions that met the condition; 1 when there was none.
  double share() const;

 private:
  // Number of waiting requests by prompt length, and number of lengths by their number of waiting requests.
  absl::flat_hash_map<int64_t, int64_t> waiting_;
  std::vector<int64_t> lengths_with_{0};
  // The largest number of waiting requests of one length.
  int64_t most_ = 0;
  int64_t pool_ = 0;
  int64_t decisions_ = 0, met_ = 0;
};

// The completion hints of simulated workers. Models an engine's end-of-sequence probability with a given
// accuracy. A request with r tokens left after the step has the hint min(1, exp(-(r - 1) / lead) * X), where
// X is lognormal with median 1 and standard deviation `noise` of its logarithm, drawn for each request and
// step. Hints below kFaintest are not reported. Threads: any, no state. Deterministic: the draw depends only
// on seed, request and step.
struct HintModel {
  static constexpr double kFaintest = 1e-3;

  double lead = 8;
  double noise = 0.5;
  uint64_t seed = 1;

  // REQUIRES: tokens_left >= 1.
  std::optional<double> Show(core::RequestId id, int64_t step, int64_t tokens_left) const {
    const double plain = std::exp(-static_cast<double>(tokens_left - 1) / lead);
    // Even a draw of four standard deviations would be below kFaintest.
    if (plain * std::exp(4 * noise) < kFaintest) return std::nullopt;
    const double luck = std::exp(noise * Rng(seed).Fork(id).Fork(static_cast<uint64_t>(step)).Normal());
    const double shown = std::min(1.0, plain * luck);
    return shown < kFaintest ? std::nullopt : std::optional<double>(shown);
  }
};

// The policy that the options name, with its settings.
core::PolicySetting PolicyOf(const SimOptions& options);

// Called after each step with the number of steps done; returning false stops the run.
using Progress = std::function<bool(int64_t steps_done)>;
// Called with every step, including those of the warm-up, for tests, plots and dumps.
using StepTap = std::function<void(const StepView& view)>;

class Simulation final : private Traffic {
 public:
  // INVALID_ARGUMENT for bad options, or a trace that lacks what the mode needs. Borrows the trace.
  static absl::StatusOr<std::unique_ptr<Simulation>> Create(const SimOptions& options, const Trace& trace);

  // CANCELLED when `progress` stopped the run. Called once. Either callback may be empty.
  absl::StatusOr<nlohmann::ordered_json> Run(const Progress& progress = {}, const StepTap& tap = {});

 private:
  // What the simulator knows about a request beside ServeRequest.
  struct Record {
    // The step in which it began to wait for its present placement.
    int64_t since_step = 0;
    // Steps waited before all its placements so far; empty until it is first placed.
    std::optional<int64_t> waited_steps;
    // When its first step began, and that of its present placement.
    std::optional<double> began_s;
    double start_s = 0;
    bool waits = true;
  };

  Simulation(const SimOptions& options, const Trace& trace, const Drift& drift);
  absl::Status MakeDispatcher();

  double NextArrival() const override;
  std::optional<ServeRequestIndex> Arrive(double now_s) override;
  void Deciding(double now_s) override;
  void Decided(double seconds) override { decide_us_ = seconds * 1e6; }
  void Stepped(const ServeStep& step, double now_s) override;
  bool Done(double now_s) const override;

  // Books requests that begin or are preempted in a step, and sets its times.
  void Begin(ServeStep& step);
  void Count(const StepView& view, const ServeStep& step, double now_s);
  absl::Status CheckLimits(absl::Span<const int64_t> loads) const;
  // Sets what the router knows about a request beside its lengths.
  void Describe(const ServeRequest& request, core::RequestSpec& spec) const;
  // The class or tenant of a request, of this many.
  int32_t Part(core::RequestId id, uint64_t stream, int32_t parts) const;
  std::vector<core::CompletionHint> Hints(int32_t rank);
  bool instant() const { return options_.dispatch == "instant"; }

  SimOptions options_;
  const Trace& trace_;
  RequestSource source_;
  int64_t max_new_tokens_;
  LocalTime local_time_;
  HintModel hints_;
  Statistics statistics_;
  OverloadWatch overload_;
  // By index; those of requests that have ended are used again.
  std::vector<ServeRequest> requests_;
  std::vector<Record> records_;
  std::vector<ServeRequestIndex> unused_;
  ServeGroup group_;
  std::unique_ptr<ClusterDispatcher> dispatcher_;
  Progress progress_;
  StepTap tap_;
  absl::Status status_;
  // The current step, from 1, and the simulated time at which it begins.
  int64_t step_ = 1;
  double begin_s_ = 0, decide_us_ = 0;
  // Requests that have not ended, and those of them that have not begun.
  int64_t in_system_ = 0, waiting_ = 0;
  int64_t refused_in_a_row_ = 0;
  // Consecutive steps in which requests waited and none ran.
  int64_t stuck_steps_ = 0;
  // No request waited or was to come when the step began.
  bool draining_ = false;

  // Scratch of the current step.
  std::vector<Started> started_;
  std::vector<int64_t> prefill_, loads_, active_;
  std::vector<std::vector<core::RequestId>> finished_;
  std::vector<std::vector<core::CompletionHint>> hints_of_;
};

}  // namespace bfio::sim
