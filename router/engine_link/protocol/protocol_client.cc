#include "router/engine_link/protocol/protocol_client.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/net/any_message.h"
#include "common/net/channel.h"
#include "common/net/client_reactor.h"
#include "common/net/status.h"
#include "common/net/tls.h"
#include "common/net/tsan_edge.h"
#include "engines/smg_common.pb.h"
#include "google/protobuf/empty.pb.h"
#include "router/engine_link/protocol/engine_protocol.h"
#include "router/engine_link/protocol/stream_counts.h"
#include "router/requests/passed_trailers.h"

namespace bfio::router {
namespace {

namespace common_pb = ::smg::grpc::common;

// Bounds of one message: with log-probabilities, perhaps of a whole prompt; of load records, which events
// may accompany; and any other, besides 10 bytes for each token that may come.
constexpr int kMaxEngineMessageBytes = 8 << 20;
constexpr size_t kMaxRecordBytes = 4 << 20, kMaxControlBytes = 1 << 20;
constexpr int kMaxEngineHeaderBytes = 1 << 20;
constexpr absl::Duration kAbortTimeout = absl::Seconds(5);
// Bound of what a server has sent and gRPC has not passed on. Beyond it gRPC ends calls of this server.
constexpr size_t kMaxEngineUnreadBytes = 24 << 20;
// Bound of the server's large messages until their clients have read them, each counted twice: as it is
// written, it is copied.
constexpr int64_t kMaxEngineKeptBytes = 32 << 20;
// Larger ones take part in it. The memory of smaller ones is used again.
constexpr size_t kLargeBytes = 4 << 10;
// The type of requests without fields, and of responses that are not read.
const google::protobuf::Message& Nothing() {
  return google::protobuf::Empty::default_instance();
}

// As the engine last reported; also for answers that come late.
struct EngineSizes {
  std::atomic<int64_t> context_tokens{0};
  // EngineDescription::vocabulary.
  std::atomic<uint32_t> vocabulary{0};
  // Number of ranks whose KV tokens the engine adds up in its report of one rank.
  std::atomic<int64_t> kv_share{1};
  // KV tokens of a rank; 0: not reported.
  std::atomic<int64_t> kv_tokens{0};
  // EngineDescription::joined_ranks.
  std::atomic<int32_t> joined_ranks{1};
};

// What calls need; they may outlive the client.
struct Link {
  Link(const EngineProtocol& protocol, std::shared_ptr<grpc::Channel> channel)
      : protocol(protocol), channel(DestroyOnOwnThread(std::move(channel))) {}

  std::string Path(const char* method) const { return absl::StrCat("/", protocol.traits.name, "/", method); }
  // The call starts with the reactor's StartCall.
  void StartStream(const char* method, grpc::ClientContext& context, const AnyMessage& request,
                   grpc::ClientReadReactor<AnyMessage>& reactor) const {
    const std::string path = Path(method);
    grpc::internal::ClientCallbackReaderFactory<AnyMessage>::Create(
        channel.get(),
        grpc::internal::RpcMethod(path.c_str(), nullptr, grpc::internal::RpcMethod::SERVER_STREAMING),
        &context, &request, &reactor);
  }

  const EngineProtocol& protocol;
  const std::shared_ptr<grpc::Channel> channel;
  const std::shared_ptr<SharedCapacity> kept = std::make_shared<SharedCapacity>(kMaxEngineKeptBytes);
  mutable EngineSizes sizes;
};
using LinkPtr = std::shared_ptr<const Link>;

absl::Status Unreadable() {
  return absl::DataLossError("the engine sent a message that cannot be parsed, or is too large");
}

// A call with one answer; deletes itself when it is over.
class UnaryRequest {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<AnyMessage>) &&>;

