// bfio.v1.Inference: what clients call, on the callback API. Authenticates by the headers, before any message
// is received; then receives, checks and converts. Threads: methods run on gRPC's threads and never block.
// Handler and authenticator outlive the server that the service is registered with.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "bfio/v1/inference.pb.h"
#include "common/auth/ticket_keys.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "router/frontend/request_call.h"
#include "router/frontend/request_handler.h"
#include "router/requests/limits.h"
#include "router/requests/request.h"
#include "router/requests/token_sink.h"

namespace bfio::router {

// bfio.v1.GenerateRequest as a ClientRequest: checked and converted here, and nowhere else. All values that
// are accepted here are in range. Fields unknown to this version are dropped. Pure; any thread.

// `request_id` and `tenant` replace those of the message. INVALID_ARGUMENT naming field, value and limit. A
// bare resume is converted with only the fields that matter for it.
absl::StatusOr<ClientRequest> ToClientRequest(const v1::GenerateRequest& request, std::string request_id,
                                              std::string tenant, const RequestLimits& limits);

inline absl::StatusOr<ClientRequest> ToClientRequest(const v1::GenerateRequest& request,
                                                     const RequestLimits& limits) {
  return ToClientRequest(request, request.request_id(), request.tenant(), limits);
}

// resume_ticket: a client's proof, after a restart of the router, that its request was accepted before.
// Requests that a restart interrupted are admitted ahead of their tenant's limits and of the pool
// (router/requests); no other request is. The first message of a resumable stream carries a ticket. It signs
// all that limits depend on: tenant, request_id, resume_token, prompt, max_new_tokens and priority. It also
// names the model of the tokens, since another model would continue differently. It is valid for the call's
// time, at most kLongest, plus --client_timeout. The keys are in --resume_key_file, which all routers that
// may succeed each other share; without keys there are no tickets. Pure; any thread.
class ResumeTickets {
 public:
  static constexpr absl::Duration kLongest = absl::Hours(1);

  // Without keys.
  ResumeTickets() = default;
  // `beyond`: how long a ticket outlives its call.
  ResumeTickets(TicketKeys keys, absl::Duration beyond)
      : keys_(std::make_shared<const TicketKeys>(std::move(keys))), beyond_(beyond) {}

  // Null: none.
  const std::shared_ptr<const TicketKeys>& keys() const { return keys_; }

  // Makes the ticket once the model of the tokens is known: `model` is its digest, or empty.
  using Issue = std::function<std::string(absl::string_view model)>;

  // For the stream of this request, whose call ends at `deadline`; null: the stream gets no ticket. Times are
  // by the wall clock. A resume gets a ticket only if it is proven: otherwise it may continue a live request
  // whose prompt differs from the one sent with the resume.
  Issue Prepare(const ClientRequest& request, absl::Time deadline, absl::Time now) const;
  // If this ticket was issued for this very request: the digest of the model that generated its tokens; empty
  // digest: unknown.
  std::optional<std::string> ModelOf(absl::string_view ticket, const ClientRequest& request,
                                     absl::Time now) const;

