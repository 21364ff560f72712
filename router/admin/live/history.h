// The last minutes of the groups' steps as samples of half a second, which the live page draws. A page that
// is opened shows the past at once, and all open pages read the same samples, whatever the number of steps
// per second. OnStep costs the decision thread one pass over the ranks under a lock that readers hold only
// while they copy. Threads: any.
#pragma once

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

// One interval of a group in which at least one of its steps ended.
struct StepSample {
  // Counts the samples of all groups from 1.
  uint64_t number = 0;
  core::GroupIndex group = 0;
  // End of the interval's last step.
  absl::Time time;
  // Values of the interval's last step.
  uint64_t epoch = 0;
  int64_t step = 0;
  std::vector<int64_t> load_tokens;
  std::vector<uint32_t> active_requests;
  // Prompt tokens computed in the interval, by rank.
  std::vector<int64_t> prefill_tokens;
  int64_t waiting_requests = 0;
  // Sums over the interval.
  int64_t steps = 0;
  int64_t assigned = 0;
  // 1 - (sum of mean loads) / (sum of largest loads): the share of work time that imbalance wastes. 0 without
  // load, and where ranks do not wait for each other.
  double idle_fraction = 0;
  // Barrier wait / (local work + barrier wait).
  double wait_fraction = 0;
  // Mean duration of a step on its slowest rank, in seconds.
  double step_s = 0;
  // The rank that was most often the slowest; empty where ranks do not wait for each other.
  std::optional<uint32_t> straggler;
};

class LiveHistory {
 public:
  static constexpr absl::Duration kInterval = absl::Milliseconds(500);
  // Samples kept per group: five minutes.
  static constexpr size_t kSamples = 600;
  static constexpr size_t kGroups = 64;

  void OnStep(const StepSummary& step, absl::Time now);

  // Samples with numbers above `after`, oldest first. Waits up to `patience` for the first one; empty when
  // none came, or after Close. All samples when `after` is a number of an earlier router.
  std::vector<std::shared_ptr<const StepSample>> After(uint64_t after, absl::Duration patience) const;

  // Ends all waits of After.
  void Close();
  bool closed() const;

 private:
  // Sums of the interval that has not ended.
  struct Open {
    // Times of its first and its latest step.
    absl::Time since, last;
    StepSample sample;
    double max_sum = 0, mean_sum = 0, local_s = 0, wait_s = 0, slowest_s = 0;
    std::vector<uint32_t> slowest_count;
  };
  struct Group {
    std::optional<Open> open;
    // Closed samples, oldest first.
    std::deque<std::shared_ptr<const StepSample>> samples;
  };
  void CloseInterval(Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the group whose newest sample is the oldest when there are too many groups.
  void BoundGroups() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<core::GroupIndex, Group> groups_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bfio::router
