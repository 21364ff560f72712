// The router's end of one worker's stream: WorkerLink.Attach, and ChainPool.Join.
//
// Purpose: messages from the worker are posted to the thread that owns what they are about, in order;
// messages to it are queued and written one after another. Both directions are bounded: reading pauses while
// too many messages wait for that thread, and a worker that does not take its messages is cut off. A worker
// may answer pings, and so look alive, and never read: the owner calls BreakOffIfStuck for that. Ownership,
// writes and the end of the call: StreamWriter. Threads: Send, Close, Consumed and BreakOffIfStuck from the
// owning thread; OnX are gRPC's.
#ifndef BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_H_
#define BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "bfio/v1/pipeline.pb.h"
#include "bfio/v1/worker.pb.h"
#include "common/net/stream_writer.h"

namespace bfio::router {

// How often whoever owns sessions calls BreakOffIfStuck.
inline constexpr absl::Duration kSessionCheck = absl::Milliseconds(500);

template <typename In, typename Out>
class MessageSession final : public StreamWriter<grpc::ServerBidiReactor<In, Out>, Out>,
                             public std::enable_shared_from_this<MessageSession<In, Out>> {
 public:
  struct Callbacks {
    // In the order of arrival; each must be answered by one Consumed() once it has been dealt with.
    std::function<void(std::shared_ptr<MessageSession>, In)> on_message;
    // Once, last.
    std::function<void(std::shared_ptr<MessageSession>)> on_gone;
  };

  // Starts reading at once. `context` is the call's; without one the call cannot be broken off.
  static std::shared_ptr<MessageSession> Create(std::string peer, Callbacks callbacks,
                                                grpc::CallbackServerContext* context = nullptr);

  // Queues a message; closes the stream when kMaxQueued wait already.
  void Send(Out message);

  // Ends the stream after the queued messages.
  void Close(grpc::Status status);

  // One message from on_message has been dealt with.
  void Consumed();

  const std::string& peer() const { return peer_; }

  void OnReadDone(bool ok) override;

 private:
  using Writer = StreamWriter<grpc::ServerBidiReactor<In, Out>, Out>;
  using Writer::mutex_;

  // Messages to the worker that wait, the one under way included.
  static constexpr size_t kMaxQueued = 1024;
  static constexpr int kMaxUnconsumed = 256;

  MessageSession(std::string peer, Callbacks callbacks, grpc::CallbackServerContext* context)
      : Writer(context), peer_(std::move(peer)), callbacks_(std::move(callbacks)) {}

  bool Next(Out& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnGone() override { callbacks_.on_gone(this->shared_from_this()); }

  const std::string peer_;
  const Callbacks callbacks_;
  In incoming_;  // belongs to gRPC while a read is under way

  std::deque<Out> queue_ ABSL_GUARDED_BY(mutex_);
  int unconsumed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool read_paused_ ABSL_GUARDED_BY(mutex_) = false;
};

using WorkerSession = MessageSession<v1::WorkerMessage, v1::RouterMessage>;
extern template class MessageSession<v1::WorkerMessage, v1::RouterMessage>;
extern template class MessageSession<v1::ServerMessage, v1::PoolMessage>;

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_H_
