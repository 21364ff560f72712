#include "router/frontend/endpoint_picker/picker_service.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/byte_order_mark.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"
#include "common/net/server_call.h"
#include "common/telemetry/trace_context.h"
#include "router/frontend/endpoint_picker/exchange.h"
#include "router/requests/check_request.h"
#include "router/requests/retry.h"

namespace bfio::router::picker {
namespace {

using Subset = absl::flat_hash_set<std::string>;

// Larger ones wait for a thread of their own: one of kMaxBodyBytes takes up to a second, and gRPC may have
// two threads for all calls.
constexpr size_t kLargeBody = size_t{64} << 10;

// Whether the subset has the server of this rank, "http://IP:PORT#RANK" or https://.
bool Contains(const Subset& subset, absl::string_view worker_id) {
  if (!absl::ConsumePrefix(&worker_id, "https://")) absl::ConsumePrefix(&worker_id, "http://");
  const absl::string_view server = worker_id.substr(0, worker_id.rfind('#'));
  const absl::string_view host = server.substr(0, server.rfind(':'));
  return subset.contains(server) || subset.contains(host);
}

// Those of so many tokens, of which a text may have fewer than blocks have.
core::PrefixBlocks FirstBlocks(const core::PrefixBlocks& prefix, int64_t tokens) {
  const int64_t blocks = tokens / core::kPrefixBlockTokens;
  if (prefix == nullptr || std::ssize(*prefix) <= blocks) return prefix;
  if (blocks == 0) return nullptr;
  return std::make_shared<const std::vector<uint64_t>>(prefix->begin(), prefix->begin() + blocks);
}

}  // namespace

// One stream: one HTTP request. Ownership: owns itself until gRPC is done (StreamWriter); the request shares
// it. Threads: gRPC's for messages; the link's for SendTo; the decision thread's for End.
class PickerCall final : public ServerCall<PickerCall, In, Out>, public TokenSink {
 public:
  PickerCall(PickerService* service, grpc::CallbackServerContext* context)
      : ServerCall(context),
        service_(service),
        id_(service->handler_->NextId()),
        exchange_(kMaxBodyBytes, service->headers_) {}
  static PickerCall* Begin(PickerService* service, grpc::CallbackServerContext* context) {
    auto call = std::make_shared<PickerCall>(service, context);
    call->Open(call);
    {
      MutexLock lock(&service->mutex_);
      service->calls_.emplace(call->id_, call);
    }
    const absl::StatusOr<Peer> peer = service->authenticator_->Check(*context);
    // Envoy's connection carries the calls of all clients, so their rate says nothing about one of them.
    if (peer.ok()) service->authenticator_->Accepted(*context, /*gateway=*/true);
    call->ServerCall::Begin(peer, &service->messages_);
    return call.get();  // kept alive by itself until OnDone
  }

  // The request has its place.
  void SendTo(const PlacedRequest::Place& place, PlacedRequest::OnEnd on_end) {
    {
      MutexLock lock(&mutex_);
      if (exchange_.phase() == Exchange::Phase::kHeld && !left_) {
        exchange_.OnPlaced(place);
        bound_.reset();
        const auto observer =
            exchange_.binds_response() ? service_->TakeObserver(exchange_.header("x-request-id")) : nullptr;
        if (observer != nullptr) {
          observed_ = true;
          observer->Watch(id_, std::move(on_end));
          SetEnd(grpc::Status::OK);
        } else {
          on_end_ = std::move(on_end);
        }
        return Advance();
      }
    }
    std::move(on_end)(absl::AbortedError("the request was forwarded before, or its client has left"));
  }
  // The request, while it is held.
  PlacedRequest::Call ToPrefill() {
    MutexLock lock(&mutex_);
    if (exchange_.phase() != Exchange::Phase::kHeld || left_) return {};
    // The path of the client may have a part that only the gateway knows.
    const bool chat = absl::StrContains(exchange_.header(":path"), "/chat/completions");
    const absl::string_view authorization = exchange_.header("authorization");
    const bool is_text = std::all_of(authorization.begin(), authorization.end(), absl::ascii_isprint);
    return {chat ? "/v1/chat/completions" : "/v1/completions",
            is_text ? std::string(authorization) : std::string(), exchange_.body()};
  }
  // The stream tells when that request ends.
  void Watch(core::RequestId request, PlacedRequest::OnEnd on_end) {
    {
      MutexLock lock(&mutex_);
      request_ = request;
      if (!left_) return std::swap(on_end_, on_end);
    }
    std::move(on_end)(absl::OkStatus());
  }
  // The router ends: a response continues without the stream.
  void Release() {
    MutexLock lock(&mutex_);
    Refuse(ShuttingDown());
    SetEnd(grpc::Status::OK);
    Advance();
  }