  // `response`: the type of the answer.
  static void Start(const LinkPtr& link, const char* method, const google::protobuf::Message& response,
                    absl::Duration timeout, Done done, AnyMessage request = AnyMessage::Of(Nothing())) {
    auto* call = new UnaryRequest(link, std::move(request), AnyMessage::Of(response, kMaxControlBytes),
                                  std::move(done));
    call->context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    const std::string path = link->Path(method);
    GrpcHandOver(call);
    grpc::internal::CallbackUnaryCall(
        link->channel.get(),
        grpc::internal::RpcMethod(path.c_str(), nullptr, grpc::internal::RpcMethod::NORMAL_RPC),
        &call->context_, &call->request_, &call->response_, [call](const grpc::Status& status) {
          GrpcTakeOver(call);
          if (status.ok() && call->response_) {
            std::move(call->done_)(std::move(call->response_));
          } else {
            std::move(call->done_)(status.ok() ? Unreadable() : FromGrpcStatus(status));
          }
          delete call;
        });
  }

 private:
  UnaryRequest(LinkPtr link, AnyMessage request, AnyMessage response, Done done)
      : link_(std::move(link)),
        request_(std::move(request)),
        response_(std::move(response)),
        done_(std::move(done)) {}

  // Released last: the context refers to the channel.
  const LinkPtr link_;
  grpc::ClientContext context_;
  const AnyMessage request_;
  AnyMessage response_;
  Done done_;
};

// Adds the load of one of several ranks that the router treats as one.
void Add(const EngineLoad& load, EngineLoad& sum) {
  sum.requests += load.requests;
  sum.tokens += load.tokens;
}

// A subscription to KV events, of which only the load records are used; keeps itself until it is over.
class RecordStream final : public EngineRecords, public ClientReactor<grpc::ClientReadReactor<AnyMessage>> {
 public:
  RecordStream(LinkPtr link, EngineClient::RecordCallbacks callbacks)
      : link_(std::move(link)), callbacks_(std::move(callbacks)) {
    auto request = std::make_unique<common_pb::SubscribeKvEventsRequest>();
    request->set_load_records_before_first_batch(true);
    request_ = AnyMessage(std::move(request));
  }

  static std::shared_ptr<RecordStream> Start(std::shared_ptr<RecordStream> stream) {
    stream->self_ = stream;
    stream->link_->StartStream("SubscribeKvEvents", stream->context_, stream->request_, *stream);
    GrpcHandOver(stream.get());
    stream->StartRead(&stream->batch_);
    stream->StartCall();
    return stream;
  }

  void Cancel() override { context_.TryCancel(); }

  std::vector<EngineRankLoad> Take() override {
    MutexLock lock(&mutex_);
    notified_ = false;
    std::vector<EngineRankLoad> loads;
    for (auto& [rank, record] : records_) {
      if (std::exchange(record.taken, true)) continue;
      loads.push_back({rank, record.load});
    }
    const int32_t joined = link_->sizes.joined_ranks;
    if (joined == 1 || loads.empty()) return loads;
    // Some ranks send no records: GetLoads is used instead.
    if (std::ssize(records_) < joined) return {};
    loads.assign(1, {});
    for (const auto& [rank, record] : records_) Add(record.load, loads[0].load);
    return loads;
  }

  void OnReadDone(bool ok) override {
    const GrpcReaction reaction(this);
    if (!ok) return;
    if (!batch_) return Cancel();
    if (batch().has_load() && Keep()) callbacks_.on_records();
    GrpcHandOver(this);
    StartRead(&batch_);
  }
  void OnDone(const grpc::Status& status) override {
    GrpcTakeOver(this);
    const std::shared_ptr<RecordStream> last = std::move(self_);
    std::move(callbacks_.on_end)(FromGrpcStatus(status));
  }

 private:
  // Far above any server's.
  static constexpr size_t kMostRanks = 1024;
  struct Record {
    uint64_t sample = 0;
    EngineLoad load;
    bool taken = false;
  };

  const common_pb::KvEventBatch& batch() const { return batch_.As<common_pb::KvEventBatch>(); }
  // Whether the caller must be told to call Take.
  bool Keep() {
    const common_pb::EngineLoad& from = batch().load();
    MutexLock lock(&mutex_);
    if (records_.size() >= kMostRanks && !records_.contains(batch().dp_rank())) return false;
    Record& record = records_[batch().dp_rank()];
    // The record is out of order. Some servers do not number records.
    if (from.sample() > 0 && from.sample() <= record.sample) return false;
    record = {from.sample(), {int64_t{from.running_requests()} + from.waiting_requests(), UsedTokens(from)}};
    return !std::exchange(notified_, true);
  }
  // Records that come with events have only the share in use, and no token count.
  int64_t UsedTokens(const common_pb::EngineLoad& from) const {
    if (from.has_num_used_tokens())
      return std::max<int64_t>(0, from.num_used_tokens()) / link_->sizes.kv_share;
    const bool is_share = from.token_usage() >= 0 && from.token_usage() <= 1;
    return is_share ? static_cast<int64_t>(from.token_usage() * static_cast<double>(link_->sizes.kv_tokens))
                    : 0;
  }

