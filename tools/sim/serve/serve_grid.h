// Compares one rule with all others over workloads, cost models, loads and group sizes. Evaluates a rule that
// has one fixed setting. In every cell each rule with a budget is run with budgets from 128 to 8,192 tokens.
// The candidate is compared with the run that has the least mean end-to-end time: a choice in hindsight that
// is not available in advance. Runs that do not keep up with the load are excluded. It is an error when a
// rule keeps up with none of its budgets in a cell, or when the candidate does not keep up. Threads:
// RunServeGrid starts its own; call it from one thread. Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/serve/serve_run.h"

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
// Llama-3-70B on two A100 with 72 slots (the BF-IO paper's), a mixture-of-experts model on 8 H200, an
// 8-billion-parameter model per GPU; the latter two with 256 slots.
const std::vector<ServeEngine>& ServeEngines();

struct ServeGridOptions {
  std::vector<ServeWorkload> workloads;
  std::vector<ServeEngine> engines;
  std::vector<double> loads;
  std::vector<int32_t> groups;
  int32_t seeds = 3;
  // Tokens per step; each rule with a budget is run with each of them.
  std::vector<int64_t> budgets = {128, 256, 512, 1024, 2048, 4096, 8192};
  // The candidate, and what a cell does not set in all runs. The other rules run with a lag of 0 and do not
  // use the cost.
  ServeOptions run = {.lag = 2};
  // If set: the only rule that the candidate is compared with, at equal budgets, one cell per budget. Cells
  // in which this rule does not keep up are omitted, as long as it keeps up with at least one budget.
  std::string against;
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
  // Mean times of a perfectly balanced group; absent in a closed loop.
  std::optional<ServeFloor> floor;
  // Rules that keep up with none of their budgets; `best` is chosen among the other rules.
  std::vector<std::string> cannot_run;
};

// Calls `done` after each cell, in order, on the caller's thread. The first error of the candidate ends the
// grid and names the cell. RESOURCE_EXHAUSTED, after the last cell, names each rule and cell in which no
// budget is enough. CANCELLED once `go_on` returns false; any of the grid's threads calls `go_on`, before
// each run.
absl::Status RunServeGrid(const ServeGridOptions& options, const std::function<void(const ServeCell&)>& done,
                          const std::function<bool()>& go_on);

nlohmann::ordered_json ServeCellJson(const ServeCell& cell);

}  // namespace bfio::sim
