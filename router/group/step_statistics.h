// What a group's steps looked like: sums, a summary per complete step, token rates per rank.
//
// Purpose: one place that turns the ranks' reports into the measurements operators read. Pure: time is handed
// in; summaries are handed out as commands. Owned by the group's thread; not thread-safe.
#ifndef BFIO_ROUTER_GROUP_STEP_STATISTICS_H_
#define BFIO_ROUTER_GROUP_STEP_STATISTICS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/telemetry/metrics/distribution.h"
#include "router/core/model/request.h"
#include "router/core/scheduler/cluster.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// One step of the group; of a group whose ranks step by themselves, one step of one rank.
struct StepSummary {
  core::GroupIndex group = 0;
  uint64_t epoch = 0;
  int64_t step = 0;
  // By rank.
  std::vector<int64_t> load_tokens;
  std::vector<int64_t> prefill_tokens;
  std::vector<uint32_t> active_requests;
  std::vector<absl::Duration> local;
  std::vector<absl::Duration> barrier_wait;
  // G * max load - sum of loads; tokens.
  int64_t imbalance_tokens = 0;
  // The decision that followed.
  int64_t waiting_requests = 0;
  int64_t assigned = 0;
  absl::Duration decide;
  bool stopped_early = false;
  // Whose step it was, where ranks step by themselves.
  std::optional<core::WorkerIndex> rank;
};

// Sums since the router's start, over all epochs of the group.
struct StepTotals {
  int64_t steps = 0;
  double imbalance_tokens = 0, max_load_tokens = 0, mean_load_tokens = 0;
  // Rank-seconds: waits at the barrier, whole steps, gaps between steps; and seconds of the slowest ranks.
  double barrier_wait_s = 0, rank_step_s = 0, gap_s = 0, max_local_s = 0;
  int64_t gap_count = 0;
  int64_t generated_tokens = 0;
  int64_t decisions = 0;
  double decide_s = 0, decide_max_s = 0;
  int64_t decisions_stopped_early = 0;
  // Steps after which no worker had a free slot.
  int64_t saturated_steps = 0;

  StepTotals& operator+=(const StepTotals& other);
};

// Of all steps since the router's start.
struct StepDistributions {
  Distribution local_s{StepSeconds()};
  Distribution barrier_wait_s{StepSeconds()};
  Distribution gap_s{StepSeconds()};
  Distribution decide_s{StepSeconds()};
  // Share that a plan may be from the best one, where that was proven.
  Distribution solver_gap{GapShares()};

  StepDistributions& operator+=(const StepDistributions& other);
};

// Tokens per second over the last second, in buckets of a tenth.
class RateWindow {
 public:
  void Add(absl::Time now, int64_t tokens);
  double PerSecond(absl::Time now) const;

 private:
  struct Bucket {
    int64_t tick = -1;
    int64_t tokens = 0;
  };
  std::array<Bucket, 11> buckets_;
};

class StepStatistics {
 public:
  using Summaries = std::vector<std::shared_ptr<const StepSummary>>;

  explicit StepStatistics(core::GroupIndex group) : group_(group) {}

  // Steps of the epoch before that are not complete are forgotten.
  void OpenEpoch(uint64_t epoch, int32_t ranks);

  // A rank's part of a step that all ranks make together. The step is complete with the last rank's report,
  // and waits for the decision that follows.
  void OnReport(int32_t rank, const StepReport& report, absl::Time now);
  // A step of a rank that steps by itself; its summary is appended to `done`. `saturated`: after it no worker
  // has a free slot.
  void OnStepAlone(int32_t rank, const StepReport& report, absl::Time now, bool saturated, Summaries& done);

  // A decision was taken; the complete steps before it are handed out with it. `saturated`: after it no
  // worker has a free slot.
  void OnDecision(const core::Plan& plan, int64_t waiting, absl::Duration took, bool saturated,
                  Summaries& done);

  // The group waits for requests, and no decision is to follow: what waits for one is handed out without it.
  void OnParked(int64_t waiting, Summaries& done);

  const StepTotals& totals() const { return totals_; }
  const StepDistributions& distributions() const { return distributions_; }
  double tokens_per_second(int32_t rank, absl::Time now) const;
  // Steps of this epoch in which the rank was the slowest.
  int64_t straggler_steps(int32_t rank) const;

 private:
  struct Partial {
    int32_t reports = 0;
    StepSummary summary;
  };
  StepSummary NewSummary(int64_t step) const;
  // What every report counts for. False: it has no place in this epoch's steps.
  bool Count(int32_t rank, const StepReport& report, absl::Time now);
  void Complete(Partial& partial);

  const core::GroupIndex group_;
  uint64_t epoch_ = 0;
  int32_t ranks_ = 0;
  // Of ranks that step by themselves: of each the last load and number of requests; what waited after the
  // last decision, and what has been assigned since the last step.
  StepSummary last_;
  std::map<int64_t, Partial> partial_;
  std::vector<std::shared_ptr<StepSummary>> complete_;  // wait for the decision that follows
  std::vector<RateWindow> rates_;
  std::vector<int64_t> stragglers_;
  StepTotals totals_;
  StepDistributions distributions_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_STEP_STATISTICS_H_
