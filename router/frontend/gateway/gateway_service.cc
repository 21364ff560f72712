#include "router/frontend/gateway/gateway_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/out_of_range.h"
#include "common/base/status_macros.h"
#include "common/net/server_call.h"
#include "engines/smg_common.pb.h"
#include "google/protobuf/empty.pb.h"
#include "router/requests/check_request.h"

namespace bfio::router::gateway {
namespace {

// "true": after the loss of its engine the output may continue with other random draws than before.
constexpr char kMayResampleHeader[] = "bfio-may-resample";

// The requests that one call aborts: the call is answered when the last abort has been answered.
struct PendingAborts {
  explicit PendingAborts(size_t count) : left(count) {}
  std::atomic<size_t> left;
  // At least one of the requests was found.
  std::atomic<bool> found{false};
};

namespace common_pb = ::smg::grpc::common;

// The chunk size that engines use.
constexpr size_t kChunkBytes = 64 << 10;

// A tokenizer's archive, in parts. For gateways that have no copy of the model's tokenizer. A part is written
// when the client has read the last one, so a call holds one part, however slowly the client reads.
class TokenizerCall final : public ServerCall<TokenizerCall, AnyMessage, AnyMessage> {
 public:
  static std::shared_ptr<TokenizerCall> Create(grpc::CallbackServerContext* context,
                                               std::shared_ptr<const ModelFiles> model,
                                               std::shared_ptr<SharedCapacity> streams) {
    std::shared_ptr<TokenizerCall> call(new TokenizerCall(context, std::move(model), std::move(streams)));
    call->Open(call);
    return call;
  }

 private:
  TokenizerCall(grpc::CallbackServerContext* context, std::shared_ptr<const ModelFiles> model,
                std::shared_ptr<SharedCapacity> streams)
      : ServerCall(context, AnyMessage::Of(common_pb::GetTokenizerRequest::default_instance())),
        model_(std::move(model)),
        share_(std::move(streams)) {}

  void OnMessage(AnyMessage) override {
    if (model_ == nullptr) {
      return Close({grpc::StatusCode::FAILED_PRECONDITION,
                    "the router has no tokenizer: --tokenizer is not set, and no worker has sent one; give "
                    "the gateway its own"});
    }
    MutexLock lock(&mutex_);
    begun_ = share_.Take(peer(), 1);
    if (SetEnd(begun_ ? grpc::Status::OK
                      : grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                     "too many GetTokenizer streams are open"))) {
      Advance();
    }
  }
  bool Next(AnyMessage& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!begun_ || sent_ == model_->archive.size()) return false;
    if (!message) message = AnyMessage::Of(common_pb::GetTokenizerChunk::default_instance());
    auto& chunk = message.As<common_pb::GetTokenizerChunk>();
    chunk.set_data(model_->archive.substr(sent_, kChunkBytes));
    sent_ += chunk.data().size();
    if (sent_ == model_->archive.size()) chunk.set_sha256(model_->archive_sha256);
    return true;
  }

