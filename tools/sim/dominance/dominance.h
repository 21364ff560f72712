// Compares one policy with all others on workloads x group sizes x (arrival loads, reveal depths), each over
// several seeds. `load` means the same utilisation everywhere: arrivals come at load / 72 of
// FullSlotRequestRate (workload.h); arrival times of a trace are stretched to the rate, a workload without
// them gets Poisson arrivals. In overload mode the pool is kept at max(1, round(depth x MeanFreeSlots))
// requests. A seed rotates a trace (Rotated) or samples a profile again, and changes the policies' random
// draws. Threads: Run distributes runs over its own threads; the result does not depend on their number.
// `done` is called by any of them, under a lock.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/run/options.h"

namespace bfio::sim {

// A baseline is fair if its p99 wait is at most this multiple of FCFS's: a rule that starves large requests
// would keep its steps short with them.
inline constexpr double kFairWait = 1.2;
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
  // most four times, because a setting's noise depends on its number of requests. In arrivals mode counting
  // starts after the longest output and kWarmupOutputs mean outputs, when the group is full, and lasts at
  // least kCountedOutputs mean outputs, because a choice by replay takes several mean request lifetimes.
  SimOptions base;
  int32_t threads = 1;
};

// Of one run, or means over seeds: then the p99 wait is rounded, and the longest wait is that of any seed.
struct RunMeasurements {
  // Number of counted steps.
  int64_t steps = 0;
  double step_s_mean = 0;
  double idle_fraction = 0;
  double throughput_tokens_per_s = 0;
  int64_t wait_steps_p99 = 0;
  int64_t wait_steps_max = 0;
};

// What is run with every policy and every seed.
struct DominanceSetting {
  int32_t workload = 0;
  int32_t workers = 0;
  // "arrivals" with a load, or "overload" with a depth.
  std::string mode;
  double level = 0;
  // By policy, and by seed from 1.
  std::vector<std::vector<RunMeasurements>> runs = {};
};

// The baselines with the shortest steps: of all, and of the fair ones (0: there is none). REQUIRES: `runs`
// has the candidate first, and FCFS at `fcfs`.
struct Rivals {
  size_t best = 0, best_fair = 0;
};
Rivals BestOf(absl::Span<const RunMeasurements> runs, size_t fcfs);

class Dominance {
 public:
  // INVALID_ARGUMENT for an empty list, an unknown policy or a setting out of range.
  static absl::StatusOr<Dominance> Create(DominanceOptions options);

  // In the order of the report; results are empty before Run.
  const std::vector<DominanceSetting>& settings() const { return settings_; }
  // policies()[0] is the candidate.
  const std::vector<std::string>& policies() const { return policies_; }
  // The pool of overload mode.
  int64_t RevealOf(const DominanceSetting& setting, uint64_t seed) const;

  // Runs all settings. Calls `done(i)` after setting i, in order, and `go_on` from time to time; when that
  // returns false, the run ends with CANCELLED. Call once.
  absl::Status Run(const std::function<void(size_t setting)>& done, const std::function<bool()>& go_on);

  // A setting's results: ratios to the best baselines, waits, and the means of all policies.
  nlohmann::ordered_json Json(const DominanceSetting& setting) const;
  // What all settings have in common, and the settings.
  nlohmann::ordered_json Json() const;

 private:
  explicit Dominance(DominanceOptions options) : options_(std::move(options)) {}

  // Traces by workload and seed, prepared for both modes.
  absl::Status PrepareTraces();
  const Trace& PreparedTrace(const DominanceSetting& setting, uint64_t seed) const;
  int32_t BatchOf(const DominanceSetting& setting) const;
  SimOptions OptionsOf(const DominanceSetting& setting, uint64_t seed, const std::string& policy) const;
  absl::StatusOr<RunMeasurements> RunOne(const DominanceSetting& setting, uint64_t seed,
                                         const std::string& policy, const std::function<bool()>& go_on) const;

  DominanceOptions options_;
  std::vector<std::string> policies_;
  // Index of FCFS in policies_.
  size_t fcfs_ = 0;
  std::vector<std::vector<Trace>> traces_;
  std::vector<DominanceSetting> settings_;
};

}  // namespace bfio::sim
