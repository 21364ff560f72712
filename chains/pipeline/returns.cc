#include "chains/pipeline/returns.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace bfio::worker {

uint64_t Returns::Expect(size_t values) {
  MutexLock lock(&mutex_);
  expected_.push_back({++announced_, values});
  return announced_;
}

absl::StatusOr<std::vector<float>> Returns::Await(absl::Time deadline) {
  {
    MutexLock lock(&mutex_);
    const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !broken_.ok() || !arrived_.empty();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&ready), deadline - MonotonicNow());
    if (!broken_.ok()) return broken_;
    if (!arrived_.empty()) {
      std::vector<float> values = std::move(arrived_.front());
      arrived_.pop_front();
      return values;
    }
  }
  const absl::Status late = absl::DeadlineExceededError("the chain did not return a result in time");
  OnLost(late);
  return late;
}

absl::Status Returns::Take(MicroBatch batch) {
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    if (!broken_.ok()) return broken_;
    if (expected_.empty() || expected_.front().number != batch.number) {
      status = absl::InvalidArgumentError(absl::StrCat("result ", batch.number, " was not expected"));
    } else if (expected_.front().values != batch.hidden.size()) {
      status = absl::InvalidArgumentError(absl::StrCat("result ", batch.number, " has ", batch.hidden.size(),
                                                       " values, not ", expected_.front().values));
    } else {
      expected_.pop_front();
      arrived_.push_back(std::move(batch.hidden));
    }
  }
  if (!status.ok()) OnLost(status);
  return status;
}

void Returns::OnLost(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    broken_ = absl::UnavailableError(absl::StrCat("the chain is broken: ", why.message()));
  }
  on_broken_(why);
}

}  // namespace bfio::worker
