// Statistics of a group's steps: sums, a summary per complete step, token rates per rank. Turns the ranks'
// reports into the measurements that operators read. Pure: time is passed in, summaries are passed out as
// commands. Owned by the group's thread; not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/cost/group_fit.h"
#include "common/telemetry/metrics/distribution.h"
#include "router/core/model/request.h"
#include "router/core/scheduler/cluster.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// One step of the group; in a group whose ranks step independently, one step of one rank.
struct StepSummary {
  core::GroupIndex group = 0;
  uint64_t epoch = 0;
  int64_t step = 0;
  // The vectors are indexed by rank.
  std::vector<int64_t> load_tokens;
  std::vector<int64_t> prefill_tokens;
  std::vector<uint32_t> active_requests;
  std::vector<absl::Duration> local;
  std::vector<absl::Duration> barrier_wait;
  // G * max load - sum of loads; tokens.
  int64_t imbalance_tokens = 0;
  // About the decision that followed the step.
  int64_t waiting_requests = 0;
  int64_t assigned = 0;
  absl::Duration decide;
  bool stopped_early = false;
  // The rank that made the step, where ranks step independently.
  std::optional<core::WorkerIndex> rank;
};

// Sums since the router's start, over all epochs of the group.
struct StepTotals {
  int64_t steps = 0;
  double imbalance_tokens = 0, max_load_tokens = 0, mean_load_tokens = 0;
  // In rank-seconds: waits at the barrier, whole steps, gaps between steps. max_local_s: seconds of the
  // slowest rank of each step.
  double barrier_wait_s = 0, rank_step_s = 0, gap_s = 0, max_local_s = 0;
  int64_t gap_count = 0;
  int64_t generated_tokens = 0;
  int64_t decisions = 0;
  double decide_s = 0, decide_max_s = 0;
  int64_t decisions_stopped_early = 0;
  // Steps after which no worker had a free slot.
  int64_t saturated_steps = 0;
  // Ranks that were disconnected because they reported no step in time.
  int64_t silent_ranks = 0;

  StepTotals& operator+=(const StepTotals& other);
};

// Distributions over all steps since the router's start.
struct StepDistributions {
  Distribution local_s{StepSeconds()};
  Distribution barrier_wait_s{StepSeconds()};
  Distribution gap_s{StepSeconds()};
  Distribution decide_s{StepSeconds()};

  StepDistributions& operator+=(const StepDistributions& other);
};

// Tokens per second over the last second, in buckets of 0.1 s.
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

  // Drops the incomplete steps of the previous epoch.
  void OpenEpoch(uint64_t epoch, int32_t ranks);

  // A rank's report of a step that all ranks make together. The step is complete with the last rank's report;
  // its summary then waits for the decision that follows.
  void OnReport(int32_t rank, const StepReport& report, absl::Time now);
  // A report of a rank that steps independently; its summary is appended to `done`. `saturated`: no worker
  // has a free slot after it.
  void OnStepAlone(int32_t rank, const StepReport& report, absl::Time now, bool saturated, Summaries& done);

  // A decision was taken; appends the summaries of the complete steps before it to `done`. `saturated`: no
  // worker has a free slot after it.
  void OnDecision(const core::Plan& plan, int64_t waiting, absl::Duration took, bool saturated,
                  Summaries& done);

  // The group waits for requests and no decision follows: appends the summaries that wait for one.
  void OnParked(int64_t waiting, Summaries& done);

  void OnSilentRank() { ++totals_.silent_ranks; }

  const StepTotals& totals() const { return totals_; }
  const StepDistributions& distributions() const { return distributions_; }
  // Of the steps whose ranks all report their batches.
  const GroupFit& fit() const { return fit_; }
  double tokens_per_second(int32_t rank, absl::Time now) const;
  // Steps of this epoch in which the rank was the slowest.
  int64_t straggler_steps(int32_t rank) const;

 private:
  struct Partial {
    int32_t reports = 0;
    StepSummary summary;
    // By rank.
    std::vector<BatchLoad> batches;
    int32_t batches_known = 0;
  };
  StepSummary NewSummary(int64_t step) const;
  // Adds the sums that every report counts towards. False: the report belongs to no step of this epoch.
  bool Count(int32_t rank, const StepReport& report, absl::Time now);
  void Complete(Partial& partial);

  const core::GroupIndex group_;
  uint64_t epoch_ = 0;
  int32_t ranks_ = 0;
  // State of ranks that step independently: each rank's last load and number of requests, the requests that
  // waited after the last decision, and the requests assigned since the last step.
  StepSummary last_;
  std::map<int64_t, Partial> partial_;
  std::vector<std::shared_ptr<StepSummary>> complete_;  // waiting for the decision that follows
  std::vector<RateWindow> rates_;
  std::vector<int64_t> stragglers_;
  StepTotals totals_;
  StepDistributions distributions_;
  GroupFit fit_;
};

}  // namespace bfio::router