  const LinkPtr link_;
  EngineClient::RecordCallbacks callbacks_;
  grpc::ClientContext context_;
  AnyMessage request_;
  AnyMessage batch_ = AnyMessage::Of(common_pb::KvEventBatch::default_instance(), kMaxRecordBytes);
  std::shared_ptr<RecordStream> self_;
  Mutex mutex_;
  // By the engine's number of the rank. `notified_`: on_records has been called since the last Take.
  absl::flat_hash_map<int32_t, Record> records_ ABSL_GUARDED_BY(mutex_);
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

// Keeps itself until the call is over.
class ProtocolStream final : public EngineStream, public ClientReactor<grpc::ClientReadReactor<AnyMessage>> {
 public:
  ProtocolStream(LinkPtr link, const EngineCall& call, std::optional<int32_t> rank, const std::string& name,
                 EngineClient::StreamCallbacks callbacks)
      : link_(std::move(link)),
        name_(name),
        counts_({.cumulative = protocol().traits.chunks_count_all,
                 .prompt_tokens = call.prompt_tokens(),
                 .max_new_tokens = call.max_new_tokens,
                 .context_tokens = protocol().traits.fills_context ? link_->sizes.context_tokens.load() : 0,
                 .vocabulary = link_->sizes.vocabulary}),
        passes_(call.passed.on),
        hands_over_(call.hands_over),
        meets_(call.hands_over && KvConnectorOf(call.kv_source.connector).in_parallel()),
        kv_source_(call.kv_source),
        before_(call.passed.on ? static_cast<uint32_t>(call.prompt.size()) : 0),
        request_(protocol().RequestOf(call, rank, name)),
        callbacks_(std::move(callbacks)),
        response_(AnyMessage::Of(protocol().types.output, MostBytes(call))) {
    if (!call.traceparent.empty()) context_.AddMetadata("traceparent", call.traceparent);
  }

  static std::shared_ptr<ProtocolStream> Start(std::shared_ptr<ProtocolStream> stream) {
    stream->self_ = stream;
    stream->link_->StartStream("Generate", stream->context_, stream->request_, *stream);
    GrpcHandOver(stream.get());
    stream->StartRead(&stream->response_);
    stream->StartCall();
    return stream;
  }

  void Cancel() override {
    context_.TryCancel();
    if (AnyMessage abort = protocol().AbortOf(name_))
      UnaryRequest::Start(
          link_, "Abort", Nothing(), kAbortTimeout, [](const auto&) {}, std::move(abort));
  }

  void OnReadDone(bool ok) override {
    const GrpcReaction reaction(this);
    if (!ok) return;
    if (absl::Status status = Take(); !status.ok()) {
      broken_ = std::move(status);
      Cancel();
      return;
    }
    if (!passes_ && (*response_).SpaceUsedLong() > kLargeBytes)
      response_ = AnyMessage::Of(protocol().types.output, response_.most_bytes());
    GrpcHandOver(this);
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    GrpcTakeOver(this);
    const std::shared_ptr<ProtocolStream> last = std::move(self_);
    if (ended_) return;
    absl::Status end;
    if (!broken_.ok()) {
      end = broken_;
    } else if (TooLarge(status)) {
      // OUT_OF_RANGE and not RESOURCE_EXHAUSTED: a retry would fail again, on any engine.
      end = absl::OutOfRangeError(
          absl::StrCat("a message between router and engine is too large: ", status.error_message(),
                       "; set stream: true, which sends smaller ones"));
    } else if (!status.ok()) {
      end = FromGrpcStatus(status);
      if (passes_) TakeTrailers(end);
    } else {
      end = absl::DataLossError("the engine ended the stream without a final message");
    }
    std::move(callbacks_.on_end)(std::move(end));
  }

