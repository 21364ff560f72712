// What the steps looked like: sums for the admin API, a summary per step for watchers, token rates per rank.
//
// Purpose: one place that turns the ranks' reports into the figures operators read. Owned by the decision
// thread; not thread-safe (watchers have queues of their own).
#ifndef BFIO_ROUTER_GROUP_STEP_RECORDER_H_
#define BFIO_ROUTER_GROUP_STEP_RECORDER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "bfio/v1/admin.pb.h"
#include "bfio/v1/worker.pb.h"
#include "common/telemetry/metrics/distribution.h"

namespace bfio::router {

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

class StepRecorder {
 public:
  using Sink = std::function<void(const std::shared_ptr<const v1::StepSummary>&)>;

  // Every summary of a complete step goes to `sink`.
  explicit StepRecorder(Sink sink) : sink_(std::move(sink)) {}

  // Steps of the epoch before that are not complete are forgotten.
  // Not coupled: every report is a step of its own.
  void OpenEpoch(uint64_t epoch, int32_t ranks, bool coupled = true);

  // `saturated`: after it no worker has a free slot; counted here where ranks are not coupled, else with the
  // decision.
  void OnReport(int32_t rank, const v1::StepReport& report, absl::Time now, bool saturated = false);

  // A decision was taken; the complete steps before it are published with it. `gap` is core::Plan's.
  void OnDecision(int64_t assigned, int64_t waiting, absl::Duration took, bool saturated, bool stopped_early,
                  std::optional<double> gap = std::nullopt);

  // The group waits for requests, and no decision is to follow: what waits for one is published without it.
  void OnParked(int64_t waiting);

  const v1::StepTotals& totals() const { return totals_; }
  void FillTimes(v1::StepTimes& times) const;
  void FillGap(v1::Distribution& gap) const;
  double tokens_per_second(int32_t rank, absl::Time now) const;
  uint64_t straggler_steps(int32_t rank) const;

 private:
  struct Partial {
    int32_t reports = 0;
    v1::StepSummary summary;
  };
  v1::StepSummary NewSummary(uint64_t step) const;
  void Complete(Partial& partial);
  void OnStepAlone(int32_t rank, const v1::StepReport& report, bool saturated);

  const Sink sink_;
  uint64_t epoch_ = 0;
  int32_t ranks_ = 0;
  bool coupled_ = true;
  // Not coupled: of each rank the last load and number of requests; what waited after the last decision, and
  // what has been assigned since the last step.
  v1::StepSummary last_;
  std::map<uint64_t, Partial> partial_;
  std::vector<std::shared_ptr<v1::StepSummary>> complete_;  // wait for the decision that follows
  std::vector<RateWindow> rates_;
  std::vector<uint64_t> stragglers_;
  v1::StepTotals totals_;
  Distribution local_s_{StepSeconds()};
  Distribution barrier_wait_s_{StepSeconds()};
  Distribution gap_s_{StepSeconds()};
  Distribution decide_s_{StepSeconds()};
  Distribution solver_gap_{GapShares()};
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_STEP_RECORDER_H_
