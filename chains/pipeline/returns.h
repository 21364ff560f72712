// Where a chain's results come back to its head.
//
// Purpose: the head's end of the ring: hands the hidden rows that the last server sends to the thread that
// waits for them. Bounded by what is expected. Threads: Take and OnLost from any thread, the others from the
// head's step thread.
#ifndef BFIO_CHAINS_PIPELINE_RETURNS_H_
#define BFIO_CHAINS_PIPELINE_RETURNS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "chains/pipeline/neighbours.h"
#include "common/base/mutex.h"

namespace bfio::worker {

class Returns final : public Inlet {
 public:
  // `on_broken` is called once at most, from any thread.
  explicit Returns(std::function<void(const absl::Status&)> on_broken) : on_broken_(std::move(on_broken)) {}

  // Announces the next result: `values` floats, by the number that is returned.
  uint64_t Expect(size_t values);
  // The next of the announced results. UNAVAILABLE: the chain is broken; DEADLINE_EXCEEDED: it did not come
  // in time, which breaks the chain.
  absl::StatusOr<std::vector<float>> Await(absl::Duration timeout);

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

#endif  // BFIO_CHAINS_PIPELINE_RETURNS_H_
