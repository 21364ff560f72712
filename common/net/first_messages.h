// Bounds the reception of calls' first messages in number and time. GRPC receives a message completely before
// it compares its size with the limit, and opens the flow control window for it at once. So only a bounded
// number of calls receive at the same time, of each peer no more than its share. The others wait for their
// peer's turn, with at most the initial window (64 KiB) buffered; their number is bounded and shared, too. A
// message that does not arrive in time ends its call, earlier when it keeps a peer without a slot waiting.
// Ownership: gRPC keeps calls alive; this object has weak references. Threads: any, plus one for the
// deadlines.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"

namespace bfio {

class FirstMessages {
 public:
  // Methods are called without any lock of FirstMessages held.
  class Call {
   public:
    virtual ~Call() = default;
    // Starts to receive the message; false when the call has ended.
    virtual bool Receive() = 0;
    // The message has not arrived in time, or too many calls of the peer wait already.
    virtual void OnTooLate() = 0;

   private:
    friend class FirstMessages;
    // Set before any other method is called, and again before Receive.
    uint64_t number_ = 0;
  };
  struct Limits {
    // Upper bound of calls that receive at the same time.
    size_t at_once = 64;
    // From Begin until the call may receive, and again from then to the message's last byte: a call that has
    // waited for others must not fail for the time that they took.
    absl::Duration patience = absl::Seconds(10);
    // The time to the message's last byte while a peer waits that receives nothing.
    absl::Duration crowded_patience = absl::Seconds(1);
    // Upper bound of calls that wait: with 64 KiB each, half of a port's memory. Further ones end at once.
    int64_t waiting = 4096;
    // What connections may send while their oldest call receives its message, in sum: twice what the messages
    // may have. Beyond it the calls of the connection that has sent the most end: gRPC would accept whatever
    // size a message announces.
    int64_t bytes = 128 << 20;
  };
  struct Counts {
    size_t receiving = 0;
    size_t waiting = 0;
    uint64_t too_late = 0;
  };

  explicit FirstMessages(Limits limits);
  FirstMessages() : FirstMessages(Limits()) {}
  ~FirstMessages();
  FirstMessages(const FirstMessages&) = delete;
  FirstMessages& operator=(const FirstMessages&) = delete;

  // `received` returns the bytes that the connection has sent so far. REQUIRES: set before the first call,
  // and valid until the last has ended.
  void set_received(std::function<int64_t(const std::string& connection)> received) {
    MutexLock lock(&mutex_);
    received_ = std::move(received);
  }

  // `arrived` counts the bytes of a connection's complete messages; unset: they are not counted. REQUIRES: as
  // for set_received.
  void set_arrived(std::function<void(const std::string& connection, int64_t bytes)> arrived) {
    arrived_ = std::move(arrived);
  }
  bool counts_messages() const { return arrived_ != nullptr; }
  // A message of the peer has arrived: its first or a later one. REQUIRES: counts_messages().
  void Arrived(const Peer& peer, int64_t bytes) const { arrived_(peer.connection, bytes); }

  // Lets the call receive its message, now or when it is its peer's turn.
  void Begin(const std::shared_ptr<Call>& call, const Peer& peer);
  // The message has arrived, or will not. REQUIRES: Receive was called and returned true.
  void End(const Call& call);

  Counts counts() const;

 private:
  struct Pending {
    absl::Time deadline;
    std::weak_ptr<Call> call;
    Peer peer;
  };

  struct Receiving {
    Peer peer;
    // What the connection had sent when the call began to receive.
    int64_t before = 0;
  };

  // Gives the call a number and a deadline.
  uint64_t Add(const std::shared_ptr<Call>& call, Peer peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopReceiving(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The receiving calls of the connection that sends too much; empty: none does.
  std::vector<uint64_t> FindFlood() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the calls out whose time is up, or that receive too much.
  std::vector<std::shared_ptr<Call>> TakeLate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch();
  // Starts the next waiting calls.
  void ReceiveNext() ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits limits_;
  mutable Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  // Calls whose deadline has not passed, by number and therefore by deadline.
  std::map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Receiving> receiving_ ABSL_GUARDED_BY(mutex_);
  std::function<int64_t(const std::string&)> received_ ABSL_GUARDED_BY(mutex_) = [](const std::string&) {
    return int64_t{0};
  };
  std::function<void(const std::string&, int64_t)> arrived_;
  // Of the slots in which calls receive; and of the waiting calls, by group alone.
  FairShares slots_ ABSL_GUARDED_BY(mutex_), places_ ABSL_GUARDED_BY(mutex_);
  // Calls by number; those without an entry in pending_ have waited too long.
  FairQueue<uint64_t> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t too_late_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio
