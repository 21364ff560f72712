// What the terminal shows of a cluster: measurements computed from two of its states, some seconds apart.
//
// Purpose: rates, shares and quantiles of the time between the two states, so that the screen shows the
// present and not averages since the router's start. Pure. Threads: plain data.
#ifndef BFIO_TOOLS_TOP_MEASUREMENTS_H_
#define BFIO_TOOLS_TOP_MEASUREMENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "bfio/v1/admin.pb.h"

namespace bfio::top {

struct WorkerMeasurements {
  std::string worker_id;
  std::string group;
  v1::WorkerPhase phase = v1::WORKER_PHASE_UNSPECIFIED;
  // Absent while the worker joins.
  std::optional<uint32_t> rank;
  uint32_t running = 0;
  uint32_t slots = 0;
  uint64_t load_tokens = 0;
  uint64_t kv_tokens = 0;
  uint64_t reserved_kv_tokens = 0;
  // Times of the last step seen; absent when no step of this epoch was seen.
  std::optional<double> local_s;
  std::optional<double> wait_s;
  // Share of the steps between the two states in which this worker was the slowest.
  std::optional<double> slowest;
};

struct Quantiles {
  double p50 = 0;
  double p99 = 0;
};

// A measurement is absent when nothing of the kind happened between the two states.
struct Measurements {
  v1::ClusterState state;
  double seconds = 0;
  uint32_t ranks = 0;
  uint64_t max_load = 0, min_load = 0;
  double mean_load = 0;
  // The rank with the largest load, and the rank that was the slowest most often, with their groups.
  std::optional<uint32_t> max_rank;
  std::optional<uint32_t> straggler;
  std::string max_group, straggler_group;
  // With several groups a rank is only unique within its group.
  bool several_groups = false;
  std::optional<double> tokens_per_s;
  std::optional<double> steps_per_s;
  std::optional<double> idle;
  std::optional<double> barrier_wait;
  std::optional<double> decide_s;
  std::optional<Quantiles> first_token_s;
  std::optional<Quantiles> between_tokens_s;
  uint32_t running = 0, slots = 0;
  // In the order of ranks, group by group; joining workers are last.
  std::vector<WorkerMeasurements> workers;
};

// `before` is an earlier state of the same router, or `now` itself (then there are no rates). A state of
// another router is ignored, because its counters cannot be compared. `steps`: the last step of each group.
Measurements Compare(const v1::ClusterState& before, const v1::ClusterState& now,
                     absl::Span<const v1::StepSummary> steps = {});

}  // namespace bfio::top

#endif  // BFIO_TOOLS_TOP_MEASUREMENTS_H_