 private:
  const EngineProtocol& protocol() const { return link_->protocol; }

  // Only messages for the client have log-probabilities.
  static size_t MostBytes(const EngineCall& call) {
    return call.passed.on && !call.hands_over ? size_t{kMaxEngineMessageBytes}
                                              : kMaxControlBytes + size_t{10} * call.max_new_tokens;
  }

  absl::Status Take() {
    if (!response_) return Unreadable();
    // The output has ended; later messages do not belong to it.
    if (ended_) return absl::OkStatus();
    const EngineOutput output = protocol().Read(*response_);
    if (output.index != 0) return WrongOutput(output.index);
    std::shared_ptr<CapacityShare> share;
    if (const size_t bytes = passes_ ? (*response_).SpaceUsedLong() : 0; bytes > kLargeBytes) {
      share = std::make_shared<CapacityShare>(link_->kept);
      if (!share->Take({name_, ""}, 2 * static_cast<int64_t>(bytes))) return TooMuch();
    }
    // The rank that decodes sends the token, too.
    if (meets_ && !output.ends) return absl::OkStatus();
    if (meets_) {
      ended_ = true;
      std::move(callbacks_.on_end)(EngineEnd{.finish = output.finish});
      return absl::OkStatus();
    }
    if (output.ends) {
      BFIO_RETURN_IF_ERROR(
          counts_.OnComplete(output.ids, output.completion_tokens, output.prompt_tokens, output.finish));
      EngineEnd end{.finish = output.finish};
      // Taken also out of a message for the client.
      std::string answer = hands_over_ ? protocol().TakeHandOff(*response_) : "";
      if (hands_over_ && output.finish == EngineFinish::kLength) {
        BFIO_ASSIGN_OR_RETURN(end.hand_off, HandOffFrom(kv_source_, std::move(answer)));
      } else {
        if (first_) callbacks_.on_tokens(*std::exchange(first_, std::nullopt));
        end.message = Message(std::move(share));
      }
      // The end is reported now and not at the end of the stream, which a server may leave open.
      ended_ = true;
      std::move(callbacks_.on_end)(std::move(end));
      return absl::OkStatus();
    }
    BFIO_RETURN_IF_ERROR(counts_.OnChunk(output.ids, output.completion_tokens));
    if (output.ids.empty() && !passes_) return absl::OkStatus();
    EngineTokens tokens;
    tokens.ids.assign(output.ids.begin(), output.ids.end());
    tokens.cached_prompt_tokens = output.cached_tokens;
    tokens.message = Message(std::move(share));
    if (hands_over_) {
      first_ = std::move(tokens);
    } else {
      callbacks_.on_tokens(std::move(tokens));
    }
    return absl::OkStatus();
  }

  // The response, for the client; null where the call does not pass.
  PassedPtr Message(std::shared_ptr<const void> share) {
    return passes_ ? protocol().Pass(*response_, before_, std::move(share)) : nullptr;
  }

  void TakeTrailers(absl::Status& end) const {
    // gRPC's clients refuse 8 KiB of metadata.
    constexpr size_t kMostBytes = 4 << 10;
    size_t bytes = 0;
    for (const auto& [key, value] : context_.GetServerTrailingMetadata()) {
      const absl::string_view name(key.data(), key.size());
      bytes += key.size() + value.size();
      if (bytes > kMostBytes) return;
      // gRPC's own trailers are in the status already.
      if (!absl::StartsWith(name, "grpc-")) AddTrailer(name, {value.data(), value.size()}, end);
    }
  }

  // gRPC reports a message that is too large with a code that has other causes, too.
  static bool TooLarge(const grpc::Status& status) {
    return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
           absl::StrContains(status.error_message(), "message larger than max");
  }

  static absl::Status TooMuch() {
    return absl::OutOfRangeError("messages of the engine that clients have not read take too much memory");
  }
  static absl::Status WrongOutput(uint32_t index) {
    return absl::DataLossError(
        absl::StrCat("the engine sent output ", index, " of a request that has only output 0"));
  }