  // --- the sink: only the end of the request matters ---

  uint64_t id() const override { return id_; }
  const std::string& traceparent() const override { return traceparent_; }
  void SetModel(const std::string&) override {}
  Delivery Deliver(uint32_t, absl::Span<const uint32_t>, const LogprobsView&, absl::Time) override {
    return Delivery::kTaken;
  }
  void CatchUp(uint32_t, absl::Span<const uint32_t>, const LogprobsView&) override {}
  bool End(const absl::Status& status, std::optional<router::Finish>) override {
    MutexLock lock(&mutex_);
    if (status.ok()) return false;
    Refuse(status);
    return true;
  }
  bool Cancelled() override {
    MutexLock lock(&mutex_);
    return left_ && !observed_;
  }
  void Flush() override {
    MutexLock lock(&mutex_);
    Advance();
  }
  void BreakOff() override {
    if (HasEnded()) BreakOffIfStuck(MonotonicNow(), absl::ZeroDuration());
  }

  // Submits the request, which is complete.
  void ReadBody() {
    std::string body;
    {
      MutexLock lock(&mutex_);
      if (left_ || exchange_.phase() != Exchange::Phase::kHeld) return;
      body = exchange_.TakeBody();
    }
    absl::StatusOr<OpenAiRequest> read = service_->Read(exchange(), body);
    {
      MutexLock lock(&mutex_);
      exchange_.ReturnBody(std::move(body));
    }
    if (!read.ok()) return Submit(read.status());
    text_bytes_ = read->text_bytes;
    Renderers& renderers = *service_->options_.renderers;
    PlacedRequest::Call call;
    // Of a conversation on the server (responses) only the server knows the prompt.
    if (text_bytes_ > 0 && absl::StrContains(exchange().header(":path"), "/completions") && renderers.any())
      call = ToPrefill();
    if (call.body.empty()) return Place(*read);
    renderers.Ask(tenant(), std::move(call),
                  [self = shared_from_this(),
                   read = *std::move(read)](const absl::StatusOr<RenderedPrompt>& prompt) mutable {
                    if (prompt.ok()) SetTokens(*prompt, read);
                    self->Place(read);
                  });
  }

 private:
  class Request final : public PlacedRequest {
   public:
    Request(std::shared_ptr<PickerCall> call, int64_t bytes, int64_t text_bytes)
        : PlacedRequest(bytes, text_bytes), call_(std::move(call)) {}
    void SendTo(const Place& place, OnEnd on_end) const override { call_->SendTo(place, std::move(on_end)); }
    Call ToPrefill() const override { return call_->ToPrefill(); }

   private:
    const std::shared_ptr<PickerCall> call_;
  };

