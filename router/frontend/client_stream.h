// One client's Generate stream.
//
// Purpose: tokens are handed in by the decision thread (Deliver, End: cheap, never block, never write),
// written by the sender thread (Flush), and coalesced while a write is under way: a slow reader is paced, and
// costs one bounded vector; one that takes nothing for too long is told on by Deliver, and never slows the
// group. Ownership: gRPC and the router share it; it lives until gRPC is done with the call and the last
// shared_ptr is gone. Threads: as said above; OnX are gRPC's.
#ifndef BFIO_ROUTER_FRONTEND_CLIENT_STREAM_H_
#define BFIO_ROUTER_FRONTEND_CLIENT_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "bfio/v1/inference.pb.h"
#include "common/base/mutex.h"
#include "router/app/options.h"

namespace bfio::router {

class ClientStream final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  // `id` names the stream in the router's life. `on_cancel` is called at most once, on a gRPC thread, when
  // the client goes away or its deadline passes (`timed_out`). `context` is the call's.
  static std::shared_ptr<ClientStream> Create(grpc::CallbackServerContext* context, uint64_t id,
                                              std::string request_id, const StreamLimits& limits,
                                              std::function<void(bool timed_out)> on_cancel);

  uint64_t id() const { return id_; }

  // W3C trace context of the call. Set before the stream is shared.
  void set_traceparent(std::string traceparent) { traceparent_ = std::move(traceparent); }
  const std::string& traceparent() const { return traceparent_; }

  enum class Delivery {
    kTaken,
    kFlush,    // and the caller must have Flush called (once)
    kTooSlow,  // not taken: the client does not read; the caller should end the stream
  };
  // Appends tokens to what is to be written. REQUIRES: they follow those of the last call. Time is
  // MonotonicNow.
  [[nodiscard]] Delivery Deliver(uint32_t index, absl::Span<const uint32_t> tokens, absl::Time now);
  [[nodiscard]] Delivery Deliver(uint32_t index, uint32_t token, absl::Time now) {
    return Deliver(index, absl::MakeConstSpan(&token, 1), now);
  }
  // Once, before any other Deliver: what a client that came back has missed, however much that is.
  void CatchUp(uint32_t index, absl::Span<const uint32_t> tokens);

  // Ends the stream after what was delivered: with `finish` and OK, or with an error. Later calls do nothing.
  // Returns true when the caller must have Flush called.
  [[nodiscard]] bool End(grpc::Status status, std::optional<v1::Finish> finish);

  // Starts a write if there is something to write and none is under way.
  void Flush();

  // Breaks the call off if it has been ended and still waits for the client. Must not be called under a lock:
  // gRPC may run other calls' reactions in here.
  void BreakOff();

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  ClientStream(grpc::CallbackServerContext* context, uint64_t id, std::string request_id,
               const StreamLimits& limits, std::function<void(bool)> on_cancel)
      : id_(id),
        request_id_(std::move(request_id)),
        limits_(limits),
        on_cancel_(std::move(on_cancel)),
        context_(context) {}

  bool MarkDirty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::string traceparent_;
  const uint64_t id_;
  const std::string request_id_;
  const StreamLimits limits_;
  const std::function<void(bool)> on_cancel_;
  // Good until Finish has been called, at least.
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<ClientStream> self_;  // held until OnDone

  Mutex mutex_;
  std::vector<uint32_t> pending_ ABSL_GUARDED_BY(mutex_);
  uint32_t pending_first_index_ ABSL_GUARDED_BY(mutex_) = 0;
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;     // waits for Flush
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;   // a write is under way; response_ belongs to gRPC
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;    // a write failed: only Finish is left to do
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;     // End was called
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC was told to finish
  bool breaking_ ABSL_GUARDED_BY(mutex_) = false;  // BreakOff uses the context: no Finish now
  // Since when the write under way has not been taken, while tokens wait behind it.
  std::optional<absl::Time> stuck_since_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Finish> finish_ ABSL_GUARDED_BY(mutex_);
  v1::GenerateResponse response_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_CLIENT_STREAM_H_
