// Runs one simulation: the router's own Scheduler against a simulated group, in lockstep.
//
// One step, in this order: reveal; decide; admit; measure the loads, a newly admitted request counting s;
// advance time by C + t_l * max L; every active request makes one token; those with all their tokens
// complete. Deterministic but for the measured decision times. Threads: none.
#ifndef BFIO_TOOLS_SIM_RUN_SIMULATION_H_
#define BFIO_TOOLS_SIM_RUN_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/workload/trace.h"
#include "nlohmann/json.hpp"
#include "router/core/decide/scheduler.h"
#include "tools/sim/run/options.h"
#include "tools/sim/run/policy_stack.h"
#include "tools/sim/run/request_source.h"
#include "tools/sim/run/sim_group.h"
#include "tools/sim/run/statistics.h"

namespace bfio::sim {

// Called after each step with the steps done; returning false stops the run.
using Progress = std::function<bool(int64_t steps_done)>;
// Called with every step's number and loads L_g, for tests and dumps.
using LoadTap = std::function<void(int64_t step, const std::vector<int64_t>& loads)>;

class Simulation {
 public:
  // INVALID_ARGUMENT for bad options, or a trace that does not have what the mode needs. Borrows the trace.
  static absl::StatusOr<std::unique_ptr<Simulation>> Create(const SimOptions& options, const Trace& trace);

  // CANCELLED when `progress` stopped it. Call once. Either callback may be empty.
  absl::StatusOr<nlohmann::ordered_json> Run(const Progress& progress = {}, const LoadTap& tap = {});

 private:
  Simulation(const SimOptions& options, const Trace& trace, PolicyStack policy,
             std::unique_ptr<core::Lookahead> lookahead);

  absl::Status Reveal();
  absl::Status Enqueue(SimRequest request);
  absl::Status Step(const LoadTap& tap);
  void Admit(const core::Plan& plan);
  absl::Status Report();

  SimOptions options_;
  const Trace& trace_;
  RequestSource source_;
  int64_t max_new_tokens_;
  bool tell_lengths_;
  // Parts of the scheduler's policy; may be null.
  core::ShadowSet* shadows_;
  const LpDumpPolicy* lp_dump_;
  core::Scheduler scheduler_;
  SimGroup group_;
  Statistics statistics_;
  // The waiting requests: the scheduler does not know when they came, nor how long they will run.
  struct Waiting {
    SimRequest request;
    int64_t since_step = 0;
  };
  absl::flat_hash_map<core::RequestId, Waiting> waiting_;
  // The step being made, from 1, and the simulated time at which it begins.
  int64_t step_ = 1;
  double now_s_ = 0;

  // Scratch.
  std::vector<std::vector<core::RequestId>> finished_;
  // Arrival times of the requests admitted in this step.
  std::vector<double> admitted_arrivals_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_SIMULATION_H_
