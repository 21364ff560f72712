#include "router/engine_link/http/http_engine.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/auth/token_file.h"
#include "common/base/annotated.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/http/reloaded_tls.h"
#include "common/json/json_reader.h"
#include "common/telemetry/metrics/engine_metrics.h"
#include "router/requests/placed_request.h"

namespace bfio::router {
namespace {

constexpr double kLargestCount = int64_t{1} << 40;

int64_t Count(double value) {
  return static_cast<int64_t>(std::clamp(value, 0.0, kLargestCount));
}

EngineLoad LoadOf(const EngineMetrics& metrics) {
  EngineLoad load{.requests = Count(std::max(0.0, metrics.running) + std::max(0.0, metrics.waiting))};
  if (metrics.kv_use > 0 && metrics.kv_tokens > 0) load.tokens = Count(metrics.kv_use * metrics.kv_tokens);
  if (metrics.generated >= 0) load.generated = Count(metrics.generated);
  return load;
}

// A prompt that takes longer is computed again. A rank that does nothing is found sooner (EngineRank).
constexpr absl::Duration kLongestPrefill = absl::Minutes(30);
// Longer than a prompt of a million tokens takes. Without an answer its text must do.
constexpr absl::Duration kLongestRender = absl::Seconds(2);

class HttpEngine final : public EngineClient {
 public:
  bool carries_tokens() const override { return false; }
  bool keeps_connection() const override { return false; }
  absl::Duration check_interval() const override { return absl::Milliseconds(500); }
  HttpEngine(const EngineAddress& engine, std::shared_ptr<TextRatio> ratio,
             std::shared_ptr<Renderers> renderers)
      : engine_(engine),
        server_(engine.server.ToString()),
        prompts_(std::make_shared<PromptCount>(std::move(ratio))),
        renderers_(engine.exact_prefixes ? std::move(renderers) : nullptr),
        http_(std::make_shared<HttpClient>(engine.server, LoginOf(engine))) {
    if (renderers_ != nullptr) {
      renderers_->Add(this, [this](const PlacedRequest::Call& call, Renderers::Done done) {
        http_->Post(call.path + "/render", HeadersOf(call), call.body, MonotonicNow() + kLongestRender,
                    [this, done = std::move(done)](absl::StatusOr<HttpClient::Answer> answer) mutable {
                      absl::StatusOr<RenderedPrompt> prompt = RenderedFrom(std::move(answer));
                      TellWhetherItRenders(prompt.status());
                      std::move(done)(std::move(prompt));
                    });
      });
    }
  }
  ~HttpEngine() override {
    if (renderers_ != nullptr) renderers_->Remove(this);
    http_->Stop();
  }

