// One rule against all others over workloads, cost models, loads and group sizes.
//
// Purpose: evaluates a rule that has one fixed setting. In every cell each rule with a budget is run with
// budgets from 128 to 8,192 tokens, and the candidate is compared with the one of all these runs that has the
// least mean time end to end: a choice in hindsight that is not available in advance. A budget with which a
// rule does not keep up is no choice; a rule that keeps up with none of its budgets in a cell is an error,
// and a candidate that does not keep up is one at once. Threads: Run uses its own; call from one.
// Deterministic.
#ifndef BFIO_TOOLS_SIM_SERVE_SERVE_GRID_H_
#define BFIO_TOOLS_SIM_SERVE_SERVE_GRID_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cost/batch_time.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/serve/serve_workload.h"

namespace bfio::sim {

struct ServeWorkload {
  std::string name;
  Trace trace;
};

struct ServeEngine {
  std::string name;
  BatchCost cost;
  int64_t slots = 0;
};
// Llama-3-70B on two A100 with 72 slots (the paper's), a mixture-of-experts model over 8 H200, an 8-billion
// model per GPU; the latter two with 256 slots.
const std::vector<ServeEngine>& ServeEngines();

struct ServeGridOptions {
  std::vector<ServeWorkload> workloads;
  std::vector<ServeEngine> engines;
  std::vector<double> loads;
  std::vector<int32_t> groups;
  int32_t seeds = 3;
  // Tokens per step that rules with a budget are run with.
  std::vector<int64_t> budgets = {128, 256, 512, 1024, 2048, 4096, 8192};
  std::string candidate = "bf_io";
  // A rule that the candidate is compared with at equal budgets, each a cell, instead of with all rules but
  // bfio's own. Cells in which that rule does not keep up are left out, as long as it does with one budget.
  std::string against;
  // The candidate's lag; the others plan without one.
  int32_t candidate_lag = 2;
  double jitter = 0;
  // As ServeOptions::closed, for all.
  bool closed = false;
  int32_t threads = 1;
};

// Means over seeds.
struct ServeMeasurements {
  std::string rule;
  int64_t budget = 0;
  double e2e_s = 0, ttft_p50_s = 0, ttft_p99_s = 0, tpot_s = 0, idle_prefill_fraction = 0;
  double throughput_tokens_per_s = 0;
};

struct ServeCell {
  std::string workload, engine;
  int32_t workers = 0;
  double load = 0;
  // The candidate's budget.
  int64_t budget = 0;
  ServeMeasurements candidate, best;
  // Others' least of each, whichever run it is of; TPOT among those with a TTFT p50 no higher than the
  // candidate's, 0 where there is none.
  double least_ttft_p50_s = 0, least_ttft_p99_s = 0, least_tpot_at_ttft_s = 0;
  // The times of a perfectly balanced group; absent with a fixed number of requests.
  std::optional<ServeFloor> floor;
  // Rules that keep up with none of their budgets. The best is chosen among the others.
  std::vector<std::string> cannot_run;
};

// Calls `done` after each cell, in order, on the caller's thread. The first error of the candidate's ends the
// grid, naming the cell. RESOURCE_EXHAUSTED after the last cell, with each rule and cell, where a rule keeps
// up with none of its budgets. CANCELLED once `go_on` returns false; any of the grid's threads calls it,
// before each run.
absl::Status RunServeGrid(const ServeGridOptions& options, const std::function<void(const ServeCell&)>& done,
                          const std::function<bool()>& go_on);

nlohmann::ordered_json ServeCellJson(const ServeCell& cell);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_SERVE_SERVE_GRID_H_