  void OnMessage(In message) override {
    Exchange::Action action = Exchange::Action::kNone;
    bool large = false;
    {
      MutexLock lock(&mutex_);
      if (ended()) return;
      const bool first = exchange_.phase() == Exchange::Phase::kHeaders;
      action = exchange_.OnMessage(std::move(message));
      if (first && exchange_.observes()) service_->Observe(exchange_.header("x-request-id"), id_);
      if (action == Exchange::Action::kTooLarge) {
        Refuse(absl::OutOfRangeError(absl::StrCat("the body has more than ", kMaxBodyBytes, " bytes")));
      } else if (action == Exchange::Action::kBroken) {
        SetEnd(
            {grpc::StatusCode::INVALID_ARGUMENT, "the message is not allowed in this state of the stream"});
      } else if ((exchange_.phase() == Exchange::Phase::kBody || action == Exchange::Action::kPlace) &&
                 !TakeShare()) {
        action = Exchange::Action::kNone;
        Refuse(
            absl::ResourceExhaustedError("the tenant sends too many requests, or too large ones, at once"));
      }
      large = exchange_.body().size() > kLargeBody;
      Advance();
    }
    if (action == Exchange::Action::kPlace) {
      if (large) {
        MutexLock lock(&service_->mutex_);
        service_->large_.Push({tenant(), ""}, shared_from_this());
      } else {
        ReadBody();
      }
    }
    MutexLock lock(&mutex_);
    // The next message is read when Envoy has taken what answers this one (Next).
    reads_later_ = writing();
    if (!ended() && !reads_later_) Read();
  }
  void OnNoMessage() override {
    Leave();
    Close(grpc::Status::OK);
  }
  void OnCancel() override {
    ServerCall::OnCancel();
    Leave();
  }
  void OnGone() override {
    Leave();
    std::string observed;
    {
      MutexLock lock(&mutex_);
      bound_.reset();
      if (exchange_.observes()) observed = std::string(exchange_.header("x-request-id"));
    }
    service_->Forget(id_, observed);
  }
  bool Next(Out& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (answers_.empty()) answers_ = exchange_.TakeAnswers();
    message = Out();
    if (answers_.empty()) {
      // What was held has been forwarded.
      if (exchange_.phase() > Exchange::Phase::kHeld) share_.reset();
      if (std::exchange(reads_later_, false) && !ended()) Read();
      return false;
    }
    message = std::move(answers_.front());
    answers_.pop_front();
    return true;
  }