  void Describe(absl::Duration timeout,
                absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&> done) override {
    const absl::Time deadline = MonotonicNow() + timeout;
    Get("/v1/models", deadline, [this, deadline, done = std::move(done)](auto models) mutable {
      if (!models.ok()) return std::move(done)(models.status());
      Get("/metrics", deadline,
          [this, models = *std::move(models), done = std::move(done)](auto metrics) mutable {
            if (!metrics.ok()) return std::move(done)(metrics.status());
            std::move(done)(Described(models, *metrics));
          });
    });
  }
  void CheckHealth(absl::Duration timeout, absl::AnyInvocable<void(absl::Status) &&> done) override {
    Get("/health", MonotonicNow() + timeout,
        [done = std::move(done)](const auto& answer) mutable { std::move(done)(answer.status()); });
  }
  void GetLoads(absl::Duration timeout,
                absl::AnyInvocable<void(absl::StatusOr<std::vector<EngineRankLoad>>) &&> done) override {
    Get("/metrics", MonotonicNow() + timeout, [this, done = std::move(done)](const auto& metrics) mutable {
      if (!metrics.ok()) return std::move(done)(metrics.status());
      std::vector<EngineRankLoad> loads;
      double prompts = 0, tokens = 0;
      for (const auto& [rank, one] : ReadEngineMetrics(*metrics)) {
        if (one.running >= 0) loads.push_back({rank, LoadOf(one)});
        // SGLang has no histogram by default, and counts a prompt when it ends.
        prompts += one.prompts.count > 0 ? one.prompts.count : one.ends.count;
        tokens += one.prompts.count > 0 ? one.prompts.sum : std::max(0.0, one.prompted);
      }
      prompts_->OnCount(prompts, tokens);
      std::move(done)(std::move(loads));
    });
  }
  std::shared_ptr<EngineRecords> Subscribe(RecordCallbacks callbacks) override {
    std::move(callbacks.on_end)(absl::UnimplementedError("loads are polled"));
    return nullptr;
  }
  std::shared_ptr<EngineStream> Generate(const EngineCall& call, std::optional<int32_t> rank,
                                         const std::string& name, StreamCallbacks callbacks) override {
    const auto* const request = dynamic_cast<const PlacedRequest*>(call.passed.message.get());
    if (request == nullptr) {
      std::move(callbacks.on_end)(absl::FailedPreconditionError(
          "the engine is behind Envoy (--engines=http://..): requests must come through Envoy"));
      return std::make_shared<EngineStream>();
    }
    const KvConnector& connector = KvConnectorOf(engine_.kv_connector);
    if (call.hands_over && connector.by_header()) {
      std::move(callbacks.on_end)(EngineEnd{.finish = EngineFinish::kLength});
      return std::make_shared<EngineStream>();
    }
    if (call.hands_over) return Prefill(*request, call, rank, name, std::move(callbacks));
    PlacedRequest::Place place{server_, rank};
    const std::string parameters = call.hand_off == nullptr ? "" : call.hand_off->parameters;
    if (connector.by_header()) {
      place.prefill_server = parameters;
    } else if (call.hand_off != nullptr) {
      place.members = connector.InBody(parameters);
    }
    request->SendTo(place, [on_end = std::move(callbacks.on_end), prompts = prompts_,
                            bytes = request->text_bytes()](const absl::Status& end) mutable {
      if (!end.ok()) return std::move(on_end)(end);
      prompts->OnEnd(bytes);
      std::move(on_end)(EngineEnd{.finish = EngineFinish::kStop});
    });
    return std::make_shared<EngineStream>();
  }

 private:
  class PrefillCall final : public EngineStream {
   public:
    PrefillCall(const std::shared_ptr<HttpClient>& http, uint64_t call) : http_(http), call_(call) {}
    // vLLM frees the blocks of a prompt whose caller has left.
    void Cancel() override {
      if (const auto http = http_.lock()) http->Cancel(call_);
    }

   private:
    const std::weak_ptr<HttpClient> http_;
    const uint64_t call_;
  };

  std::shared_ptr<EngineStream> Prefill(const PlacedRequest& request, const EngineCall& call,
                                        std::optional<int32_t> rank, const std::string& name,
                                        StreamCallbacks callbacks) {
    const PlacedRequest::Call sent = request.ToPrefill();
    if (sent.body.empty()) {
      std::move(callbacks.on_end)(absl::AbortedError("its client has left"));
      return std::make_shared<EngineStream>();
    }
    std::string headers = absl::StrCat(HeadersOf(sent), "X-Request-Id: ", name, "\r\n");
    if (rank) absl::StrAppend(&headers, "X-data-parallel-rank: ", *rank, "\r\n");
    if (!call.traceparent.empty()) absl::StrAppend(&headers, "traceparent: ", call.traceparent, "\r\n");
    const uint64_t number = http_->Post(
        sent.path, headers, PrefillBody(sent.body, call.kv_source), MonotonicNow() + kLongestPrefill,
        [on_end = std::move(callbacks.on_end),
         source = call.kv_source](absl::StatusOr<HttpClient::Answer> answer) mutable {
          std::move(on_end)(EndOfPrefill(std::move(answer), source));
        });
    return std::make_shared<PrefillCall>(http_, number);
  }

  // Only what the server says; others may lack a connection at times. On the client's thread.
  void TellWhetherItRenders(const absl::Status& status) {
    if (!status.ok() && !absl::IsFailedPrecondition(status)) return;
    if (renders_.exchange(status.ok()) && !status.ok()) {
      spdlog::warn("engine {}: it renders no prompt ({}; vLLM needs --enable-scale-out): their texts count",
                   engine_.ToString(), std::string(status.message()));
    }
  }
  std::string HeadersOf(const PlacedRequest::Call& call) const {
    const bool authorized = !call.authorization.empty() && engine_.token_file.empty();
    return absl::StrCat("Content-Type: application/json\r\n", authorized ? "Authorization: " : "",
                        authorized ? call.authorization : "", authorized ? "\r\n" : "");
  }

