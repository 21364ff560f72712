// The last minutes of the groups' steps, half a second a sample: what the live page draws.
//
// Purpose: a page that is opened sees the past at once, and every open page is fed from the same samples,
// whatever the number of steps a second. OnStep costs the decision thread one pass over the ranks under a
// lock that readers hold only while they copy. Threads: any.
#ifndef BFIO_ROUTER_ADMIN_LIVE_HISTORY_H_
#define BFIO_ROUTER_ADMIN_LIVE_HISTORY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "router/group/step_statistics.h"

namespace bfio::router {

// What happened in a group in an interval in which at least one of its steps ended.
struct StepSample {
  // Counts samples of all groups from 1.
  uint64_t number = 0;
  core::GroupIndex group = 0;
  // Of the interval's last step.
  absl::Time time;
  // Of the interval's last step.
  uint64_t epoch = 0;
  int64_t step = 0;
  std::vector<int64_t> load_tokens;
  std::vector<uint32_t> active_requests;
  // Computed in the interval, by rank.
  std::vector<int64_t> prefill_tokens;
  int64_t waiting_requests = 0;
  // Of the interval.
  int64_t steps = 0;
  int64_t assigned = 0;
  // 1 - (sum of mean loads) / (sum of largest loads): the share of work time that imbalance wastes; 0 without
  // load, and where ranks do not wait for each other.
  double idle_fraction = 0;
  // Share of local work + barrier wait that was barrier wait.
  double wait_fraction = 0;
  // Mean duration of a step on its slowest rank, seconds.
  double step_s = 0;
  // The rank whose local work was the longest most often, where the others waited for it.
  std::optional<uint32_t> straggler;
};

class LiveHistory {
 public:
  static constexpr absl::Duration kInterval = absl::Milliseconds(500);
  // Of each group: five minutes.
  static constexpr size_t kSamples = 600;
  static constexpr size_t kGroups = 64;

  void OnStep(const StepSummary& step, absl::Time now);

  // Samples with numbers above `after`, oldest first; all of them for an `after` of an earlier router's;
  // waits up to `patience` for the first. Empty when none came, or after Close.
  std::vector<std::shared_ptr<const StepSample>> After(uint64_t after, absl::Duration patience) const;

  // Ends every wait.
  void Close();
  bool closed() const;

 private:
  // The sums of the interval that is not over yet.
  struct Open {
    // Of its first step and of its latest.
    absl::Time since, last;
    StepSample sample;
    double max_sum = 0, mean_sum = 0, local_s = 0, wait_s = 0, slowest_s = 0;
    std::vector<uint32_t> slowest_count;
  };
  struct Group {
    std::optional<Open> open;
    // Oldest first.
    std::deque<std::shared_ptr<const StepSample>> samples;
  };
  void CloseInterval(Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Groups come and go: the one whose newest sample is the oldest makes way.
  void BoundGroups() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<core::GroupIndex, Group> groups_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_LIVE_HISTORY_H_