  const std::shared_ptr<const ModelFiles> model_;
  CapacityShare share_ ABSL_GUARDED_BY(mutex_);
  // True: the request has been read and the model is available.
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

GatewayService::GatewayService(const Protocol& protocol, RequestHandler* handler,
                               Authenticator* authenticator, FirstMessages* messages, GatewayOptions options)
    : protocol_(protocol),
      handler_(handler),
      authenticator_(authenticator),
      messages_(messages),
      options_(std::move(options)),
      started_(MonotonicNow()),
      feed_(handler) {
  const auto add = [this](const char* method, auto begin) { Add(Path(method), std::move(begin)); };
  add("Generate", [this](grpc::CallbackServerContext* context) { return Generate(context); });
  add("Abort", [this](grpc::CallbackServerContext* context) { return Abort(context); });
  add("GetTokenizer", [this](grpc::CallbackServerContext* context) {
    const std::shared_ptr<TokenizerCall> call = TokenizerCall::Create(context, options_.model, tokenizers_);
    call->Begin(authenticator_->Check(*context), messages_);
    return call.get();  // kept alive by itself until OnDone
  });
  add("SubscribeKvEvents", [this](grpc::CallbackServerContext* context) {
    return feed_.Subscribe(context, authenticator_->Check(*context), messages_);
  });
  AddInformation();
}

const char* GatewayService::Path(const char* method) {
  return paths_.emplace_back(absl::StrCat("/", protocol_.traits.name, "/", method)).c_str();
}

void GatewayService::AddUnary(const char* method, const Message& request,
                              std::function<void(const CallPtr&, const Message&)> answer) {
  Add(Path(method), [this, &request, answer = std::move(answer)](grpc::CallbackServerContext* context) {
    return Call::Begin(
        context, authenticator_->Check(*context), messages_,
        [&answer](const CallPtr& call, const AnyMessage& message) { answer(call, *message); },
        AnyMessage::Of(request));
  });
}

void GatewayService::ReplyWithLoads(const CallPtr& call,
                                    std::function<absl::StatusOr<MessagePtr>(const Loads&)> fill) {
  const absl::Status asked =
      handler_->GetLoads(std::nullopt, [call, fill = std::move(fill)](const absl::StatusOr<Loads>& loads) {
        if (!loads.ok()) return call->Reply(loads.status());
        call->Reply(fill(*loads));
      });
  if (!asked.ok()) call->Reply(asked);
}

void GatewayService::AddInformation() {
  const Message& nothing = google::protobuf::Empty::default_instance();
  AddUnary("HealthCheck", nothing, [this](const CallPtr& call, const Message&) {
    call->Reply(protocol_.Health(handler_->GetServing().ready));
  });
  AddUnary("GetModelInfo", nothing, [this](const CallPtr& call, const Message&) {
    const ModelFiles* const model = options_.model.get();
    const std::string name =
        !options_.model_name.empty() ? options_.model_name : ModelNameOf(model ? model->directory : "");
    call->Reply(protocol_.ModelInfo(name, model, handler_->GetServing()));
  });
  AddUnary("GetServerInfo", nothing, [this](const CallPtr& call, const Message&) {
    const ModelFiles* const model = options_.model.get();
    ReplyWithLoads(call, [this, uptime = MonotonicNow() - started_, dtype = model ? model->dtype : ""](
                             const Loads& loads) { return protocol_.ServerInfo(loads, uptime, dtype); });
  });
  AddUnary("GetLoads", protocol_.types.loads_request, [this](const CallPtr& call, const Message& request) {
    ReplyWithLoads(call, [this, rank = protocol_.LoadsRank(request)](const Loads& loads) {
      return protocol_.LoadsOf(loads, rank);
    });
  });
}

absl::StatusOr<GatewayService::Asker> GatewayService::AskerOf(const grpc::CallbackServerContext& context) {
  BFIO_ASSIGN_OR_RETURN(Caller caller, authenticator_->Identify(context));
  Asker asker{{std::move(caller)}};
  const auto resample = context.client_metadata().find(kMayResampleHeader);
  if (resample != context.client_metadata().end()) {
    asker.may_resample = resample->second == "true";
    if (!asker.may_resample && resample->second != "false")
      return absl::InvalidArgumentError(absl::StrCat(kMayResampleHeader, " must be true or false"));
  }
  const auto objective = context.client_metadata().find(kTtftHeader);
  if (objective != context.client_metadata().end()) {
    BFIO_ASSIGN_OR_RETURN(asker.ttft_objective,
                          TtftObjectiveOf({objective->second.data(), objective->second.size()}));
  }
  return asker;
}

// --- Generate ---

GenerateStream* GatewayService::Generate(grpc::CallbackServerContext* context) {
  absl::StatusOr<Asker> asker = AskerOf(*context);
  const absl::StatusOr<Peer> allowed = PeerOf(*context, asker);
  GenerateStream::Options options;
  options.protocol = &protocol_;
  options.traceparent = TraceparentOf(*context);
  options.limits = options_.stream_limits;
  options.open = &streams_;
  options.kept = kept_;
  options.cancel = [handler = handler_](core::RequestId id, bool timed_out) {
    handler->Cancel(id, timed_out);
  };
  if (asker.ok()) {
    options.on_request = [this, from = *std::move(asker)](const std::shared_ptr<GenerateStream>& stream,
                                                          AnyMessage request) {
      return Submit(std::move(request), from, stream);
    };
  }
  const std::shared_ptr<GenerateStream> stream = GenerateStream::Create(context, std::move(options));
  stream->Begin(allowed, messages_);
  return stream.get();  // kept alive by itself until OnDone
}

absl::Status GatewayService::Submit(AnyMessage request, const Asker& asker,
                                    const std::shared_ptr<GenerateStream>& stream) {
  std::string tenant = asker.tenant;
  BFIO_RETURN_IF_ERROR(authenticator_->CheckTenant(asker, tenant));
  RequestContext context{options_.request_limits, handler_->GetServing().max_sequence_tokens, "",
                         options_.passes, asker.may_resample};
  const ModelFiles* const model = options_.model.get();
  if (model == nullptr) {
    context.no_stop_texts = "the router has no tokenizer";
  } else if (model->text == nullptr) {
    context.no_stop_texts = model->why_no_text;
  }
  using KvTransfer = RequestContext::KvTransfer;
  if (asker.name) context.kv_transfer = asker.trust_kv_transfer ? KvTransfer::kTrusted : KvTransfer::kRefused;
  BFIO_ASSIGN_OR_RETURN(ConvertedRequest converted, protocol_.Convert(*request, std::move(tenant), context));
  request = {};  // its prompt is in `converted`, and would be there twice
  converted.request.ttft_objective = asker.ttft_objective;
  if (converted.request.request_id.empty()) converted.request.request_id = options_.new_request_id();
  return SubmitOutputs(std::move(converted), stream);
}

absl::Status GatewayService::SubmitOutputs(ConvertedRequest converted,
                                           const std::shared_ptr<GenerateStream>& stream) {
  GenerateStream::Shape shape;
  std::vector<RequestHandler::Output> outputs(converted.outputs);
  for (RequestHandler::Output& output : outputs) shape.ids.push_back(output.id = handler_->NextId());
  shape.request_id = converted.request.request_id;
  shape.stream = converted.stream;
  shape.prompt_tokens = converted.request.prompt_tokens;
  shape.stop_token_ids = converted.request.stop_token_ids;
  if (!converted.stops.empty())
    shape.stop_text.emplace(options_.model->text, std::move(converted.stops), converted.special_text);
  std::vector<std::shared_ptr<TokenSink>> sinks = stream->BeginOutputs(std::move(shape));
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].sink = std::move(sinks[i]);
  return handler_->Submit(std::move(converted.request), std::move(outputs));
}