  std::string tenant() const { return std::string(exchange().header(service_->options_.tenant_header)); }
  // Its headers and subset, which do not change after the first message.
  const Exchange& exchange() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return exchange_; }
  // False beyond the tenant's share.
  bool TakeShare() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!share_) share_.emplace(service_->held_);
    const int64_t holds = PickerService::kStreamBytes + std::ssize(exchange_.body());
    return share_->Take({tenant(), ""}, holds - share_->held());
  }
  // Answers instead of a place, and ends the stream after that.
  void Refuse(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Exchange::Phase before = exchange_.phase();
    exchange_.OnRefused(status);
    if (exchange_.phase() != before) SetEnd(grpc::Status::OK);
  }

  static void SetTokens(const RenderedPrompt& prompt, OpenAiRequest& read) {
    read.text_bytes = 0;
    read.prompt_tokens = static_cast<uint32_t>(prompt.tokens.size());
    read.prefix = prompt.has_media ? nullptr : core::NamePrefixBlocks(prompt.tokens);
  }

  void Place(const OpenAiRequest& read) {
    absl::StatusOr<ClientRequest> request = service_->RequestOf(exchange(), id_, read);
    if (!request.ok() || !exchange().subset()) return Submit(std::move(request));
    const absl::Status asked =
        service_->handler_->GetLoads(std::nullopt, [self = shared_from_this(), request = *std::move(request)](
                                                       const absl::StatusOr<Loads>& loads) mutable {
          absl::Status chosen = loads.status();
          if (chosen.ok()) chosen = self->ChooseWithin(*loads, request);
          self->Submit(chosen.ok() ? absl::StatusOr<ClientRequest>(std::move(request)) : chosen);
        });
    if (!asked.ok()) Submit(asked);
  }

  // Binds the request to the least loaded rank of Envoy's subset, unless that has all ranks. UNAVAILABLE: it
  // has none.
  absl::Status ChooseWithin(const Loads& loads, ClientRequest& request) {
    const RankLoad* least = nullptr;
    int64_t of_least = 0;
    bool all = true;
    for (const RankLoad& load : loads.loads) {
      if (load.hands_over) continue;
      const int64_t requests = load.running_requests + service_->bound_->held({load.worker_id, ""});
      if (!Contains(*exchange().subset(), load.worker_id)) {
        all = false;
      } else if (least == nullptr || requests * least->slots < of_least * load.slots) {
        least = &load;
        of_least = requests;
      }
    }
    if (least == nullptr) return absl::UnavailableError("none of the endpoints that Envoy permits serves");
    if (all) return absl::OkStatus();
    request.rank = least->rank;
    MutexLock lock(&mutex_);
    bound_.emplace(service_->bound_).Take({least->worker_id, ""}, 1);
    return absl::OkStatus();
  }

  void Submit(absl::StatusOr<ClientRequest> request) {
    absl::Status status = request.status();
    if (status.ok()) {
      {
        MutexLock lock(&mutex_);
        if (request->passed.no_hand_off) exchange_.DropBody();
        // It counts as a waiting request now.
        if (share_) share_->Give(share_->held() - std::ssize(exchange_.body()));
        traceparent_ = TraceIdOf(exchange_.header("traceparent")).empty()
                           ? ""
                           : std::string(exchange_.header("traceparent"));
        request->passed.message =
            std::make_shared<Request>(shared_from_this(), std::ssize(exchange_.body()), text_bytes_);
      }
      status = service_->handler_->Submit(*std::move(request), {{id_, shared_from_this()}});
    }
    bool left = false;
    {
      MutexLock lock(&mutex_);
      submitted_ = status.ok();
      left = left_ && !observed_;
      if (!status.ok()) {
        Refuse(status);
        Advance();
      }
    }
    // It has left while it was being submitted.
    if (status.ok() && left) service_->handler_->Cancel(id_, /*timed_out=*/false);
  }

  // Envoy has closed the stream, or is gone.
  void Leave() {
    PlacedRequest::OnEnd on_end;
    absl::Status status;
    bool cancels = false;
    {
      MutexLock lock(&mutex_);
      if (std::exchange(left_, true) || observed_) return;
      on_end = std::exchange(on_end_, nullptr);
      status = EndOf(exchange_);
      // It still waits; or its client has left, or its server is gone, in the middle of the response.
      const bool broken = on_end != nullptr && status.ok() && !exchange_.response_complete();
      cancels = (submitted_ && on_end == nullptr) || broken;
    }
    if (cancels) {
      service_->handler_->Cancel(request_, /*timed_out=*/false);
    } else if (on_end != nullptr) {
      std::move(on_end)(status);
    }
  }
  // How a request has ended at its place.
  static absl::Status EndOf(const Exchange& exchange) {
    // Envoy has no connection to the server: the router checks its health.
    if (exchange.status() == 503 && !exchange.failure().empty())
      return absl::UnavailableError(absl::StrCat("Envoy could not forward it: ", exchange.failure()));
    if (exchange.status() >= 400)
      return absl::AbortedError(absl::StrCat("the engine has answered with status ", exchange.status()));
    return absl::OkStatus();
  }

  PickerService* const service_;
  const core::RequestId id_;
  // Set before the request is submitted.
  std::string traceparent_;
  int64_t text_bytes_ = 0;
  Exchange exchange_ ABSL_GUARDED_BY(mutex_);
  std::deque<Out> answers_ ABSL_GUARDED_BY(mutex_);
  std::optional<CapacityShare> share_ ABSL_GUARDED_BY(mutex_);
  // While it waits for the rank that was chosen of Envoy's subset.
  std::optional<CapacityShare> bound_ ABSL_GUARDED_BY(mutex_);
  bool reads_later_ ABSL_GUARDED_BY(mutex_) = false;
  PlacedRequest::OnEnd on_end_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  // Another stream tells how its request ends; the request of this stream, or the one that it watches.
  bool observed_ ABSL_GUARDED_BY(mutex_) = false;
  core::RequestId request_ ABSL_GUARDED_BY(mutex_) = id_;
};

PickerService::PickerService(RequestHandler* handler, Authenticator* authenticator, PickerOptions options)
    : handler_(handler),
      authenticator_(authenticator),
      options_(std::move(options)),
      headers_(
          {":path", "x-request-id", "traceparent", "authorization", kTtftHeader, options_.tenant_header}) {
  Add("/envoy.service.ext_proc.v3.ExternalProcessor/Process",
      [this](grpc::CallbackServerContext* context) { return Process(context); });
}

PickerService::~PickerService() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  reader_.join();
}