  template <typename Done>
  void Get(absl::string_view path, absl::Time deadline, Done done) {
    http_->Get(path, deadline, [path, done = std::move(done)](auto answer) mutable {
      if (answer.ok() && answer->status == 200)
        return done(absl::StatusOr<std::string>(std::move(answer->body)));
      if (answer.ok()) answer = absl::FailedPreconditionError(absl::StrCat("status ", answer->status));
      done(absl::StatusOr<std::string>(Annotated(absl::StrCat("GET ", path), answer.status())));
    });
  }

  absl::StatusOr<EngineDescription> Described(const std::string& models, const std::string& text) {
    EngineDescription description;
    BFIO_RETURN_IF_ERROR(ReadModels(models, description));
    const std::map<int32_t, EngineMetrics> ranks = ReadEngineMetrics(text);
    if (ranks.empty())
      return absl::FailedPreconditionError(
          "GET /metrics: neither vLLM's nor SGLang's (SGLang needs --enable-metrics)");
    description.first_rank = ranks.begin()->first;
    description.ranks = static_cast<int32_t>(ranks.size());
    if (ranks.rbegin()->first - description.first_rank >= description.ranks)
      return absl::FailedPreconditionError("GET /metrics: its ranks are not numbered one after another");
    description.hands_over = engine_.hands_over;
    description.kv_connector = engine_.kv_connector;
    description.slots = engine_.slots;
    for (const auto& [rank, metrics] : ranks) {
      if (description.slots == 0)
        description.slots = static_cast<int32_t>(std::clamp(metrics.slots, 0.0, kMostEngineSlots + 1.0));
      if (metrics.kv_tokens > 0) description.kv_tokens = Count(metrics.kv_tokens);
      description.running.push_back(LoadOf(metrics));
      description.kv_type = metrics.kv_type;
      description.kv_block_tokens = metrics.kv_block_tokens;
    }
    if (description.slots < 1)
      return absl::FailedPreconditionError(
          "it does not report how many requests it runs at a time: set slots (vLLM: max_num_seqs) in its "
          "entry of "
          "--config");
    return description;
  }

