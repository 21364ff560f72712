#include "worker/barrier/step_peers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace bfio::worker {

StepPeers::StepPeers(const GroupSpec& group, Barrier& barrier, int64_t step, int64_t rows,
                     absl::Duration timeout)
    : rank_(group.rank),
      world_size_(group.world_size),
      barrier_(barrier),
      device_(barrier.device()),
      step_(step),
      rows_(rows),
      deadline_(MonotonicNow() + timeout) {}

absl::Status StepPeers::AllGather(absl::Span<const float> mine, absl::Span<float> all) {
  return Timed([&](absl::Duration left) { return barrier_.AllGather(step_, mine, all, left); });
}

absl::Status StepPeers::ReduceScatter(absl::Span<const float> mine, absl::Span<float> sum) {
  return Timed([&](absl::Duration left) { return barrier_.ReduceScatter(step_, mine, sum, left); });
}

absl::Status StepPeers::QueueAllGather(const void* mine, void* all, int64_t count, void* stream) {
  return Timed([&](absl::Duration left) { return device_->QueueAllGather(mine, all, count, stream, left); });
}

absl::Status StepPeers::QueueReduceScatter(const float* mine, float* sum, int64_t count, void* stream) {
  return Timed(
      [&](absl::Duration left) { return device_->QueueReduceScatter(mine, sum, count, stream, left); });
}

absl::Status StepPeers::CheckDevice() {
  absl::Status status = device_->Check();
  if (status.ok() && MonotonicNow() > deadline_) {
    status = absl::DeadlineExceededError(absl::StrCat("the ranks did not complete step ", step_, " in time"));
    device_->Fail(status);
  }
  if (status_.ok()) status_ = status;
  return status;
}

void StepPeers::FailDevice(const absl::Status& why) {
  device_->Fail(why);
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