void PickerService::ReadLarge() {
  const auto awaited = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !large_.empty(); };
  for (;;) {
    std::shared_ptr<PickerCall> call;
    {
      MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&awaited));
      if (stopping_) return;
      FairShares one(1);
      call = large_.Pop(one)->second;
    }
    call->ReadBody();
  }
}

PickerCall* PickerService::Process(grpc::CallbackServerContext* context) {
  return PickerCall::Begin(this, context);
}

int64_t PickerService::streams() const {
  MutexLock lock(&mutex_);
  return std::ssize(calls_);
}

void PickerService::Observe(absl::string_view request_id, uint64_t id) {
  MutexLock lock(&mutex_);
  observers_.emplace(std::string(request_id), id);
}

std::shared_ptr<PickerCall> PickerService::TakeObserver(absl::string_view request_id) {
  MutexLock lock(&mutex_);
  const auto found = observers_.find(request_id);
  if (found == observers_.end()) return nullptr;
  const auto call = calls_.find(found->second);
  observers_.erase(found);
  return call == calls_.end() ? nullptr : call->second.lock();
}

int64_t PickerService::observers() const {
  MutexLock lock(&mutex_);
  return std::ssize(observers_);
}

void PickerService::Forget(uint64_t id, absl::string_view observed) {
  MutexLock lock(&mutex_);
  calls_.erase(id);
  const auto range = observers_.equal_range(observed);
  const auto found =
      std::find_if(range.first, range.second, [id](const auto& one) { return one.second == id; });
  if (found != range.second) observers_.erase(found);
}

void PickerService::Close() {
  std::vector<std::shared_ptr<PickerCall>> calls;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, weak] : calls_) {
      if (auto call = weak.lock()) calls.push_back(std::move(call));
    }
  }
  for (const auto& call : calls) call->Release();
}

absl::StatusOr<OpenAiRequest> PickerService::Read(const Exchange& exchange, absl::string_view body) const {
  if (Generates(exchange.header(":path")) && !body.empty()) return ReadOpenAiRequest(body);
  // Others, such as GET /v1/models, go to any server.
  BFIO_RETURN_IF_ERROR(CheckNoHandOff(body));
  return OpenAiRequest{.max_tokens = 1};
}

absl::StatusOr<ClientRequest> PickerService::RequestOf(const Exchange& exchange, core::RequestId id,
                                                       const OpenAiRequest& read) const {
  ClientRequest request;
  // Clients may send the same x-request-id twice.
  request.request_id =
      absl::StrCat(exchange.header("x-request-id").substr(0, options_.limits.max_id_bytes / 2), "#", id);
  request.tenant = std::string(exchange.header(options_.tenant_header));
  if (!std::all_of(request.tenant.begin(), request.tenant.end(), absl::ascii_isgraph))
    return absl::InvalidArgumentError(
        absl::StrCat(options_.tenant_header, " must be printable ASCII without spaces"));
  const double tokens = read.text_bytes == 0
                            ? read.prompt_tokens
                            : static_cast<double>(read.text_bytes) / options_.text_ratio->bytes_per_token();
  // The engines judge lengths by their own counts: these are estimates, and must not exceed a limit.
  const Serving serving = handler_->GetServing();
  const int64_t longest = serving.max_sequence_tokens;
  const int64_t most = longest > 1 ? longest : int64_t{options_.limits.max_prompt_tokens} + 1;
  request.prompt_tokens = static_cast<uint32_t>(
      std::clamp<int64_t>(static_cast<int64_t>(std::ceil(tokens)), 1,
                          std::min<int64_t>(most - 1, options_.limits.max_prompt_tokens)));
  const int64_t left = std::min<int64_t>(most - request.prompt_tokens, options_.limits.max_new_tokens);
  request.max_new_tokens_unset = !read.max_tokens.has_value();
  // Several outputs share the prompt's KV, and hold their own.
  const int64_t wanted = read.max_tokens ? int64_t{*read.max_tokens} * read.outputs : left;
  request.max_new_tokens = static_cast<uint32_t>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, left)));
  request.priority_unset = true;
  if (options_.limits.name_prefixes) request.prefix = FirstBlocks(read.prefix, request.prompt_tokens);
  if (const absl::string_view text = exchange.header(kTtftHeader); !text.empty()) {
    BFIO_ASSIGN_OR_RETURN(request.ttft_objective, TtftObjectiveOf(text));
  }
  request.passed.on = true;
  if (serving.computes_none && !read.one_prompt)
    return absl::InvalidArgumentError(
        "other servers compute prompts: a request has one prompt and one output");
  request.passed.no_hand_off =
      !serving.computes_none && (!read.one_prompt || !serving.hands_over || request.max_new_tokens == 1);
  BFIO_RETURN_IF_ERROR(CheckRequest(request, options_.limits));
  return request;
}

namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLimits = {.bytes = kMaxBodyBytes, .string_bytes = kMaxBodyBytes};
constexpr uint32_t kMostOutputs = 1024;
constexpr char kHandOff[] = "kv_transfer_params";
// Members with text, in the order in which chat templates put them: before the conversation; of the others
// the first that there is.
constexpr std::array<absl::string_view, 5> kTexts = {"tools", "instructions", "messages", "prompt", "input"};
constexpr size_t kBefore = 2, kMessages = 2, kPrompt = 3;

// What a prompt is made of, read value by value: a tree of it would take fifty times its bytes.
struct Contents {
  std::optional<JsonPath::Kind> kind;
  bool twice = false;
  // All texts, in order; names are left out, except for roles' values. Two conversations that begin alike
  // then have texts that begin alike.
  std::string text;
  // Token ids, unless it has anything else.
  std::vector<uint32_t> ids;
  bool has_others = false;

  void Add(const JsonPath& path, const Json& value) {
    if (value.is_string()) absl::StrAppend(&text, value.get_ref<const std::string&>(), "\n");
    if (kind == JsonPath::Kind::kArray && path.names.size() == 2 && value.is_number_unsigned()) {
      ids.push_back(static_cast<uint32_t>(value.get<uint64_t>()));
    } else {
      has_others = true;
    }
  }
  bool AllIds() const { return !ids.empty() && !has_others; }
};
using AllContents = std::array<Contents, kTexts.size()>;

// The prompt as numbers, so that equal beginnings have equal numbers: its token ids, or its bytes by four.
std::vector<uint32_t> UnitsOf(Contents prompt, const std::string& before) {
  if (prompt.AllIds()) return std::move(prompt.ids);
  const std::string text = before.empty() ? std::move(prompt.text) : before + prompt.text;
  std::vector<uint32_t> units((text.size() + kBytesPerToken - 1) / kBytesPerToken, 0);
  if (!text.empty()) std::memcpy(units.data(), text.data(), text.size());
  return units;
}

bool IsSet(const Json& request, const char* name) {
  const auto found = request.find(name);
  return found != request.end() && !found->is_null() && *found != false;
}

// vLLM also takes it out of vllm_xargs, and out of sampling_params.extra_args.
bool IsHandOff(const JsonPath& path) {
  return !path.names.empty() && path.names.back() == kHandOff;
}
absl::Status CheckHandOff(const Json& value) {
  if (value.is_null() || value == false) return absl::OkStatus();
  return absl::InvalidArgumentError("kv_transfer_params of a client: only the router hands prompts over");
}

std::optional<uint32_t> CountIn(const Json& request, const char* name) {
  const auto found = request.find(name);
  if (found == request.end() || !found->is_number_unsigned()) return std::nullopt;
  return static_cast<uint32_t>(
      std::min<uint64_t>(found->get<uint64_t>(), std::numeric_limits<uint32_t>::max()));
}

// What is read of a request besides its texts.
constexpr std::array<absl::string_view, 10> kFields = {
    "model",   "max_tokens", "max_completion_tokens", "max_output_tokens",      "n",
    "best_of", "echo",       "prompt_logprobs",       "truncate_prompt_tokens", "use_beam_search"};