 private:
  std::shared_ptr<const TicketKeys> keys_;
  absl::Duration beyond_;
};

// One client's Generate stream. Once the client's request has come (RequestCall), the decision thread hands
// tokens in (Deliver, End: cheap, never block, never write), and the sender thread writes them (Flush).
// Tokens that come during a write are combined into the next one, so a slow reader costs few writes and one
// bounded vector. Deliver reports a client that reads nothing for too long; it never slows the group.
// Ownership, writes and the end of the call: RequestCall. Threads: as above; OnX are gRPC's.
class ClientStream final : public RequestCall<ClientStream, v1::GenerateRequest, v1::GenerateResponse>,
                           public TokenSink {
 public:
  struct Options {
    // Identifies the stream while the router runs.
    uint64_t id = 0;
    // W3C trace context of the call; empty: none.
    std::string traceparent;
    StreamLimits limits;
    // Counts the streams that are open; may be null, outlives the stream.
    std::atomic<int64_t>* open = nullptr;
    // May set the request's id (SetRequestId).
    OnRequest on_request;
    // Called at most once, on a gRPC thread, when the client goes away or its deadline passes (`timed_out`)
    // after on_request was OK.
    std::function<void(bool timed_out)> on_cancel;
  };

  // `context` is the call's.
  static std::shared_ptr<ClientStream> Create(grpc::CallbackServerContext* context, Options options);
  // The request id in the stream's messages. REQUIRES: before the first Deliver.
  void SetRequestId(std::string request_id) { request_id_ = std::move(request_id); }

  // The first message carries the ticket that `issue` returns; may be null. Call before tokens may come.
  void SetResumeTicket(ResumeTickets::Issue issue) {
    MutexLock lock(&mutex_);
    issue_ticket_ = std::move(issue);
  }

  uint64_t id() const override { return options_.id; }
  const std::string& traceparent() const override { return options_.traceparent; }
  void SetModel(const std::string& digest) override {
    MutexLock lock(&mutex_);
    model_ = digest;
  }
  [[nodiscard]] Delivery Deliver(uint32_t index, absl::Span<const uint32_t> tokens,
                                 const LogprobsView& logprobs, absl::Time now) override;
  void CatchUp(uint32_t index, absl::Span<const uint32_t> tokens, const LogprobsView& logprobs) override;
  [[nodiscard]] bool End(const absl::Status& status, std::optional<router::Finish> finish) override;
  bool Cancelled() override { return ClientCancelled(); }
  void Flush() override { WriteDirty(); }
  void BreakOff() override { BreakOffEnded(); }

 private:
  ClientStream(grpc::CallbackServerContext* context, Options options)
      : RequestCall(context, options.open, std::move(options.on_request)), options_(std::move(options)) {}

  void OnAbandoned(bool timed_out) override { options_.on_cancel(timed_out); }
  bool Next(v1::GenerateResponse& response) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::string request_id_;

  // Called once.
  ResumeTickets::Issue issue_ticket_ ABSL_GUARDED_BY(mutex_);
  std::string model_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> pending_ ABSL_GUARDED_BY(mutex_);
  // The log-probabilities of pending_, for requests with log-probabilities.
  Logprobs pending_logprobs_ ABSL_GUARDED_BY(mutex_);
  uint32_t pending_first_index_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<router::Finish> finish_ ABSL_GUARDED_BY(mutex_);
};

// Random values and signatures of the edge.
struct ClientSecrets {
  // Ids for requests that come without one. They reveal neither the number of other requests nor the time.
  std::function<std::string()> new_request_id = [] { return absl::StrCat("bfio-", RandomId()); };
  ResumeTickets tickets;
};

class InferenceService final : public CallService {
 public:
  // `messages` receives the calls' first messages; it outlives the server, too.
  InferenceService(RequestHandler* handler, Authenticator* authenticator, FirstMessages* messages,
                   const RequestLimits& request_limits, const StreamLimits& stream_limits,
                   ClientSecrets secrets = {});

  // Number of open Generate calls.
  int64_t streams() const { return streams_.load(std::memory_order_relaxed); }

 private:
  using AbortCall = UnaryCall<v1::AbortRequest, v1::AbortResponse>;
  using LoadsCall = UnaryCall<v1::GetLoadsRequest, v1::GetLoadsResponse>;

  ClientStream* Generate(grpc::CallbackServerContext* context);
  AbortCall* Abort(grpc::CallbackServerContext* context);
  LoadsCall* GetLoads(grpc::CallbackServerContext* context);

  // INVALID_ARGUMENT, PERMISSION_DENIED, or the handler's error.
  absl::Status Submit(v1::GenerateRequest request, const Caller& caller, absl::Time deadline,
                      const std::shared_ptr<ClientStream>& stream);

  RequestHandler* const handler_;
  Authenticator* const authenticator_;
  FirstMessages* const messages_;
  const RequestLimits request_limits_;
  const StreamLimits stream_limits_;
  const ClientSecrets secrets_;
  std::atomic<int64_t> streams_{0};
};

}  // namespace bfio::router