  // Released last: the context refers to the channel.
  const LinkPtr link_;
  const std::string name_;
  StreamCounts counts_;
  const bool passes_;
  // It computes a prompt for another rank; which waits for it.
  const bool hands_over_, meets_;
  const KvSource kv_source_;
  // Tokens of earlier placements, which are part of the prompt.
  const uint32_t before_;
  const AnyMessage request_;
  EngineClient::StreamCallbacks callbacks_;
  grpc::ClientContext context_;
  AnyMessage response_;
  // Withheld, because its client gets it only if it ends the output.
  std::optional<EngineTokens> first_;
  // The output has ended, and its end has been reported.
  bool ended_ = false;
  absl::Status broken_;
  std::shared_ptr<ProtocolStream> self_;
};

class ProtocolClient final : public EngineClient {
 public:
  using Described = absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&>;

  ProtocolClient(const EngineProtocol& protocol, const EngineAddress& engine, bool pinned)
      : pinned_(pinned), link_(std::make_shared<Link>(protocol, ChannelTo(engine))) {}

  void Describe(absl::Duration timeout, Described done) override {
    UnaryRequest::Start(link_, "GetServerInfo", link_->protocol.types.server, timeout,
                        [link = link_, pinned = pinned_, deadline = MonotonicNow() + timeout,
                         done = std::move(done)](auto server) mutable {
                          if (!server.ok()) return std::move(done)(server.status());
                          EngineDescription description;
                          link->protocol.DescribeServer(**server, description);
                          if (!pinned) description.joined_ranks = description.ranks;
                          DescribeModel(link, deadline, std::move(description), std::move(done));
                        });
  }

  void CheckHealth(absl::Duration timeout, absl::AnyInvocable<void(absl::Status) &&> done) override {
    UnaryRequest::Start(link_, "HealthCheck", link_->protocol.types.health, timeout,
                        [&protocol = link_->protocol, done = std::move(done)](auto health) mutable {
                          std::move(done)(health.ok() ? protocol.Health(**health) : health.status());
                        });
  }

  void GetLoads(absl::Duration timeout,
                absl::AnyInvocable<void(absl::StatusOr<std::vector<EngineRankLoad>>) &&> done) override {
    UnaryRequest::Start(link_, "GetLoads", link_->protocol.types.loads, timeout,
                        [link = link_, done = std::move(done)](auto response) mutable {
                          if (!response.ok()) return std::move(done)(response.status());
                          std::vector<EngineRankLoad> loads;
                          for (const EngineRankReport& report : link->protocol.Loads(**response)) {
                            loads.push_back(report.load);
                            loads.back().load.tokens /= link->sizes.kv_share;
                          }
                          if (link->sizes.joined_ranks > 1 && !loads.empty()) {
                            EngineRankLoad sum;
                            for (const EngineRankLoad& load : loads) Add(load.load, sum.load);
                            loads.assign(1, sum);
                          }
                          std::move(done)(std::move(loads));
                        });
  }

  std::shared_ptr<EngineRecords> Subscribe(RecordCallbacks callbacks) override {
    return RecordStream::Start(std::make_shared<RecordStream>(link_, std::move(callbacks)));
  }

  void Free(const std::string& parameters) override {
    if (AnyMessage refused = link_->protocol.RefusedOf(parameters))
      UnaryRequest::Start(
          link_, "Generate", Nothing(), kAbortTimeout, [](const auto&) {}, std::move(refused));
  }

  std::shared_ptr<EngineStream> Generate(const EngineCall& call, std::optional<int32_t> rank,
                                         const std::string& name, StreamCallbacks callbacks) override {
    if (absl::Status status = link_->protocol.Check(call); !status.ok()) {
      std::move(callbacks.on_end)(std::move(status));
      return std::make_shared<EngineStream>();
    }
    return ProtocolStream::Start(
        std::make_shared<ProtocolStream>(link_, call, rank, name, std::move(callbacks)));
  }

