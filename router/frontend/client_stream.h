// One client's Generate stream.
//
// Purpose: the client's request comes in (FirstMessages), is converted and freed: gRPC keeps no copy of a
// prompt for as long as the call lasts. Then the decision thread hands tokens in (Deliver, End: cheap, never
// block, never write), the sender thread writes them (Flush). Tokens that arrive while a write is under way
// are coalesced into the next one, so a slow reader is paced and costs one bounded vector. Deliver reports a
// client that takes nothing for too long; such a client never slows the group. Ownership, writes and the end
// of the call: StreamWriter. Threads: as above; OnX are gRPC's.
#ifndef BFIO_ROUTER_FRONTEND_CLIENT_STREAM_H_
#define BFIO_ROUTER_FRONTEND_CLIENT_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
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
#include "common/net/first_messages.h"
#include "common/net/stream_writer.h"
#include "router/requests/limits.h"
#include "router/requests/token_sink.h"

namespace bfio::router {

class ClientStream final
    : public StreamWriter<grpc::ServerBidiReactor<v1::GenerateRequest, v1::GenerateResponse>,
                          v1::GenerateResponse>,
      public TokenSink,
      public FirstMessages::Call,
      public std::enable_shared_from_this<ClientStream> {
 public:
  struct Options {
    // Names the stream in the router's life.
    uint64_t id = 0;
    // W3C trace context of the call; empty: none.
    std::string traceparent;
    StreamLimits limits;
    // Counts the streams that are open; may be null, outlives the stream.
    std::atomic<int64_t>* open = nullptr;
    // Called at most once, on a gRPC thread, with the client's request. It may say the request's id
    // (SetRequestId). With an error the stream ends; with OK it is ended by whoever has taken it over.
    std::function<absl::Status(const std::shared_ptr<ClientStream>&, v1::GenerateRequest)> on_request;
    // Called at most once, on a gRPC thread, when the client goes away or its deadline passes (`timed_out`)
    // after on_request was OK.
    std::function<void(bool timed_out)> on_cancel;
  };

  // `context` is the call's.
  static std::shared_ptr<ClientStream> Create(grpc::CallbackServerContext* context, Options options);
  // Has the client's request received; `messages` outlives the stream. Without it nothing is.
  void AwaitRequest(FirstMessages* messages);
  // Of what the stream sends. REQUIRES: before the first Deliver.
  void SetRequestId(std::string request_id) { request_id_ = std::move(request_id); }

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

  bool Receive() override;
  void OnTooLate() override;
  void OnReadDone(bool ok) override;
  void OnCancel() override;

 private:
  // What becomes of a cancellation.
  enum class Phase {
    // The request has not come: the stream ends itself.
    kAwaiting,
    // It is being handed over: `cancelled_` is kept until then.
    kHandingOver,
    // on_cancel tells the stream's owner.
    kHandedOver,
  };

  ClientStream(grpc::CallbackServerContext* context, Options options)
      : StreamWriter(context), options_(std::move(options)), created_(std::chrono::system_clock::now()) {
    if (options_.open != nullptr) options_.open->fetch_add(1, std::memory_order_relaxed);
  }

  void OnGone() override {
    if (options_.open != nullptr) options_.open->fetch_sub(1, std::memory_order_relaxed);
  }

  bool Next(v1::GenerateResponse& response) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The router ends the stream: OnCancel, which follows, tells it.
  void OnBroken() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  bool MarkDirty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Hands the request over. The stream's status if it ends with that.
  absl::Status HandOver();
  void EndNow(const absl::Status& status);
  bool TimedOut() const;

  const Options options_;
  const std::chrono::system_clock::time_point created_;
  std::string request_id_;
  FirstMessages* messages_ = nullptr;
  // Belongs to gRPC while it is received, and is freed when it has been handed over.
  std::unique_ptr<v1::GenerateRequest> request_;  // changed under mutex_

  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kAwaiting;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::string resume_ticket_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> pending_ ABSL_GUARDED_BY(mutex_);
  uint32_t pending_first_index_ ABSL_GUARDED_BY(mutex_) = 0;
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;  // waits for Flush
  std::optional<router::Finish> finish_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_CLIENT_STREAM_H_
