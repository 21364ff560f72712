// Receives a chain's results at its head. Passes the hidden rows that the last server sends to the thread
// that waits for them. Bounded by the number of expected results. Threads: Take and OnLost from any thread,
// the other functions from the head's step thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "chains/pipeline/stage.h"
#include "common/base/mutex.h"

namespace bfio::worker {

class Returns final : public Inlet {
 public:
  // `on_broken` is called at most once, from any thread.
  explicit Returns(std::function<void(const absl::Status&)> on_broken) : on_broken_(std::move(on_broken)) {}

  // Announces the next result, of `values` floats; returns its number.
  uint64_t Expect(size_t values);
  // Waits for the next announced result. UNAVAILABLE: the chain has failed; DEADLINE_EXCEEDED: the result did
  // not come before the deadline (MonotonicNow), which ends the chain.
  absl::StatusOr<std::vector<float>> Await(absl::Time deadline);

  absl::Status Take(MicroBatch batch) override;
  void OnLost(const absl::Status& why) override;

 private:
  struct Expected {
    uint64_t number;
    size_t values;
  };

  const std::function<void(const absl::Status&)> on_broken_;
  Mutex mutex_;
  uint64_t announced_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Expected> expected_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::vector<float>> arrived_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::worker
