// A client for the engines' protocols that gateways use, which are similar.
//
// Purpose: implements EngineClient for one server of the protocol `Wire` (see vllm/vllm_client.cc). `Wire`
// has the protocol's messages and peculiarities; its ToPass and Translate make a call's request, except for
// name and rank, from the client's message or from the call's fields. Requests name the rank, unless the
// server chooses among its ranks itself: the router then treats them as one. Requests that are made here
// request a stream. A stream that breaks the protocol (more tokens than requested, another output than the
// first, counts that do not fit the tokens received; stream_counts.h) ends with DATA_LOSS. Messages after the
// end of an output are ignored. Ownership and threads: as EngineClient; gRPC's callbacks.
#ifndef BFIO_ROUTER_ENGINE_LINK_PROTOCOL_PROTOCOL_CLIENT_H_
#define BFIO_ROUTER_ENGINE_LINK_PROTOCOL_PROTOCOL_CLIENT_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/net/status.h"
#include "router/engine_link/engine_client.h"
#include "router/engine_link/protocol/stream_counts.h"
#include "router/requests/passed_trailers.h"

namespace bfio::router {

// Bound of one answer. For a request that passes it may hold a whole output with its log-probabilities.
inline constexpr int kMaxEngineMessageBytes = 64 << 20;

// A call with one answer; deletes itself when it is over.
template <typename Service, typename Request, typename Response>
class ClientUnaryCall {
 public:
  using Stub = typename Service::Stub;
  using AsyncStub = typename Service::StubInterface::async_interface;
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;
  using Method = void (AsyncStub::*)(grpc::ClientContext*, const Request*, Response*,
                                     std::function<void(grpc::Status)>);

  static void Start(
      const std::shared_ptr<Stub>& stub, Method method, absl::Duration timeout, Done done,
      absl::FunctionRef<void(Request&)> fill = [](Request&) {}) {
    auto* call = new ClientUnaryCall(stub, std::move(done));
    fill(call->request_);
    call->context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    AsyncStub* const async = stub->async();
    (async->*method)(&call->context_, &call->request_, &call->response_, [call](const grpc::Status& status) {
      if (status.ok()) {
        std::move(call->done_)(std::move(call->response_));
      } else {
        std::move(call->done_)(FromGrpcStatus(status));
      }
      delete call;
    });
  }

 private:
  ClientUnaryCall(std::shared_ptr<Stub> stub, Done done) : stub_(std::move(stub)), done_(std::move(done)) {}

  const std::shared_ptr<Stub> stub_;
  grpc::ClientContext context_;
  Request request_;
  Response response_;
  Done done_;
};

inline EngineFinish EngineFinishOf(const std::string& reason) {
  if (reason == "stop") return EngineFinish::kStop;
  if (reason == "length") return EngineFinish::kLength;
  if (reason == "abort") return EngineFinish::kAbort;
  // Other reasons are the engine's own, such as "repetition", and count as a stop.
  return reason == "error" || reason.empty() ? EngineFinish::kError : EngineFinish::kStop;
}

// As the engine last reported; shared with answers that come late.
struct EngineSizes {
  std::atomic<int64_t> context_tokens{0};
  // Number of ranks whose KV tokens the engine adds up in its report of one rank.
  std::atomic<int64_t> kv_share{1};
  // KV tokens of a rank; 0: not reported.
  std::atomic<int64_t> kv_tokens{0};
  // EngineDescription::joined_ranks.
  std::atomic<int32_t> joined_ranks{1};
};
using SharedSizes = std::shared_ptr<EngineSizes>;

// Adds the load of one of several ranks that the router treats as one.
inline void Add(const EngineLoad& load, EngineLoad& sum) {
  sum.requests += load.requests;
  sum.tokens += load.tokens;
}

// A subscription to KV events, of which only the load records are used; keeps itself until it is over.
template <typename Wire>
class RecordStream final : public EngineRecords, public grpc::ClientReadReactor<typename Wire::KvEventBatch> {
 public:
  using Stub = typename Wire::Service::Stub;
  using Load = std::remove_cvref_t<decltype(std::declval<typename Wire::KvEventBatch>().load())>;