// --- Abort ---

GatewayService::Call* GatewayService::Abort(grpc::CallbackServerContext* context) {
  absl::StatusOr<Asker> asker = AskerOf(*context);
  const absl::StatusOr<Peer> allowed = PeerOf(*context, asker);
  return Call::Begin(
      context, allowed, messages_,
      [this, asker = std::move(asker)](const CallPtr& call, const AnyMessage& request) {
        AbortAll(call, *request, *asker);
      },
      AnyMessage::Of(protocol_.types.abort_request));
}

void GatewayService::AbortAll(const CallPtr& call, const Message& request, const Asker& asker) {
  std::string tenant = asker.tenant;
  absl::Status status = authenticator_->CheckTenant(asker, tenant);
  if (!status.ok()) return call->Reply(status);
  std::vector<std::string> ids = protocol_.AbortedIds(request);
  if (ids.size() > kMaxAborts) {
    return call->Reply(OutOfRange("the number of request_ids", static_cast<int64_t>(ids.size()),
                                  absl::StrCat("at most ", kMaxAborts)));
  }
  if (ids.empty()) return call->Reply(protocol_.Aborted(/*found=*/false));
  const auto pending = std::make_shared<PendingAborts>(ids.size());
  for (std::string& id : ids) {
    status = handler_->Abort({tenant, std::move(id), /*resume_token=*/""},
                             [this, call, pending](const absl::StatusOr<bool>& found) {
                               if (!found.ok()) return call->Reply(found.status());
                               if (*found) pending->found = true;
                               if (pending->left.fetch_sub(1) == 1)
                                 call->Reply(protocol_.Aborted(pending->found));
                             });
    if (!status.ok()) return call->Reply(status);
  }
}

namespace {

// Longest time between two records.
constexpr absl::Duration kHeartbeat = absl::Seconds(1);

grpc::Status Closed() {
  return {grpc::StatusCode::UNAVAILABLE, "the router is shutting down"};
}

}  // namespace

class LoadFeed::Subscriber final : public ServerCall<LoadFeed::Subscriber, AnyMessage, AnyMessage> {
 public:
  static std::shared_ptr<Subscriber> Create(grpc::CallbackServerContext* context, LoadFeed* feed) {
    std::shared_ptr<Subscriber> subscriber(new Subscriber(context, feed));
    subscriber->Open(subscriber);
    return subscriber;
  }

  // False when the stream has ended, or its client has read nothing for too long.
  bool Push(const common_pb::EngineLoad& load, absl::Time now) {
    MutexLock lock(&mutex_);
    if (ended() || Untaken(now) > kPatience) return false;
    load_ = load;
    Advance();
    return true;
  }

 private:
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  Subscriber(grpc::CallbackServerContext* context, LoadFeed* feed)
      : ServerCall(context, AnyMessage::Of(common_pb::SubscribeKvEventsRequest::default_instance())),
        feed_(feed) {}

