#include "common/net/first_messages.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/clock.h"

namespace bfio {

FirstMessages::FirstMessages(Limits limits) : limits_(limits), thread_([this] { Watch(); }) {}

FirstMessages::~FirstMessages() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

uint64_t FirstMessages::Add(const std::shared_ptr<Call>& call) {
  call->number_ = next_++;
  pending_.emplace(call->number_, Pending{MonotonicNow() + limits_.patience, call});
  return call->number_;
}

void FirstMessages::Begin(const std::shared_ptr<Call>& call) {
  {
    MutexLock lock(&mutex_);
    waiting_.push_back(Add(call));
  }
  ReceiveNext();
}

void FirstMessages::End(const Call& call) {
  {
    MutexLock lock(&mutex_);
    pending_.erase(call.number_);
    receiving_.erase(call.number_);
  }
  ReceiveNext();
}

void FirstMessages::ReceiveNext() {
  for (;;) {
    std::shared_ptr<Call> call;
    uint64_t number = 0;
    {
      MutexLock lock(&mutex_);
      if (waiting_.empty() || receiving_.size() >= limits_.at_once) return;
      // Absent if its deadline has passed.
      const auto found = pending_.find(waiting_.front());
      waiting_.pop_front();
      if (found == pending_.end()) continue;
      call = found->second.call.lock();
      pending_.erase(found);
      if (call == nullptr) continue;
      number = Add(call);
      receiving_.insert(number);
    }
    if (call->Receive()) continue;
    MutexLock lock(&mutex_);
    pending_.erase(number);
    receiving_.erase(number);
  }
}

void FirstMessages::Watch() {
  std::vector<std::shared_ptr<Call>> late;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      const auto awake = [this]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !pending_.empty(); };
      mutex_.Await(absl::Condition(&awake));
      if (!stopping_) {
        // The first deadline is checked again then; calls that begin and end meanwhile cause no wake-up.
        const absl::Duration left = pending_.begin()->second.deadline - MonotonicNow();
        if (left > absl::ZeroDuration()) mutex_.AwaitWithTimeout(absl::Condition(&stopping_), left);
      }
      if (stopping_) return;
      const absl::Time now = MonotonicNow();
      while (!pending_.empty() && pending_.begin()->second.deadline <= now) {
        if (auto call = pending_.begin()->second.call.lock(); call != nullptr)
          late.push_back(std::move(call));
        pending_.erase(pending_.begin());
      }
      too_late_ += late.size();
    }
    for (const auto& call : late) call->OnTooLate();
    late.clear();
    // Expired calls at the front of the queue must not block those behind them.
    ReceiveNext();
  }
}

FirstMessages::Counts FirstMessages::counts() const {
  MutexLock lock(&mutex_);
  // Includes waiting calls whose deadline has passed.
  const size_t waiting = pending_.size() - std::min(pending_.size(), receiving_.size());
  return {receiving_.size(), waiting, too_late_};
}

}  // namespace bfio
