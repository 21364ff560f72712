// The router's end of one worker's stream: WorkerLink.Attach, and services like it (worker_port_service.h).
//
// Purpose: messages from the worker are posted to the thread that owns what they are about, in order;
// messages to it are queued and written one after another. Both directions are bounded: reading pauses while
// too many messages, or too many bytes of them, wait for that thread, and a worker that does not take its
// messages is cut off. A worker may answer pings, and so look alive, and never read: the owner calls
// BreakOffIfStuck for that. Ownership, writes and the end of the call: StreamWriter. Threads: Send, Close,
// Consumed and BreakOffIfStuck from the owning thread; OnX are gRPC's.
#ifndef BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_H_
#define BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "bfio/v1/worker.pb.h"
#include "common/net/first_messages.h"
#include "common/net/stream_writer.h"

namespace bfio::router {

// How often whoever owns sessions calls BreakOffIfStuck.
inline constexpr absl::Duration kSessionCheck = absl::Milliseconds(500);

// What the sessions of a service share; outlives them.
struct SessionBounds {
  // When the first message of a session is received, and by when: a stream that never says hello is closed.
  FirstMessages first_messages;
  // Encoded bytes of messages that have not been consumed, of all sessions. Beyond `max_unconsumed_bytes` no
  // session reads on that has any.
  std::atomic<int64_t> unconsumed_bytes{0};
  int64_t max_unconsumed_bytes = int64_t{128} << 20;
  // Sessions now.
  std::atomic<int64_t> open{0};
};

template <typename In, typename Out>
class MessageSession final : public StreamWriter<grpc::ServerBidiReactor<In, Out>, Out>,
                             public FirstMessages::Call,
                             public std::enable_shared_from_this<MessageSession<In, Out>> {
 public:
  struct Callbacks {
    // In the order of arrival; each must be answered by one Consumed() once it has been dealt with.
    std::function<void(std::shared_ptr<MessageSession>, In)> on_message;
    // Once, last.
    std::function<void(std::shared_ptr<MessageSession>)> on_gone;
  };

  // Reads as soon as it is its turn. `context` is the call's.
  static std::shared_ptr<MessageSession> Create(std::string peer, Callbacks callbacks, SessionBounds* bounds,
                                                grpc::CallbackServerContext* context);

  ~MessageSession() override {
    bounds_->unconsumed_bytes.fetch_sub(unconsumed_bytes_, std::memory_order_relaxed);
    bounds_->open.fetch_sub(1, std::memory_order_relaxed);
  }

  // Queues a message; closes the stream when kMaxQueued wait already.
  void Send(Out message);

  // Ends the stream after the queued messages.
  void Close(grpc::Status status);

  // One message from on_message has been dealt with.
  void Consumed();

  const std::string& peer() const { return peer_; }

  bool Receive() override;
  void OnTooLate() override;
  void OnReadDone(bool ok) override;

 private:
  using Writer = StreamWriter<grpc::ServerBidiReactor<In, Out>, Out>;
  using Writer::mutex_;

  // Messages to the worker that wait, the one under way included.
  static constexpr size_t kMaxQueued = 1024;
  static constexpr size_t kMaxUnconsumed = 256;
  static constexpr int64_t kMaxUnconsumedBytes = int64_t{16} << 20;

  MessageSession(std::string peer, Callbacks callbacks, SessionBounds* bounds,
                 grpc::CallbackServerContext* context)
      : Writer(context), peer_(std::move(peer)), callbacks_(std::move(callbacks)), bounds_(bounds) {
    bounds_->open.fetch_add(1, std::memory_order_relaxed);
  }

  // Whether what waits for the owner leaves room for another message.
  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  bool Next(Out& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnGone() override { callbacks_.on_gone(this->shared_from_this()); }

  const std::string peer_;
  const Callbacks callbacks_;
  SessionBounds* const bounds_;
  // Of gRPC's reactions.
  bool first_came_ = false;
  In incoming_;  // belongs to gRPC while a read is under way

  std::deque<Out> queue_ ABSL_GUARDED_BY(mutex_);
  // Encoded sizes of the messages that have not been consumed, and their sum.
  std::deque<int64_t> unconsumed_ ABSL_GUARDED_BY(mutex_);
  int64_t unconsumed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool read_paused_ ABSL_GUARDED_BY(mutex_) = false;
};

using WorkerSession = MessageSession<v1::WorkerMessage, v1::RouterMessage>;
extern template class MessageSession<v1::WorkerMessage, v1::RouterMessage>;

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_H_
