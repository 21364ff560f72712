// Runs one simulation: a simulated group, controlled by the router's own decision code.
//
// One step, in this order: reveal; decide; admit; measure the loads, a newly admitted request counting s;
// advance time by the slowest worker's C + t_l * L_g (local_time.h has the other terms); every active request
// generates a token (or more: drift.h); requests with all their tokens complete; the workers report.
//
// With an admission rule that admits more than certainly fits, a worker without enough KV memory for a step
// first preempts its youngest requests. They wait again, before all others, with their generated tokens as
// part of the prompt.
//
// Invariants, whose violation ends the run with INTERNAL: no worker has more requests than slots or more
// tokens than its KV capacity; every request is admitted once, and once more after each preemption; an
// admitted request generates exactly its number of tokens.
// Deterministic except for the measured decision times. Threads: none; runs in different threads share only
// the trace, which they read.
#ifndef BFIO_TOOLS_SIM_RUN_SIMULATION_H_
#define BFIO_TOOLS_SIM_RUN_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/run/dispatcher.h"
#include "tools/sim/run/hints.h"
#include "tools/sim/run/local_time.h"
#include "tools/sim/run/options.h"
#include "tools/sim/run/overload_watch.h"
#include "tools/sim/run/request_source.h"
#include "tools/sim/run/sim_group.h"
#include "tools/sim/run/statistics.h"

namespace bfio::sim {

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