  void OnMessage(AnyMessage request) override {
    if (request.As<common_pb::SubscribeKvEventsRequest>().load_records_before_first_batch())
      return feed_->Add(shared_from_this());
    Close({grpc::StatusCode::UNIMPLEMENTED,
           "KV cache events are not supported; set load_records_before_first_batch to receive load records"});
  }
  bool Next(AnyMessage& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!load_) return false;
    if (!message) message = AnyMessage::Of(common_pb::KvEventBatch::default_instance());
    auto& batch = message.As<common_pb::KvEventBatch>();
    batch.set_timestamp(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
    batch.set_dp_rank(0);
    *batch.mutable_load() = *std::exchange(load_, std::nullopt);
    batch.mutable_load()->set_sample(++samples_);
    return true;
  }

  LoadFeed* const feed_;
  // The next record.
  std::optional<common_pb::EngineLoad> load_ ABSL_GUARDED_BY(mutex_);
  uint64_t samples_ ABSL_GUARDED_BY(mutex_) = 0;
};

struct LoadFeed::Answer {
  Mutex mutex;
  bool come ABSL_GUARDED_BY(mutex) = false;
  absl::StatusOr<Loads> loads ABSL_GUARDED_BY(mutex) = absl::UnknownError("no answer");
};

LoadFeed::LoadFeed(RequestHandler* handler, absl::Duration interval)
    : handler_(handler), interval_(interval), thread_([this] { Run(); }) {}

LoadFeed::~LoadFeed() {
  Close();
  thread_.join();
}

LoadFeed::Stream* LoadFeed::Subscribe(grpc::CallbackServerContext* context,
                                      const absl::StatusOr<Peer>& allowed, FirstMessages* messages) {
  const std::shared_ptr<Subscriber> subscriber = Subscriber::Create(context, this);
  subscriber->Begin(allowed, messages);
  return subscriber.get();  // kept alive by itself until OnDone
}

void LoadFeed::Add(const std::shared_ptr<Subscriber>& subscriber) {
  grpc::Status refused = Closed();
  {
    MutexLock lock(&mutex_);
    std::erase_if(subscribers_, [](const auto& one) { return one->HasEnded(); });
    if (!closed_ && MayJoin(subscribers_, subscriber, kMaxSubscribers)) {
      subscribers_.push_back(subscriber);
      newcomers_ = true;
      return;
    }
    if (!closed_)
      refused = {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many SubscribeKvEvents streams are open"};
  }
  subscriber->Close(refused);
}

void LoadFeed::Close() {
  std::vector<std::shared_ptr<Subscriber>> ended;
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    ended.swap(subscribers_);
  }
  for (const auto& subscriber : ended) subscriber->Close(Closed());
}

bool LoadFeed::AwaitSubscribers() {
  MutexLock lock(&mutex_);
  const auto some = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !subscribers_.empty(); };
  mutex_.Await(absl::Condition(&some));
  return !closed_;
}

bool LoadFeed::Pause(absl::Duration time) {
  MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&closed_), time);
  return !closed_;
}

void LoadFeed::Publish(const common_pb::EngineLoad& load) {
  std::vector<std::shared_ptr<Subscriber>> subscribers;
  {
    MutexLock lock(&mutex_);
    subscribers = subscribers_;
    newcomers_ = false;
  }
  const absl::Time now = MonotonicNow();
  for (const auto& subscriber : subscribers) {
    if (subscriber->Push(load, now)) continue;
    subscriber->BreakOffIfStuck(now, absl::ZeroDuration());
    MutexLock lock(&mutex_);
    std::erase(subscribers_, subscriber);
  }
}

absl::StatusOr<Loads> LoadFeed::Query() {
  const auto answer = std::make_shared<Answer>();
  const absl::Status asked = handler_->GetLoads(std::nullopt, [answer](absl::StatusOr<Loads> loads) {
    MutexLock lock(&answer->mutex);
    answer->loads = std::move(loads);
    answer->come = true;
  });
  if (!asked.ok()) return asked;
  MutexLock lock(&answer->mutex);
  answer->mutex.AwaitWithTimeout(absl::Condition(&answer->come), kHeartbeat);
  return answer->loads;
}

bool LoadFeed::HasNewcomers() {
  MutexLock lock(&mutex_);
  return newcomers_;
}

void LoadFeed::Run() {
  std::string last;
  absl::Time due = absl::InfinitePast();
  while (AwaitSubscribers()) {
    if (const absl::StatusOr<Loads> loads = Query(); loads.ok()) {
      const common_pb::EngineLoad load = LoadRecord(*loads);
      std::string bytes = load.SerializeAsString();
      const absl::Time now = MonotonicNow();
      if (HasNewcomers() || bytes != last || now >= due) {
        Publish(load);
        last = std::move(bytes);
        due = now + kHeartbeat;
      }
    }
    if (!Pause(interval_)) return;
  }
}

}  // namespace bfio::router::gateway