absl::Status ReadRequest(absl::string_view body, Json& fields, AllContents& contents) {
  const auto of = [&](const JsonPath& path) -> Contents* {
    const auto found = std::find(kTexts.begin(), kTexts.end(), path.names.front());
    return found == kTexts.end() ? nullptr : &contents[static_cast<size_t>(found - kTexts.begin())];
  };
  const auto wanted = [&](const JsonPath& path) {
    if (path.names.empty()) return false;
    Contents* const in = of(path);
    const bool top = path.names.size() == 1;
    if (in == nullptr) {
      return IsHandOff(path) ||
             (top && std::find(kFields.begin(), kFields.end(), path.names.front()) != kFields.end());
    }
    if (top) in->twice = std::exchange(in->kind, path.kind).has_value();
    return path.kind == JsonPath::Kind::kScalar;
  };
  const auto take = [&](const JsonPath& path, Json& value) {
    const std::string& name = path.names.front();
    Contents* const in = of(path);
    if (in == nullptr && IsHandOff(path)) return CheckHandOff(value);
    if (in != nullptr ? in->twice : fields.contains(name))
      return absl::InvalidArgumentError(absl::StrCat("gives '", name, "' twice"));
    if (in != nullptr) {
      in->Add(path, value);
    } else {
      fields[name] = std::move(value);
    }
    return absl::OkStatus();
  };
  BFIO_RETURN_IF_ERROR(ReadJson(body, "", kLimits, wanted, take));
  if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(WithoutByteOrderMark(body)), "{"))
    return absl::OkStatus();
  return absl::InvalidArgumentError("is not a JSON object");
}

// As Python's json.loads sees it, which servers use.
bool IsUtf16Or32(absl::string_view text) {
  return absl::StartsWith(text, "\xfe\xff") || absl::StartsWith(text, "\xff\xfe") ||
         text.substr(0, 2).find('\0') != absl::string_view::npos;
}

}  // namespace

bool Generates(absl::string_view path) {
  path = path.substr(0, path.find('?'));
  return absl::EndsWith(path, "/completions") || absl::EndsWith(path, "/responses");
}

absl::Status CheckNoHandOff(absl::string_view body) {
  if (IsUtf16Or32(body)) return absl::InvalidArgumentError("the body is UTF-16 or UTF-32; must be UTF-8");
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(WithoutByteOrderMark(body));
  if (!absl::StartsWith(text, "{")) return absl::OkStatus();
  return ReadJson(body, "", kLimits, IsHandOff,
                  [](const JsonPath&, const Json& value) { return CheckHandOff(value); });
}

absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(absl::string_view body) {
  Json json = Json::object();
  AllContents contents;
  BFIO_RETURN_IF_ERROR(ReadRequest(body, json, contents));
  OpenAiRequest request;
  if (const auto model = json.find("model"); model != json.end() && model->is_string())
    request.model = model->get<std::string>();
  for (const char* name : {"max_completion_tokens", "max_output_tokens", "max_tokens"}) {
    if (!request.max_tokens) request.max_tokens = CountIn(json, name);
  }
  request.outputs = std::clamp(std::max(CountIn(json, "n").value_or(1), CountIn(json, "best_of").value_or(1)),
                               uint32_t{1}, kMostOutputs);
  std::string before;
  for (size_t i = 0; i < kBefore; ++i) before += contents[i].text;
  // Where it is cut depends on max_tokens.
  bool plain = request.outputs == 1;
  for (const char* name : {"echo", "prompt_logprobs", "truncate_prompt_tokens", "use_beam_search"})
    plain = plain && !IsSet(json, name);
  const Contents& prompt = contents[kPrompt];
  const bool is_text = prompt.kind == JsonPath::Kind::kScalar && !prompt.text.empty();
  request.one_prompt =
      plain && (contents[kMessages].kind == JsonPath::Kind::kArray || is_text || prompt.AllIds());
  std::vector<uint32_t> units;
  for (size_t i = kBefore; i < kTexts.size(); ++i) {
    if (!contents[i].kind || !units.empty()) continue;
    if (!contents[i].AllIds()) request.text_bytes = std::ssize(before) + std::ssize(contents[i].text);
    units = UnitsOf(std::move(contents[i]), before);
  }
  request.prompt_tokens = static_cast<uint32_t>(std::max<size_t>(1, units.size()));
  request.prefix = core::NamePrefixBlocks(units);
  return request;
}

}  // namespace bfio::router::picker
