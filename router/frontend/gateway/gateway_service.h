// An engine's API as gateways call it, on the callback API. Presents the handler as one engine; the handler
// balances among the ranks. Authenticates by the headers, before any message is received; then receives,
// checks and converts. Protocols have no field for what headers carry: the tenant ("bfio-tenant"; the token's
// owner without it) and the objective for the first token ("x-slo-ttft-ms", as in llm-d). Threads: methods
// run on gRPC's threads and never block. Handler and authenticator outlive the server that the service is
// registered with.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "common/net/any_message.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "engines/smg_common.pb.h"
#include "router/frontend/gateway/answers.h"
#include "router/frontend/gateway/generate_stream.h"
#include "router/frontend/gateway/protocol.h"
#include "router/frontend/gateway/request_fields.h"
#include "router/frontend/request_handler.h"
#include "router/frontend/tokenizer/model_files.h"
#include "router/requests/limits.h"

namespace bfio::router::gateway {

// Load records for gateways that subscribe to them. Engines attach a load record to every batch of KV cache
// events on this stream. The router has no such events, so the records are sent alone: at most one per rank
// every 100 ms when the load has changed, and one per second otherwise. Without subscribers the load is not
// read. A subscriber that reads slowly gets only the newest record. Ownership: outlived by the handler;
// outlives the server, and Close ends its streams. Threads: any, plus one of its own.

namespace common_pb = ::smg::grpc::common;

class LoadFeed {
 public:
  static constexpr size_t kMaxSubscribers = 64;

  using Stream = CallReactor;

  explicit LoadFeed(RequestHandler* handler, absl::Duration interval = absl::Milliseconds(100));
  ~LoadFeed();

  // gRPC owns the result. It ends with `allowed` if that is an error, before its request is received (by
  // `messages`, which outlives it); with UNIMPLEMENTED for a subscriber that accepts no record before the
  // first event, since there are no events; with RESOURCE_EXHAUSTED beyond the peer's share of
  // kMaxSubscribers.
  Stream* Subscribe(grpc::CallbackServerContext* context, const absl::StatusOr<Peer>& allowed,
                    FirstMessages* messages);

  // Ends all streams and refuses new ones.
  void Close();

 private:
  class Subscriber;
  // Shared with the requested answer, which may come late.
  struct Answer;

  void Run();
  // Waits at most a second for an answer; UNKNOWN: none came.
  absl::StatusOr<Loads> Query();
  bool HasNewcomers();
  // False when the thread should end.
  bool AwaitSubscribers();
  bool Pause(absl::Duration time);
  void Add(const std::shared_ptr<Subscriber>& subscriber);
  void Publish(const common_pb::EngineLoad& load);

  RequestHandler* const handler_;
  const absl::Duration interval_;
  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Subscriber>> subscribers_ ABSL_GUARDED_BY(mutex_);
  // There is a new subscriber that has had no record yet.
  bool newcomers_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

struct GatewayOptions {
  RequestLimits request_limits;
  StreamLimits stream_limits;
  // The model's name for gateways; empty: the last part of its directory, or "bfio".
  std::string model_name;
  // The model's files; null: only the gateway has them.
  std::shared_ptr<const ModelFiles> model;
  // Creates ids for requests that come without one.
  std::function<std::string()> new_request_id;
  // The engines use this protocol: requests and answers pass unchanged.
  bool passes = false;
};

class GatewayService final : public CallService {
 public:
  // Requests that one Abort may name.
  static constexpr size_t kMaxAborts = 256;
  // GetTokenizer calls at the same time; a caller has a share of them.
  static constexpr int64_t kMaxTokenizers = 64;

  // `messages` receives the calls' first messages; it outlives the server, too, as `protocol` does.
  GatewayService(const Protocol& protocol, RequestHandler* handler, Authenticator* authenticator,
                 FirstMessages* messages, GatewayOptions options);

  // Number of open Generate calls.
  int64_t streams() const { return streams_.load(std::memory_order_relaxed); }
  // Ends the streams that would not end by themselves.
  void Close() { feed_.Close(); }

 private:
  struct Asker : Caller {
    // The call's metadata has kMayResampleHeader.
    bool may_resample = false;
    // Of the header kTtftHeader.
    std::optional<absl::Duration> ttft_objective;
  };
  using Call = UnaryCall<AnyMessage, AnyMessage>;
  using CallPtr = std::shared_ptr<Call>;

  // UNAUTHENTICATED, or INVALID_ARGUMENT for a header with an invalid value.
  absl::StatusOr<Asker> AskerOf(const grpc::CallbackServerContext& context);
  void AddInformation();
  // The full name of a method; gRPC does not copy it.
  const char* Path(const char* method);
  // `request`: the type of the request.
  void AddUnary(const char* method, const Message& request,
                std::function<void(const CallPtr&, const Message& request)> answer);
  // Replies with what `fill` makes of the present loads.
  void ReplyWithLoads(const CallPtr& call, std::function<absl::StatusOr<MessagePtr>(const Loads&)> fill);

  GenerateStream* Generate(grpc::CallbackServerContext* context);
  // INVALID_ARGUMENT, PERMISSION_DENIED, or the handler's error.
  absl::Status Submit(AnyMessage request, const Asker& asker, const std::shared_ptr<GenerateStream>& stream);
  absl::Status SubmitOutputs(ConvertedRequest converted, const std::shared_ptr<GenerateStream>& stream);

  Call* Abort(grpc::CallbackServerContext* context);
  void AbortAll(const CallPtr& call, const Message& request, const Asker& asker);

  const Protocol& protocol_;
  RequestHandler* const handler_;
  Authenticator* const authenticator_;
  FirstMessages* const messages_;
  const GatewayOptions options_;
  const absl::Time started_;
  std::list<std::string> paths_;
  std::atomic<int64_t> streams_{0};
  // Tokenizers that are being sent: a call holds up to 150 KB of what its client has not read.
  const std::shared_ptr<SharedCapacity> tokenizers_ = std::make_shared<SharedCapacity>(kMaxTokenizers);
  const std::shared_ptr<SharedCapacity> kept_ =
      std::make_shared<SharedCapacity>(GenerateStream::kMostKeptWords);
  LoadFeed feed_;
};

}  // namespace bfio::router::gateway
