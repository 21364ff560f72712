// Runs one simulation: a simulated group, controlled by the router's own decision code. One step, in this
// order: reveal; decide; admit; measure the loads, a newly admitted request counting s; advance time by the
// slowest worker's C + t_l * L_g (local_time.h has the other terms); every active request generates a token
// (or more: drift.h); requests with all their tokens complete; the workers report. A worker without enough KV
// memory for a step first preempts its youngest requests, which wait again, before all others.
//
// Invariants, whose violation ends the run with INTERNAL: no worker has more requests than slots or more
// tokens than its KV capacity; every request is admitted once, and once more after each preemption; an
// admitted request generates exactly its number of tokens. Deterministic except for the measured decision
// times. Runs in different threads share only the trace, which they read.
#ifndef BFIO_TOOLS_SIM_RUN_SIMULATION_H_
#define BFIO_TOOLS_SIM_RUN_SIMULATION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/base/rng.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "router/core/model/request.h"
#include "tools/sim/run/dispatcher.h"
#include "tools/sim/run/local_time.h"
#include "tools/sim/run/options.h"
#include "tools/sim/run/sim_group.h"
#include "tools/sim/run/statistics.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {

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

// Called after each step with the number of steps done; returning false stops the run.
using Progress = std::function<bool(int64_t steps_done)>;
// Called with every step, including those of the warm-up, for tests, plots and dumps.
using StepTap = std::function<void(const StepView& view)>;

class Simulation {
 public:
  // INVALID_ARGUMENT for bad options, or a trace that lacks what the mode needs. Borrows the trace.
  static absl::StatusOr<std::unique_ptr<Simulation>> Create(const SimOptions& options, const Trace& trace);

  // CANCELLED when `progress` stopped the run. Called once. Either callback may be empty.
  absl::StatusOr<nlohmann::ordered_json> Run(const Progress& progress = {}, const StepTap& tap = {});

 private:
  Simulation(const SimOptions& options, const Trace& trace, Drift drift);

  bool Done() const;
  absl::Status Step(const StepTap& tap);
  absl::Status Reveal();
  absl::Status Enqueue(SimRequest request);
  core::RequestSpec SpecOf(const SimRequest& request) const;
  // The class or tenant of a request, of this many.
  int32_t Part(core::RequestId id, uint64_t stream, int32_t parts) const;
  absl::Status Admit();
  // Workers with more tokens than KV capacity preempt their youngest requests.
  void PreemptOverflow();
  absl::Status CheckLimits(absl::Span<const int64_t> loads) const;
  void Count(const StepView& view, double decide_us);
  GroupReport MakeReport(const StepView& view);

  SimOptions options_;
  const Trace& trace_;
  RequestSource source_;
  int64_t max_new_tokens_;
  LocalTime local_time_;
  SimGroup group_;
  HintModel hints_;
  std::unique_ptr<Dispatcher> dispatcher_;
  Statistics statistics_;
  OverloadWatch overload_;
  // Requests that have not started. Their arrival times and lengths are known only to the simulator.
  struct Waiting {
    SimRequest request;
    int64_t since_step = 0;
  };
  absl::flat_hash_map<core::RequestId, Waiting> waiting_;
  // The current step, from 1, and the simulated time at which it begins.
  int64_t step_ = 1;
  double now_s_ = 0;
  int64_t refused_in_a_row_ = 0;
  // Consecutive steps in which requests waited and none ran.
  int64_t stuck_steps_ = 0;

  // Scratch of the current step.
  std::vector<Started> started_;
  std::vector<Waiting> admitted_;
  std::vector<int64_t> prefill_;
  std::vector<int64_t> active_;
  std::vector<std::vector<core::RequestSpec>> preempted_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_SIMULATION_H_
