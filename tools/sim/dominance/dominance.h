// Compares one policy with all others on every cell of workloads x group sizes x (arrival loads, reveal
// depths) x seeds. `load` means the same utilisation everywhere: arrivals come at load / 72 of
// FullSlotRequestRate (workload.h); arrival times of a trace are stretched to the rate, a workload without
// them gets Poisson arrivals. In overload mode the pool is kept at max(1, round(depth x MeanFreeSlots))
// requests. A seed rotates a trace (Rotated) or samples a profile again, and changes the policies' random
// draws. Threads: Run distributes runs over its own threads; the result does not depend on their number.
// `done` is called by any of them, under a lock.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/run/options.h"

namespace bfio::sim {

// A cell is lost when the mean step is more than this share above the best baseline's ...
inline constexpr double kStepLossAbove = 1.005;
// ... or the p99 wait is more than this share above FCFS's.
inline constexpr double kWaitLossAbove = 1.2;
// Arrivals mode: minimum number of steps before counting, and of counted steps, in mean output lengths.
inline constexpr double kWarmupOutputs = 5;
inline constexpr double kCountedOutputs = 10;
// The load at which all slots are taken.
inline constexpr double kSaturationLoad = 72;

struct DominanceWorkload {
  std::string name;
  // Exactly one of the two: a trace read from a file, or the name of a profile.
  Trace trace;
  std::string profile;
  // Mean number of requests that come at once (WithArrivals), unless the trace has arrivals.
  double burst = 1;
  // See SimOptions.
  int32_t classes = 1;
  int32_t tenants = 1;
  // Slots per worker; 0: those of DominanceOptions::base.
  int32_t batch = 0;
  // KV memory of a worker, as a share of what its slots would reserve on average; 0: no limit.
  double kv_share = 0;
};

// Variants of the profile "conversation": "bursts", "two_priorities", "two_tenants", "eight_slots" and
// "short_kv".
std::vector<DominanceWorkload> StructuredWorkloads();

struct DominanceOptions {
  std::vector<DominanceWorkload> workloads;
  std::vector<int32_t> groups = {4, 16, 64, 256};
  std::vector<double> loads = {8, 20, 40, 60, 68, 72};
  std::vector<double> depths = {1, 4, 32};
  // The seeds 1 .. `seeds` are run.
  int64_t seeds = 3;
  std::string candidate = "bf_io_auto";
  // FCFS is added if missing; the candidate is left out.
  std::vector<std::string> baselines;
  // Batch, cost, objective, horizon, lookahead, plan mode, steps and warm-up of every run. G = 64 counts half
  // as many steps, G = 256 and above a quarter. A load below saturation counts 72 / load times as many, at
  // most four times, because a cell's noise depends on its number of requests. In arrivals mode counting
  // starts after the longest output and kWarmupOutputs mean outputs, when the group is full, and lasts at
  // least kCountedOutputs mean outputs, because a choice by replay takes several mean request lifetimes.
  SimOptions base;
  int32_t threads = 1;
};

// The measurements of one run that determine the verdict.
struct RunMeasurements {
  // Number of counted steps.
  int64_t steps = 0;
  double step_s_mean = 0;
  double idle_fraction = 0;
  double throughput_tokens_per_s = 0;
  int64_t wait_steps_p50 = 0;
  int64_t wait_steps_p99 = 0;
  int64_t wait_steps_max = 0;
};

struct DominanceCell {
  int32_t workload = 0;
  int32_t workers = 0;
  // "arrivals" with a load, or "overload" with a depth and the reveal target computed from it.
  std::string mode;
  double level = 0;
  int64_t reveal = 0;
  uint64_t seed = 0;
  // The candidate's run first, then those of the baselines.
  std::vector<RunMeasurements> runs;
};

// A cell's verdict. Indices into DominanceCell::runs.
struct Verdict {
  int32_t best = 0;
  double step_ratio = 0;
  // The best baseline among those whose p99 wait is within kWaitLossAbove of FCFS's. A rule that starves
  // large requests would keep its steps short with them.
  int32_t best_fair = 0;
  double fair_step_ratio = 0;
  int64_t wait_p99 = 0;
  int64_t fcfs_wait_p99 = 0;
  bool step_loss = false;
  bool fair_step_loss = false;
  bool wait_loss = false;
};

class Dominance {
 public:
  // INVALID_ARGUMENT for an empty list, an unknown policy or a setting out of range.
  static absl::StatusOr<Dominance> Create(DominanceOptions options);

  // The cells in the order of the report, without results.
  const std::vector<DominanceCell>& cells() const { return cells_; }
  // policies()[0] is the candidate.
  const std::vector<std::string>& policies() const { return policies_; }
  // Index of FCFS in policies().
  int32_t fcfs() const { return fcfs_; }
  const DominanceOptions& options() const { return options_; }

  // Runs all cells. Calls `done(i)` after cell i, in order, and `go_on` from time to time; when either
  // returns false, the run ends with CANCELLED. Call once.
  absl::Status Run(const std::function<void(const DominanceCell& cell, size_t index)>& done,
                   const std::function<bool()>& go_on);

  Verdict Judge(const DominanceCell& cell) const;

 private:
  explicit Dominance(DominanceOptions options) : options_(std::move(options)) {}
  void MakeCells();
  // Traces by workload and seed, prepared for both modes.
  absl::Status PrepareTraces();
  const Trace& PreparedTrace(const DominanceCell& cell) const;
  int32_t BatchOf(const DominanceCell& cell) const;
  SimOptions OptionsOf(const DominanceCell& cell, const std::string& policy) const;
  absl::StatusOr<RunMeasurements> RunOne(const DominanceCell& cell, const std::string& policy,
                                         const std::function<bool()>& go_on) const;

  DominanceOptions options_;
  std::vector<std::string> policies_;
  int32_t fcfs_ = 0;
  std::vector<std::vector<Trace>> traces_;
  std::vector<DominanceCell> cells_;
};

// A cell with its verdict and its runs.
nlohmann::ordered_json DominanceCellJson(const Dominance& dominance, const DominanceCell& cell);
// The settings of the grid; losses of cells, and of means over seeds; all means over seeds and all cells.
nlohmann::ordered_json DominanceJson(const Dominance& dominance);

}  // namespace bfio::sim