 private:
  static std::shared_ptr<grpc::Channel> ChannelTo(const EngineAddress& engine) {
    grpc::ChannelArguments arguments;
    // No pings: Python's gRPC servers close connections with pings every few seconds. The link's health
    // checks detect a lost server, and the link replaces the client of a server that does not answer.
    arguments.SetMaxReceiveMessageSize(kMaxEngineMessageBytes);
    // A refusal may repeat a request's schema. Above this size gRPC would end all calls of the connection.
    arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxEngineHeaderBytes);
    // Engines are inside the cluster, http_proxy is for traffic that leaves it.
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    DisableCompression(arguments);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    arguments.SetResourceQuota(grpc::ResourceQuota(engine.server.ToString()).Resize(kMaxEngineUnreadBytes));
    // Clients to different servers share nothing.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (!engine.name.empty()) arguments.SetSslTargetNameOverride(engine.name);
    return grpc::CreateCustomChannel(engine.server.ToString(),
                                     ChannelCredentials(engine.tls, engine.token_file), arguments);
  }

  static void DescribeModel(const LinkPtr& link, absl::Time deadline, EngineDescription description,
                            Described done) {
    UnaryRequest::Start(
        link, "GetModelInfo", link->protocol.types.model, deadline - MonotonicNow(),
        [link, deadline, description = std::move(description), done = std::move(done)](auto model) mutable {
          if (!model.ok()) return std::move(done)(model.status());
          link->protocol.DescribeModel(**model, description);
          link->sizes.context_tokens = description.max_sequence_tokens;
          link->sizes.vocabulary = description.vocabulary;
          DescribeLoads(link, deadline, std::move(description), std::move(done));
        });
  }

  // The server's ranks are those in its loads; their numbers are consecutive. Loads of other ranks are
  // ignored.
  static void TakeRanks(absl::Span<const EngineRankReport> reports, EngineDescription& description) {
    int32_t first = description.all_ranks, last = -1;
    for (const EngineRankReport& report : reports) {
      const int32_t rank = report.load.rank;
      if (rank < 0 || rank >= description.all_ranks) continue;
      first = std::min(first, rank);
      last = std::max(last, rank);
    }
    if (last < first) return;
    description.first_rank = first;
    description.ranks = last - first + 1;
  }

  static void DescribeLoads(const LinkPtr& link, absl::Time deadline, EngineDescription description,
                            Described done) {
    UnaryRequest::Start(
        link, "GetLoads", link->protocol.types.loads, deadline - MonotonicNow(),
        [link, description = std::move(description), done = std::move(done)](auto loads) mutable {
          // Older servers do not implement it; the sizes are then those of every rank.
          if (!loads.ok() && !absl::IsUnimplemented(loads.status())) return std::move(done)(loads.status());
          description.all_ranks = description.ranks;
          if (loads.ok()) TakeSizes(link->protocol.Loads(**loads), *link, description);
          Join(description, link->sizes);
          std::move(done)(std::move(description));
        });
  }
  static void TakeSizes(absl::Span<const EngineRankReport> reports, const Link& link,
                        EngineDescription& description) {
    if (reports.empty()) return;
    const EngineProtocol::Traits& traits = link.protocol.traits;
    if (traits.loads_name_ranks) TakeRanks(reports, description);
    if (traits.kv_of_all_ranks) link.sizes.kv_share = description.ranks;
    const EngineRankReport& first = reports.front();
    if (first.kv_tokens > 0) description.kv_tokens = first.kv_tokens / link.sizes.kv_share;
    link.sizes.kv_tokens = description.kv_tokens;
    // The server's values may be sums over all its ranks.
    if (first.slots > 0 && (traits.slots_of_loads || description.slots == 0)) description.slots = first.slots;
  }

  // The sizes so far are those of one rank.
  static void Join(EngineDescription& description, EngineSizes& sizes) {
    const int32_t joined = description.joined_ranks;
    sizes.joined_ranks = joined;
    if (joined == 1) return;
    description.ranks = description.all_ranks = 1;
    description.slots = static_cast<int32_t>(
        std::min<int64_t>(int64_t{description.slots} * joined, std::numeric_limits<int32_t>::max()));
    description.kv_tokens *= joined;
  }

  const bool pinned_;
  const LinkPtr link_;
};

}  // namespace

std::unique_ptr<EngineClient> NewProtocolClient(const EngineProtocol& protocol, const EngineAddress& engine,
                                                bool pinned) {
  return std::make_unique<ProtocolClient>(protocol, engine, pinned);
}

}  // namespace bfio::router
