// The router's end of one worker's stream: WorkerLink.Attach, and ChainPool.Join.
//
// Purpose: messages from the worker are posted to the thread that owns what they are about, in order;
// messages to it are queued and written one after another. Both directions are bounded: reading pauses while
// too many messages wait for that thread, and a worker that does not take its messages is cut off. Ownership:
// gRPC and the router share it, as with ClientStream. Threads: Send, Close and Consumed from the owning
// thread; OnX are gRPC's.
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
#include "common/base/mutex.h"

namespace bfio::router {

// How often whoever owns sessions calls BreakOffIfStuck.
inline constexpr absl::Duration kSessionCheck = absl::Milliseconds(500);

template <typename In, typename Out>
class MessageSession final : public grpc::ServerBidiReactor<In, Out> {
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

  // Breaks the call off when the worker has not taken a message for so long: it may answer pings, and so look
  // alive, and never read. True when it did. Time is MonotonicNow. Must not be called under a lock: gRPC may
  // run other calls' reactions in here.
  bool BreakOffIfStuck(absl::Time now, absl::Duration patience);

  // One message from on_message has been dealt with.
  void Consumed();

  const std::string& peer() const { return peer_; }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  static constexpr size_t kMaxQueued = 1024;
  static constexpr int kMaxUnconsumed = 256;

  MessageSession(std::string peer, Callbacks callbacks, grpc::CallbackServerContext* context)
      : peer_(std::move(peer)), callbacks_(std::move(callbacks)), context_(context) {}

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MaybeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string peer_;
  const Callbacks callbacks_;
  // Good until Finish has been called, at least.
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<MessageSession> self_;  // held until OnDone
  In incoming_;                           // belongs to gRPC while a read is under way

  Mutex mutex_;
  std::deque<Out> queue_ ABSL_GUARDED_BY(mutex_);  // the front is being written when writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // BreakOffIfStuck uses the context: no Finish now.
  bool breaking_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time write_started_ ABSL_GUARDED_BY(mutex_);
  grpc::Status close_status_ ABSL_GUARDED_BY(mutex_);
  int unconsumed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool read_paused_ ABSL_GUARDED_BY(mutex_) = false;
};

using WorkerSession = MessageSession<v1::WorkerMessage, v1::RouterMessage>;
extern template class MessageSession<v1::WorkerMessage, v1::RouterMessage>;
extern template class MessageSession<v1::ServerMessage, v1::PoolMessage>;

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_SESSION_H_
