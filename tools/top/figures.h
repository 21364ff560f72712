// What a terminal shows of a cluster: figures from two of its states, as far apart as a person looks back.
//
// Purpose: rates, shares and quantiles of the time between, so that the picture is of now and not of the
// router's whole life. Pure. Threads: plain data.
#ifndef BFIO_TOOLS_TOP_FIGURES_H_
#define BFIO_TOOLS_TOP_FIGURES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "bfio/v1/admin.pb.h"

namespace bfio::top {

struct WorkerFigures {
  std::string worker_id;
  std::string group;
  v1::WorkerPhase phase = v1::WORKER_PHASE_UNSPECIFIED;
  // Absent while it joins.
  std::optional<uint32_t> rank;
  uint32_t running = 0;
  uint32_t slots = 0;
  uint64_t load_tokens = 0;
  uint64_t kv_tokens = 0;
  // Of the last step seen; absent without one of this epoch.
  std::optional<double> local_s;
  std::optional<double> wait_s;
  // Share of the time's steps in which it was the slowest.
  std::optional<double> slowest;
};

struct Quantiles {
  double p50 = 0;
  double p99 = 0;
};

// Absent: nothing of the kind happened.
struct Figures {
  v1::ClusterState state;
  double seconds = 0;
  uint32_t ranks = 0;
  uint64_t max_load = 0, min_load = 0;
  double mean_load = 0;
  // The rank with the largest load, and the one that was the slowest most often, with their groups.
  std::optional<uint32_t> max_rank;
  std::optional<uint32_t> straggler;
  std::string max_group, straggler_group;
  // Ranks count within their groups.
  bool several_groups = false;
  std::optional<double> tokens_per_s;
  std::optional<double> steps_per_s;
  std::optional<double> idle;
  std::optional<double> barrier_wait;
  std::optional<double> decide_s;
  std::optional<Quantiles> first_token_s;
  std::optional<Quantiles> between_tokens_s;
  uint32_t running = 0, slots = 0;
  // In the order of ranks, group by group; joining ranks are last.
  std::vector<WorkerFigures> workers;
};

// `before` is an earlier state of the same router, or `now` itself (then nothing has a rate); a state of
// another router, whose counters do not go with now's, is ignored. `steps`: each group's last.
Figures Compare(const v1::ClusterState& before, const v1::ClusterState& now,
                absl::Span<const v1::StepSummary> steps = {});

}  // namespace bfio::top

#endif  // BFIO_TOOLS_TOP_FIGURES_H_
