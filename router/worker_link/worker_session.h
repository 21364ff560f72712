// The router's end of one worker's stream: WorkerLink.Attach, and similar services (worker_port_service.h).
// Messages from the worker are posted, in order, to the thread that owns their subject; messages to the
// worker are queued and written one after another. Both directions are bounded: reading pauses while too many
// messages, or too many bytes of them, wait for that thread, and a worker that does not read its messages is
// cut off. A worker may answer pings, and so appear healthy, and never read: the owner calls BreakOffIfStuck
// against that. Ownership, writes, the first message and the end of the call: ServerCall. Threads: Send,
// Close, Consumed and BreakOffIfStuck from the owning thread; OnX are gRPC's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "bfio/v1/worker.pb.h"
#include "common/base/clock.h"
#include "common/net/authenticator.h"
#include "common/net/first_messages.h"
#include "common/net/server_call.h"

namespace bfio::router {

// True when one of the names is this worker's; ranks of one process are NAME#0, NAME#1, ...
inline bool NamesWorker(const std::vector<std::string>& names, const std::string& worker_id) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return worker_id == name || (worker_id.size() > name.size() && worker_id[name.size()] == '#' &&
                                 worker_id.compare(0, name.size(), name) == 0);
  });
}

// How often the owner of sessions calls BreakOffIfStuck.
inline constexpr absl::Duration kSessionCheck = absl::Milliseconds(500);

// State shared by the sessions of a service; outlives them.
struct SessionBounds {
  // Admits the first message of each session, with a deadline: a stream that sends no hello is closed.
  FirstMessages first_messages;
  // Encoded bytes of unconsumed messages of all sessions. Above `max_unconsumed_bytes`, sessions with
  // unconsumed messages stop reading.
  std::atomic<int64_t> unconsumed_bytes{0};
  int64_t max_unconsumed_bytes = int64_t{128} << 20;
  // Encoded bytes of messages that wait to be written, of all sessions.
  std::atomic<int64_t> queued_bytes{0};
  // Number of open sessions.
  std::atomic<int64_t> open{0};
};

template <typename In, typename Out>
class MessageSession final : public ServerCall<MessageSession<In, Out>, In, Out> {
 public:
  struct Callbacks {
    // Called in the order of arrival; the owner calls Consumed() once for each message after handling it.
    std::function<void(std::shared_ptr<MessageSession>, In)> on_message;
    // Called once, last.
    std::function<void(std::shared_ptr<MessageSession>)> on_gone;
  };

  // Starts to read when the port admits it. `context` is the call's.
  static std::shared_ptr<MessageSession> Create(std::string peer, Callbacks callbacks, SessionBounds* bounds,
                                                grpc::CallbackServerContext* context) {
    std::shared_ptr<MessageSession> session(
        new MessageSession(std::move(peer), std::move(callbacks), bounds, context));
    session->Open(session);
    session->Begin(PeerOf(*context), &bounds->first_messages);
    return session;
  }

  ~MessageSession() override {
    bounds_->unconsumed_bytes.fetch_sub(unconsumed_bytes_, std::memory_order_relaxed);
    bounds_->queued_bytes.fetch_sub(queued_bytes_, std::memory_order_relaxed);
    bounds_->open.fetch_sub(1, std::memory_order_relaxed);
  }

  // Queues a message; closes the stream when too many messages, or too many bytes of them, already wait.
  void Send(Out message) {
    const auto bytes = static_cast<int64_t>(message.ByteSizeLong());
    MutexLock lock(&mutex_);
    if (this->ended()) return;
    const size_t waiting = queue_.size() + (this->writing() ? 1 : 0);
    if (waiting >= kMaxQueued || !this->MayQueue(queued_bytes_, bytes, kMaxQueuedBytes)) {
      queue_.clear();
      CountQueued(-queued_bytes_);
      this->SetEnd({grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker does not read its messages"});
    } else {
      queue_.push_back({std::move(message), bytes});
      CountQueued(bytes);
    }
    this->Advance();
  }

  // One message from on_message has been handled.
  void Consumed() {
    MutexLock lock(&mutex_);
    // The end of the session is also an event, but not a message.
    if (unconsumed_.empty()) return;
    bounds_->unconsumed_bytes.fetch_sub(unconsumed_.front(), std::memory_order_relaxed);
    unconsumed_bytes_ -= unconsumed_.front();
    unconsumed_.pop_front();
    if (!read_paused_ || this->finished()) return;
    if (!MayRead() || unconsumed_.size() >= kMaxUnconsumed / 2) return;
    read_paused_ = false;
    this->Read();
  }

  const std::string& peer() const { return peer_; }

 private:
  using Base = ServerCall<MessageSession, In, Out>;
  using Base::mutex_;

  // Limits of the queued messages to the worker: their number, including the one being written, and the
  // encoded bytes of the others.
  static constexpr size_t kMaxQueued = 1024;
  static constexpr int64_t kMaxQueuedBytes = int64_t{64} << 20;
  static constexpr size_t kMaxUnconsumed = 256;
  static constexpr int64_t kMaxUnconsumedBytes = int64_t{16} << 20;

  MessageSession(std::string peer, Callbacks callbacks, SessionBounds* bounds,
                 grpc::CallbackServerContext* context)
      : Base(context), peer_(std::move(peer)), callbacks_(std::move(callbacks)), bounds_(bounds) {
    bounds_->open.fetch_add(1, std::memory_order_relaxed);
  }

  struct Queued {
    Out message;
    int64_t bytes = 0;
  };

  // Adds to the bytes of the queued messages; may be negative.
  void CountQueued(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queued_bytes_ += bytes;
    bounds_->queued_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  // Whether the limits of unconsumed messages allow another one.
  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // A session without unconsumed messages may always read: nothing else would resume it.
    if (unconsumed_.empty()) return true;
    return unconsumed_.size() < kMaxUnconsumed && unconsumed_bytes_ < kMaxUnconsumedBytes &&
           bounds_->unconsumed_bytes.load(std::memory_order_relaxed) < bounds_->max_unconsumed_bytes;
  }

  void OnMessage(In message) override {
    const auto bytes = static_cast<int64_t>(message.ByteSizeLong());
    {
      MutexLock lock(&mutex_);
      unconsumed_.push_back(bytes);
      unconsumed_bytes_ += bytes;
      bounds_->unconsumed_bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
    callbacks_.on_message(this->shared_from_this(), std::move(message));
    MutexLock lock(&mutex_);
    if (this->finished()) return;  // no operation may follow Finish
    if (MayRead()) {
      this->Read();
    } else {
      read_paused_ = true;
    }
  }
  // The worker has closed its side, or its connection is gone.
  void OnNoMessage() override { this->Close(grpc::Status::OK); }
  bool Next(Out& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (queue_.empty()) {
      message = Out();  // frees the memory of the last message: a plan with prompts may be large
      return false;
    }
    message = std::move(queue_.front().message);
    CountQueued(-queue_.front().bytes);
    queue_.pop_front();
    this->CountFrom(MonotonicNow());
    return true;
  }
  void OnGone() override { callbacks_.on_gone(this->shared_from_this()); }

  const std::string peer_;
  const Callbacks callbacks_;
  SessionBounds* const bounds_;

  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Encoded sizes of the unconsumed messages, and their sum.
  std::deque<int64_t> unconsumed_ ABSL_GUARDED_BY(mutex_);
  int64_t unconsumed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool read_paused_ ABSL_GUARDED_BY(mutex_) = false;
};

using WorkerSession = MessageSession<v1::WorkerMessage, v1::RouterMessage>;

}  // namespace bfio::router
