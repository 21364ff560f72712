// The last minutes of a group's steps, half a second a sample: what the live page draws.
//
// Purpose: a page that is opened sees the past at once, and every open page is fed from the same samples,
// whatever the number of steps a second. OnStep costs the decision thread one pass over the ranks under a
// lock that readers hold only while they copy. Threads: any.
#ifndef BFIO_ROUTER_ADMIN_LIVE_HISTORY_H_
#define BFIO_ROUTER_ADMIN_LIVE_HISTORY_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "bfio/v1/admin.pb.h"
#include "common/base/mutex.h"

namespace bfio::router {

// What happened in an interval in which at least one step ended.
struct StepSample {
  // Counts samples from 1.
  uint64_t number = 0;
  // Of the interval's last step.
  absl::Time time;
  // Of the interval's last step.
  uint64_t epoch = 0;
  uint64_t step = 0;
  std::vector<uint64_t> load_tokens;
  std::vector<uint32_t> active_requests;
  uint32_t waiting_requests = 0;
  // Of the interval.
  uint32_t steps = 0;
  uint32_t assigned = 0;
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
  // Five minutes.
  static constexpr size_t kSamples = 600;

  void OnStep(const v1::StepSummary& step, absl::Time now);

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
    double max_sum = 0, mean_sum = 0, local_ns = 0, wait_ns = 0, slowest_ns = 0;
    std::vector<uint32_t> slowest_count;
  };
  void CloseInterval() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::optional<Open> open_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<const StepSample>> samples_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_LIVE_HISTORY_H_
