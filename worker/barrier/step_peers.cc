#include "worker/barrier/step_peers.h"

#include <algorithm>

#include "common/base/clock.h"

namespace bfio::worker {

StepPeers::StepPeers(const GroupSpec& group, Barrier& barrier, int64_t step, int64_t rows,
                     absl::Duration timeout)
    : rank_(group.rank),
      world_size_(group.world_size),
      barrier_(barrier),
      step_(step),
      rows_(rows),
      deadline_(MonotonicNow() + timeout) {}

absl::Status StepPeers::AllGather(absl::Span<const float> mine, absl::Span<float> all) {
  return Timed([&](absl::Duration left) { return barrier_.AllGather(step_, mine, all, left); });
}

absl::Status StepPeers::ReduceScatter(absl::Span<const float> mine, absl::Span<float> sum) {
  return Timed([&](absl::Duration left) { return barrier_.ReduceScatter(step_, mine, sum, left); });
}

template <typename Call>
absl::Status StepPeers::Timed(const Call& call) {
  const absl::Time start = MonotonicNow();
  absl::Status status = call(std::max(absl::ZeroDuration(), deadline_ - start));
  waited_ += MonotonicNow() - start;
  if (status_.ok()) status_ = status;
  return status;
}

}  // namespace bfio::worker