  const EngineAddress engine_;
  const std::string server_;
  const std::shared_ptr<PromptCount> prompts_;
  // Null: it renders no prompts.
  const std::shared_ptr<Renderers> renderers_;
  std::atomic<bool> renders_ = true;
  const std::shared_ptr<HttpClient> http_;
};

}  // namespace

HttpClient::Login LoginOf(const EngineAddress& engine) {
  HttpClient::Login login{.name = engine.name.empty() ? engine.server.host : engine.name};
  if (engine.tls.enabled()) {
    login.tls = [files = engine.tls, tls = std::shared_ptr<ReloadedTls>()]() mutable {
      if (tls == nullptr) tls = ReloadedTls::Load(files, TlsEnd::kClient).value_or(nullptr);
      return tls == nullptr ? nullptr : tls->Current();
    };
  }
  if (!engine.token_file.empty()) {
    login.token = [token = std::make_shared<ClientToken>(engine.token_file)] { return token->Get(); };
  }
  return login;
}

std::unique_ptr<EngineClient> NewHttpEngine(const EngineAddress& engine, std::shared_ptr<TextRatio> ratio,
                                            std::shared_ptr<Renderers> renderers) {
  return std::make_unique<HttpEngine>(engine, std::move(ratio), std::move(renderers));
}

std::string PrefillBody(absl::string_view body, const KvSource& source) {
  const KvConnector& connector = KvConnectorOf(source.connector);
  std::vector<std::pair<std::string, std::string>> members = {{"stream", "false"}, {"stream_options", ""}};
  // The one token is not the client's: the rank that decodes draws it again, and says whether it ends there.
  // One that waits for the prompt takes it over, so it is drawn as the client says.
  if (!connector.in_parallel()) {
    for (const char* const name :
         {"max_completion_tokens", "min_tokens", "n", "best_of", "stop", "stop_token_ids"})
      members.emplace_back(name, "");
    members.emplace_back("max_tokens", "1");
    members.emplace_back("ignore_eos", "true");
  }
  for (auto& member : connector.InBody(connector.ToCompute(source))) members.push_back(std::move(member));
  return WithMembers(body, members);
}

absl::StatusOr<EngineEnd> EndOfPrefill(absl::StatusOr<HttpClient::Answer> answer, const KvSource& source) {
  // The server has died, or the prompt takes too long.
  if (absl::IsDataLoss(answer.status()) || absl::IsDeadlineExceeded(answer.status()))
    return absl::UnavailableError(answer.status().message());
  if (!answer.ok() && !absl::IsFailedPrecondition(answer.status())) return answer.status();
  if (answer.ok() && (answer->status == 429 || answer->status == 503))
    return absl::ResourceExhaustedError(absl::StrCat("the prefill server answers ", answer->status));
  // Another rank waits for it, and says what is wrong with it.
  if (KvConnectorOf(source.connector).in_parallel()) return EngineEnd{.finish = EngineFinish::kLength};
  std::string handed_over;
  if (answer.ok() && answer->status == 200) {
    constexpr JsonLimits kLimits = {.bytes = HttpClient::kMostAnswerBytes, .values = size_t{1} << 18};
    const auto fields = ReadJsonObject(answer->body, "", kLimits, {"kv_transfer_params"});
    const auto value = fields.ok() ? fields->value("kv_transfer_params", nlohmann::json()) : nlohmann::json();
    if (!value.is_null()) handed_over = JsonText(value);
  }
  EngineEnd end{.finish = EngineFinish::kLength};
  BFIO_ASSIGN_OR_RETURN(end.hand_off, HandOffFrom(source, std::move(handed_over)));
  return end;
}

absl::StatusOr<RenderedPrompt> RenderedFrom(absl::StatusOr<HttpClient::Answer> answer) {
  BFIO_RETURN_IF_ERROR(answer.status());
  if (answer->status != 200) return absl::FailedPreconditionError(absl::StrCat("status ", answer->status));
  RenderedPrompt prompt;
  int prompts = 0;
  // An object, or (for completions) a list of them.
  const auto name_of = [](const JsonPath& path, size_t place) -> absl::string_view {
    const size_t at = place + (path.names.front().empty() ? 1 : 0);
    return at < path.names.size() ? absl::string_view(path.names[at]) : "";
  };
  const auto wanted = [&](const JsonPath& path) {
    if (path.names.empty()) return false;
    const absl::string_view name = name_of(path, 0);
    const bool scalar = path.kind == JsonPath::Kind::kScalar;
    if (!scalar && (name == "features" || name == "content_parts")) prompt.has_media = true;
    if (name != "token_ids") return false;
    const bool list = name_of(path, 1).empty() && !path.in_array;
    if (list) ++prompts;
    return scalar && path.in_array;
  };
  const auto take = [&](const JsonPath&, const nlohmann::json& value) {
    if (!value.is_number_unsigned()) return absl::InvalidArgumentError("a token is no number");
    prompt.tokens.push_back(static_cast<uint32_t>(value.get<uint64_t>()));
    return absl::OkStatus();
  };
  BFIO_RETURN_IF_ERROR(ReadJson(answer->body, "", {.bytes = HttpClient::kMostAnswerBytes}, wanted, take));
  if (prompts != 1 || prompt.tokens.empty()) return absl::InvalidArgumentError("it has not one prompt");
  return prompt;
}

absl::Status ReadModels(absl::string_view text, EngineDescription& description) {
  BFIO_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonObject(text, "GET /v1/models", {}, {"data"}));
  const auto data = json.find("data");
  if (data == json.end() || !data->is_array() || data->empty() || !data->front().is_object())
    return absl::InvalidArgumentError("GET /v1/models: no model");
  // The base model comes first; LoRA adapters follow.
  const nlohmann::json& model = data->front();
  if (const auto id = model.find("id"); id != model.end() && id->is_string())
    description.model = id->get<std::string>();
  if (const auto longest = model.find("max_model_len");
      longest != model.end() && longest->is_number_unsigned())
    description.max_sequence_tokens = Count(longest->get<double>());
  if (description.model.empty()) return absl::InvalidArgumentError("GET /v1/models: the model has no id");
  return absl::OkStatus();
}

}  // namespace bfio::router
