#include "common/net/first_messages.h"

#include <algorithm>

#include "common/base/clock.h"

namespace bfio {
namespace {

// Interval at which calls are checked while there are some. A connection can send some 50 MiB meanwhile.
constexpr absl::Duration kCheckPeriod = absl::Milliseconds(20);

}  // namespace

FirstMessages::FirstMessages(Limits limits)
    : limits_(limits),
      slots_(static_cast<int64_t>(limits.at_once)),
      places_(limits.waiting),
      thread_([this] { Watch(); }) {}

FirstMessages::~FirstMessages() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

uint64_t FirstMessages::Add(const std::shared_ptr<Call>& call, Peer peer) {
  call->number_ = next_++;
  pending_.emplace(call->number_, Pending{MonotonicNow() + limits_.patience, call, std::move(peer)});
  return call->number_;
}

void FirstMessages::Begin(const std::shared_ptr<Call>& call, const Peer& peer) {
  bool waits = false;
  {
    MutexLock lock(&mutex_);
    waits = places_.Take({peer.group, ""});
    if (waits) {
      waiting_.Push(peer, Add(call, peer));
    } else {
      ++too_late_;
    }
  }
  if (!waits) return call->OnTooLate();
  ReceiveNext();
}

void FirstMessages::StopReceiving(uint64_t number) {
  pending_.erase(number);
  const auto found = receiving_.find(number);
  slots_.Give(found->second.peer);
  receiving_.erase(found);
}

void FirstMessages::End(const Call& call) {
  {
    MutexLock lock(&mutex_);
    StopReceiving(call.number_);
  }
  ReceiveNext();
}

void FirstMessages::ReceiveNext() {
  for (;;) {
    std::shared_ptr<Call> call;
    uint64_t number = 0;
    {
      MutexLock lock(&mutex_);
      auto next = waiting_.Pop(slots_);
      if (!next) return;
      auto& [peer, waiting] = *next;
      // Absent if its deadline has passed.
      const auto found = pending_.find(waiting);
      if (found != pending_.end()) {
        call = found->second.call.lock();
        peer = std::move(found->second.peer);
        pending_.erase(found);
        places_.Give({peer.group, ""});
      }
      if (call == nullptr) {
        slots_.Give(peer);
        continue;
      }
      number = Add(call, peer);
      const int64_t before = received_(peer.connection);
      receiving_.emplace(number, Receiving{std::move(peer), before});
    }
    if (call->Receive()) continue;
    MutexLock lock(&mutex_);
    StopReceiving(number);
  }
}

std::vector<std::shared_ptr<FirstMessages::Call>> FirstMessages::TakeLate() {
  std::vector<std::shared_ptr<Call>> late;
  const auto take = [&](std::map<uint64_t, Pending>::iterator it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (auto call = it->second.call.lock(); call != nullptr) late.push_back(std::move(call));
    if (!receiving_.contains(it->first)) places_.Give({it->second.peer.group, ""});
    pending_.erase(it);
  };
  const absl::Time now = MonotonicNow();
  while (!pending_.empty() && pending_.begin()->second.deadline <= now) take(pending_.begin());
  if (waiting_.SomeHoldNothing(slots_)) {
    for (const auto& [number, call] : receiving_) {
      const auto it = pending_.find(number);
      if (it == pending_.end()) continue;
      if (it->second.deadline - limits_.patience + limits_.crowded_patience <= now) take(it);
    }
  }
  for (const uint64_t number : FindFlood()) {
    if (const auto it = pending_.find(number); it != pending_.end()) take(it);
  }
  too_late_ += late.size();
  return late;
}

std::vector<uint64_t> FirstMessages::FindFlood() const {
  // By connection: what it has sent since the first of its calls began to receive.
  absl::flat_hash_map<std::string, int64_t> sent;
  for (const auto& [number, call] : receiving_) {
    int64_t& most = sent[call.peer.connection];
    most = std::max(most, received_(call.peer.connection) - call.before);
  }
  std::pair<std::string, int64_t> greediest;
  int64_t sum = 0;
  for (const auto& one : sent) {
    sum += one.second;
    if (one.second > greediest.second) greediest = one;
  }
  std::vector<uint64_t> flood;
  if (sum <= limits_.bytes) return flood;
  for (const auto& [number, call] : receiving_) {
    const bool its = call.peer.connection == greediest.first;
    if (its && received_(greediest.first) - call.before >= greediest.second / 2) flood.push_back(number);
  }
  return flood;
}

void FirstMessages::Watch() {
  for (;;) {
    std::vector<std::shared_ptr<Call>> late;
    {
      MutexLock lock(&mutex_);
      const auto awake = [this]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !pending_.empty(); };
      mutex_.Await(absl::Condition(&awake));
      if (!stopping_) {
        const absl::Duration left = pending_.begin()->second.deadline - MonotonicNow();
        if (left > absl::ZeroDuration())
          mutex_.AwaitWithTimeout(absl::Condition(&stopping_), std::min(left, kCheckPeriod));
      }
      if (stopping_) return;
      late = TakeLate();
    }
    for (const auto& call : late) call->OnTooLate();
    // Expired calls at the front of the queue must not block those behind them.
    ReceiveNext();
  }
}

FirstMessages::Counts FirstMessages::counts() const {
  MutexLock lock(&mutex_);
  return {receiving_.size(), static_cast<size_t>(places_.used()), too_late_};
}

}  // namespace bfio
