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

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "bfio/v1/inference.pb.h"
#include "common/net/stream_writer.h"
#include "router/requests/limits.h"
#include "router/requests/token_sink.h"

namespace bfio::router {

class ClientStream final
    : public StreamWriter<grpc::ServerWriteReactor<v1::GenerateResponse>, v1::GenerateResponse>,
      public TokenSink {
 public:
  struct Options {
    // Names the stream in the router's life.
    uint64_t id = 0;
    std::string request_id;
    // W3C trace context of the call; empty: none.
    std::string traceparent;
    StreamLimits limits;
    // Called at most once, on a gRPC thread, when the client goes away or its deadline passes (`timed_out`).
    std::function<void(bool timed_out)> on_cancel;
  };

  // `context` is the call's.
  static std::shared_ptr<ClientStream> Create(grpc::CallbackServerContext* context, Options options);

  // The first message carries it. Call before tokens may come.
  void SetResumeTicket(std::string ticket) {
    MutexLock lock(&mutex_);
    resume_ticket_ = std::move(ticket);
  }

  uint64_t id() const override { return options_.id; }
  const std::string& traceparent() const override { return options_.traceparent; }
  [[nodiscard]] Delivery Deliver(uint32_t index, absl::Span<const uint32_t> tokens, absl::Time now) override;
  void CatchUp(uint32_t index, absl::Span<const uint32_t> tokens) override;
  [[nodiscard]] bool End(const absl::Status& status, std::optional<router::Finish> finish) override;
  void Flush() override;
  void BreakOff() override;

  void OnCancel() override;

 private:
  ClientStream(grpc::CallbackServerContext* context, Options options)
      : StreamWriter(context), options_(std::move(options)) {}

  bool Next(v1::GenerateResponse& response) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The router ends the stream: OnCancel, which follows, tells it.
  void OnBroken() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  bool MarkDirty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  std::string resume_ticket_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> pending_ ABSL_GUARDED_BY(mutex_);
  uint32_t pending_first_index_ ABSL_GUARDED_BY(mutex_) = 0;
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;  // waits for Flush
  std::optional<router::Finish> finish_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_CLIENT_STREAM_H_