  RecordStream(std::shared_ptr<Stub> stub, SharedSizes sizes, EngineClient::RecordCallbacks callbacks)
      : stub_(std::move(stub)), sizes_(std::move(sizes)), callbacks_(std::move(callbacks)) {
    request_.set_load_records_before_first_batch(true);
  }

  static std::shared_ptr<RecordStream> Start(std::shared_ptr<RecordStream> stream) {
    stream->self_ = stream;
    stream->stub_->async()->SubscribeKvEvents(&stream->context_, &stream->request_, stream.get());
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
    const int32_t joined = sizes_->joined_ranks;
    if (joined == 1 || loads.empty()) return loads;
    // Some ranks send no records: GetLoads is used instead.
    if (std::ssize(records_) < joined) return {};
    loads.assign(1, {});
    for (const auto& [rank, record] : records_) Add(record.load, loads[0].load);
    return loads;
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (batch_.has_load() && Keep()) callbacks_.on_records();
    this->StartRead(&batch_);
  }
  void OnDone(const grpc::Status& status) override {
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

  // Whether the caller must be told to call Take.
  bool Keep() {
    const Load& from = batch_.load();
    MutexLock lock(&mutex_);
    if (records_.size() >= kMostRanks && !records_.contains(batch_.dp_rank())) return false;
    Record& record = records_[batch_.dp_rank()];
    // The record is out of order. Some servers do not number records.
    if (from.sample() > 0 && from.sample() <= record.sample) return false;
    record = {from.sample(), {int64_t{from.running_requests()} + from.waiting_requests(), UsedTokens(from)}};
    return !std::exchange(notified_, true);
  }
  // Records that come with events have only the share in use, and no token count.
  int64_t UsedTokens(const Load& from) const {
    if (from.has_num_used_tokens()) return std::max<int64_t>(0, from.num_used_tokens()) / sizes_->kv_share;
    const bool is_share = from.token_usage() >= 0 && from.token_usage() <= 1;
    return is_share ? static_cast<int64_t>(from.token_usage() * static_cast<double>(sizes_->kv_tokens)) : 0;
  }

  const std::shared_ptr<Stub> stub_;
  const SharedSizes sizes_;
  EngineClient::RecordCallbacks callbacks_;
  grpc::ClientContext context_;
  typename Wire::SubscribeKvEventsRequest request_;
  typename Wire::KvEventBatch batch_;
  std::shared_ptr<RecordStream> self_;
  Mutex mutex_;
  // By the engine's number of the rank. `notified_`: on_records has been called since the last Take.
  absl::flat_hash_map<int32_t, Record> records_ ABSL_GUARDED_BY(mutex_);
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

// The stream of a call that the protocol cannot express.
class NoStream final : public EngineStream {
 public:
  void Cancel() override {}
};

// Keeps itself until the call is over.
template <typename Wire>
class ProtocolStream final : public EngineStream,
                             public grpc::ClientReadReactor<typename Wire::GenerateResponse> {
 public:
  using Stub = typename Wire::Service::Stub;
  using Request = typename Wire::GenerateRequest;
  using Response = typename Wire::GenerateResponse;

  // `context_tokens`: the longest prompt + output of the engine; 0: not known.
  ProtocolStream(std::shared_ptr<Stub> stub, const EngineCall& call, std::optional<int32_t> rank,
                 const std::string& name, int64_t context_tokens, EngineClient::StreamCallbacks callbacks)
      : stub_(std::move(stub)),
        counts_({.cumulative = Wire::kChunksCountAll,
                 .whole = call.passed.whole,
                 .prompt_tokens = call.prompt_tokens(),
                 .max_new_tokens = call.max_new_tokens,
                 .context_tokens = Wire::kFillsContext ? context_tokens : 0}),
        passes_(call.passed.on),
        before_(call.passed.on ? static_cast<uint32_t>(call.prompt.size()) : 0),
        request_(RequestOf(call, rank, name)),
        callbacks_(std::move(callbacks)) {
    if (!call.traceparent.empty()) context_.AddMetadata("traceparent", call.traceparent);
  }

  static std::shared_ptr<ProtocolStream> Start(std::shared_ptr<ProtocolStream> stream) {
    stream->self_ = stream;
    stream->stub_->async()->Generate(&stream->context_, &stream->request_, stream.get());
    stream->StartRead(&stream->response_);
    stream->StartCall();
    return stream;
  }

  void Cancel() override {
    context_.TryCancel();
    Wire::Abort(stub_, request_.request_id());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (absl::Status status = Take(); !status.ok()) {
      broken_ = std::move(status);
      Cancel();
      return;
    }
    this->StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
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
  static Request RequestOf(const EngineCall& call, std::optional<int32_t> rank, const std::string& name) {
    const auto* const passed = PassedMessage<Request>::In(call.passed.message.get());
    Request request = passed != nullptr ? Wire::ToPass(call, *passed) : Wire::Translate(call);
    request.set_request_id(name);
    // The client's rank counts over all servers, the engine's over its own.
    request.clear_data_parallel_rank();
    if (rank) request.set_data_parallel_rank(*rank);
    return request;
  }

  absl::Status Take() {
    // The output has ended; later messages do not belong to it.
    if (ended_) return absl::OkStatus();
    if (response_.has_complete()) {
      const auto& complete = response_.complete();
      if (complete.index() != 0) return WrongOutput(complete.index());
      const EngineFinish finish = EngineFinishOf(complete.finish_reason());
      BFIO_RETURN_IF_ERROR(counts_.OnComplete(complete.output_ids(), complete.completion_tokens(),
                                              complete.prompt_tokens(), finish));
      // In a stream, output_ids repeat the last chunk's tokens.
      EngineEnd end{finish, nullptr, complete.output_ids_size(), complete.cached_tokens()};
      end.message = Message();
      // The end is reported now and not at the end of the stream, which a server may leave open.
      ended_ = true;
      std::move(callbacks_.on_end)(std::move(end));
      return absl::OkStatus();
    }
    const auto& chunk = response_.chunk();
    if (chunk.index() != 0) return WrongOutput(chunk.index());
    const absl::Span<const uint32_t> ids(chunk.token_ids().data(),
                                         static_cast<size_t>(chunk.token_ids_size()));
    BFIO_RETURN_IF_ERROR(counts_.OnChunk(ids, chunk.completion_tokens()));
    if (ids.empty() && !passes_) return absl::OkStatus();
    EngineTokens tokens;
    tokens.ids.assign(ids.begin(), ids.end());
    tokens.cached_prompt_tokens = chunk.cached_tokens();
    tokens.message = Message();
    callbacks_.on_tokens(std::move(tokens));
    return absl::OkStatus();
  }

  // The response, for the client; null where the call does not pass.
  PassedPtr Message() {
    if (!passes_) return nullptr;
    // For the client, tokens of earlier placements are output, not prompt.
    const auto fewer = [this](uint32_t tokens) { return tokens - std::min(tokens, before_); };
    if (before_ > 0 && response_.has_chunk()) {
      auto& chunk = *response_.mutable_chunk();
      chunk.set_prompt_tokens(fewer(chunk.prompt_tokens()));
      if (Wire::kChunksCountAll) chunk.set_completion_tokens(chunk.completion_tokens() + before_);
    } else if (before_ > 0 && response_.has_complete()) {
      auto& complete = *response_.mutable_complete();
      complete.set_prompt_tokens(fewer(complete.prompt_tokens()));
      // vLLM counts only the last chunk's tokens, which its output_ids repeat; clients add up the counts.
      const bool of_last_chunk =
          !Wire::kChunksCountAll &&
          complete.completion_tokens() == static_cast<uint32_t>(complete.output_ids_size());
      if (!of_last_chunk) complete.set_completion_tokens(complete.completion_tokens() + before_);
    }
    return PassedMessage<Response>::Make(std::move(response_));
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

  static absl::Status WrongOutput(uint32_t index) {
    return absl::DataLossError(
        absl::StrCat("the engine sent output ", index, " of a request that has only output 0"));
  }

  const std::shared_ptr<Stub> stub_;
  StreamCounts counts_;
  const bool passes_;
  // Tokens of earlier placements, which are part of the prompt.
  const uint32_t before_;
  const Request request_;
  EngineClient::StreamCallbacks callbacks_;
  grpc::ClientContext context_;
  Response response_;
  // The output has ended, and its end has been reported.
  bool ended_ = false;
  absl::Status broken_;
  std::shared_ptr<ProtocolStream> self_;
};

template <typename Wire>
class ProtocolClient final : public EngineClient {
 public:
  using Service = typename Wire::Service;
  using Stub = typename Service::Stub;
  using AsyncStub = typename Service::StubInterface::async_interface;
  using ServerInfoCall =
      ClientUnaryCall<Service, typename Wire::GetServerInfoRequest, typename Wire::GetServerInfoResponse>;
  using ModelInfoCall =
      ClientUnaryCall<Service, typename Wire::GetModelInfoRequest, typename Wire::GetModelInfoResponse>;
  using LoadsCall = ClientUnaryCall<Service, typename Wire::GetLoadsRequest, typename Wire::GetLoadsResponse>;
  using HealthCall =
      ClientUnaryCall<Service, typename Wire::HealthCheckRequest, typename Wire::HealthCheckResponse>;

  ProtocolClient(const std::string& server, bool pinned) : pinned_(pinned) {
    grpc::ChannelArguments arguments;
    // No pings: Python's gRPC servers close connections with pings every few seconds. The link's health
    // checks detect a lost server, and the link replaces the client of a server that does not answer.
    arguments.SetMaxReceiveMessageSize(kMaxEngineMessageBytes);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    // Clients to different servers share nothing.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ =
        Service::NewStub(grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments));
  }

  void Describe(absl::Duration timeout,
                absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&> done) override {
    ServerInfoCall::Start(stub_, &AsyncStub::GetServerInfo, timeout,
                          [stub = stub_, sizes = sizes_, pinned = pinned_,
                           deadline = MonotonicNow() + timeout, done = std::move(done)](auto server) mutable {
                            if (!server.ok()) return std::move(done)(server.status());
                            EngineDescription description;
                            Wire::Describe(*server, description);
                            if (!pinned) description.joined_ranks = description.ranks;
                            DescribeModel(stub, sizes, deadline, std::move(description), std::move(done));
                          });
  }

  void CheckHealth(absl::Duration timeout, absl::AnyInvocable<void(absl::Status) &&> done) override {
    HealthCall::Start(stub_, &AsyncStub::HealthCheck, timeout, [done = std::move(done)](auto health) mutable {
      if (health.ok() && !health->healthy())
        health =
            absl::UnavailableError(absl::StrCat("it reports that it is not healthy: ", health->message()));
      std::move(done)(health.status());
    });
  }

  void GetLoads(absl::Duration timeout,
                absl::AnyInvocable<void(absl::StatusOr<std::vector<EngineRankLoad>>) &&> done) override {
    LoadsCall::Start(stub_, &AsyncStub::GetLoads, timeout,
                     [sizes = sizes_, done = std::move(done)](auto response) mutable {
                       if (!response.ok()) return std::move(done)(response.status());
                       std::vector<EngineRankLoad> loads;
                       for (const auto& load : response->loads()) {
                         loads.push_back({load.dp_rank(),
                                          {int64_t{load.num_running_reqs()} + load.num_waiting_reqs(),
                                           std::max<int64_t>(0, load.num_used_tokens()) / sizes->kv_share}});
                       }
                       if (sizes->joined_ranks > 1 && !loads.empty()) {
                         EngineRankLoad sum;
                         for (const EngineRankLoad& load : loads) Add(load.load, sum.load);
                         loads.assign(1, sum);
                       }
                       std::move(done)(std::move(loads));
                     });
  }

  std::shared_ptr<EngineRecords> Subscribe(RecordCallbacks callbacks) override {
    return RecordStream<Wire>::Start(
        std::make_shared<RecordStream<Wire>>(stub_, sizes_, std::move(callbacks)));
  }

  std::shared_ptr<EngineStream> Generate(const EngineCall& call, std::optional<int32_t> rank,
                                         const std::string& name, StreamCallbacks callbacks) override {
    if (absl::Status status = Wire::Check(call); !status.ok()) {
      std::move(callbacks.on_end)(std::move(status));
      return std::make_shared<NoStream>();
    }
    return ProtocolStream<Wire>::Start(std::make_shared<ProtocolStream<Wire>>(
        stub_, call, rank, name, sizes_->context_tokens, std::move(callbacks)));
  }

 private:
  using Described = absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&>;

  static void DescribeModel(const std::shared_ptr<Stub>& stub, const SharedSizes& sizes, absl::Time deadline,
                            EngineDescription description, Described done) {
    ModelInfoCall::Start(stub, &AsyncStub::GetModelInfo, deadline - MonotonicNow(),
                         [stub, sizes, deadline, description = std::move(description),
                          done = std::move(done)](auto model) mutable {
                           if (!model.ok()) return std::move(done)(model.status());
                           description.max_sequence_tokens = model->max_context_length();
                           sizes->context_tokens = description.max_sequence_tokens;
                           description.vocabulary = static_cast<uint32_t>(model->vocab_size());
                           description.model = model->served_model_name().empty()
                                                   ? model->model_path()
                                                   : model->served_model_name();
                           DescribeLoads(stub, sizes, deadline, std::move(description), std::move(done));
                         });
  }

  // The server's ranks are those in its loads; their numbers are consecutive. Loads of other ranks are
  // ignored.
  template <typename Loads>
  static void TakeRanks(const Loads& loads, EngineDescription& description) {
    int32_t first = description.all_ranks, last = -1;
    for (const auto& load : loads) {
      if (load.dp_rank() < 0 || load.dp_rank() >= description.all_ranks) continue;
      first = std::min(first, load.dp_rank());
      last = std::max(last, load.dp_rank());
    }
    if (last < first) return;
    description.first_rank = first;
    description.ranks = last - first + 1;
  }

  static void DescribeLoads(const std::shared_ptr<Stub>& stub, const SharedSizes& sizes, absl::Time deadline,
                            EngineDescription description, Described done) {
    LoadsCall::Start(
        stub, &AsyncStub::GetLoads, deadline - MonotonicNow(),
        [sizes, description = std::move(description), done = std::move(done)](auto loads) mutable {
          // Older servers do not implement it; the sizes are then those of every rank.
          if (!loads.ok() && !absl::IsUnimplemented(loads.status())) return std::move(done)(loads.status());
          description.all_ranks = description.ranks;
          if (loads.ok() && loads->loads_size() > 0) {
            if (Wire::kLoadsNameRanks) TakeRanks(loads->loads(), description);
            if (Wire::kKvOfAllRanks) sizes->kv_share = description.ranks;
            const auto& load = loads->loads(0);
            if (load.max_total_num_tokens() > 0)
              description.kv_tokens = load.max_total_num_tokens() / sizes->kv_share;
            sizes->kv_tokens = description.kv_tokens;
            // The server's values may be sums over all its ranks.
            if (load.max_running_requests() > 0 && (Wire::kSlotsOfLoads || description.slots == 0))
              description.slots = load.max_running_requests();
          }
          Join(description, *sizes);
          std::move(done)(std::move(description));
        });
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
  std::shared_ptr<Stub> stub_;
  const SharedSizes sizes_ = std::make_shared<EngineSizes>();
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_PROTOCOL_PROTOCOL_CLIENT_H_
