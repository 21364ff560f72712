// One client's Generate stream.
//
// Purpose: the decision thread hands tokens in (Deliver, End: cheap, never block, never write), the sender
// thread writes them (Flush). Tokens that arrive while a write is under way are coalesced into the next one,
// so a slow reader is paced and costs one bounded vector. Deliver reports a client that takes nothing for too
// long; such a client never slows the group. Ownership, writes and the end of the call: StreamWriter.
// Threads: as above; OnX are gRPC's.
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
#include "common/net/stream_writer.h"
#include "router/app/options.h"

namespace bfio::router {

class ClientStream final
    : public StreamWriter<grpc::ServerWriteReactor<v1::GenerateResponse>, v1::GenerateResponse> {
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

  // Breaks the call off if it has been ended and a write still waits for the client. Same requirements as
  // BreakOffIfStuck.
  void BreakOff();

  void OnCancel() override;

 private:
  ClientStream(grpc::CallbackServerContext* context, uint64_t id, std::string request_id,
               const StreamLimits& limits, std::function<void(bool)> on_cancel)
      : StreamWriter(context),
        id_(id),
        request_id_(std::move(request_id)),
        limits_(limits),
        on_cancel_(std::move(on_cancel)) {}

  bool Next(v1::GenerateResponse& response) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The router ends the stream: OnCancel, which follows, tells it.
  void OnBroken() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  bool MarkDirty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::string traceparent_;
  const uint64_t id_;
  const std::string request_id_;
  const StreamLimits limits_;
  const std::function<void(bool)> on_cancel_;

  std::vector<uint32_t> pending_ ABSL_GUARDED_BY(mutex_);
  uint32_t pending_first_index_ ABSL_GUARDED_BY(mutex_) = 0;
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;  // waits for Flush
  std::optional<v1::Finish> finish_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_CLIENT_STREAM_H_
