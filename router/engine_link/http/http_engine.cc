#include "router/engine_link/http/http_engine.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/event_queue.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"
#include "router/engine_link/http/http_get.h"
#include "router/requests/placed_request.h"

namespace bfio::router {
namespace {

constexpr int32_t kMostRanks = 1024;
constexpr double kLargestCount = int64_t{1} << 40;

// A number that an engine may have, or -1: it is not reported.
double Plausible(double value) {
  return value >= 0 && value <= kLargestCount ? value : -1;
}
int64_t Count(double value) {
  return static_cast<int64_t>(std::clamp(value, 0.0, kLargestCount));
}

// The rank of a sample; rank 0 if it names none.
std::optional<int32_t> RankOf(const MetricSample& sample) {
  absl::string_view label = sample.label("engine");
  if (label.empty()) label = sample.label("dp_rank");
  int32_t rank = 0;
  if (!label.empty() && (!absl::SimpleAtoi(label, &rank) || rank < 0 || rank >= kMostRanks))
    return std::nullopt;
  return rank;
}

// vLLM before 0.33 has no kv_cache_size_tokens, and num_gpu_blocks is the sum over the ranks.
double KvTokensIn(const MetricSample& sample, int32_t ranks) {
  double tokens = -1, blocks = 0, size = 0;
  if (absl::SimpleAtod(sample.label("kv_cache_size_tokens"), &tokens)) return Plausible(tokens);
  if (!absl::SimpleAtod(sample.label("num_gpu_blocks"), &blocks) ||
      !absl::SimpleAtod(sample.label("block_size"), &size)) {
    return -1;
  }
  return Plausible(blocks * size / std::max(1, ranks));
}

EngineLoad LoadOf(const HttpRankMetrics& metrics) {
  EngineLoad load{.requests = Count(std::max(0.0, metrics.running) + std::max(0.0, metrics.waiting))};
  if (metrics.kv_use > 0 && metrics.kv_tokens > 0) load.tokens = Count(metrics.kv_use * metrics.kv_tokens);
  if (metrics.generated >= 0) load.generated = Count(metrics.generated);
  return load;
}

class HttpEngine final : public EngineClient {
 public:
  bool carries_tokens() const override { return false; }
  absl::Duration check_interval() const override { return absl::Milliseconds(500); }
  explicit HttpEngine(const EngineAddress& engine)
      : server_(engine.server.ToString()),
        slots_(engine.slots),
        get_(engine.server),
        thread_([this] { Run(); }) {}
  ~HttpEngine() override {
    tasks_.Close();
    get_.Stop();
    thread_.join();
  }

  void Describe(absl::Duration timeout,
                absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&> done) override {
    Post(timeout, [this, done = std::move(done)](absl::Time deadline) mutable {
      std::move(done)(Describe(deadline));
    });
  }
  void CheckHealth(absl::Duration timeout, absl::AnyInvocable<void(absl::Status) &&> done) override {
    Post(timeout, [this, done = std::move(done)](absl::Time deadline) mutable {
      std::move(done)(Get("/health", deadline).status());
    });
  }
  void GetLoads(absl::Duration timeout,
                absl::AnyInvocable<void(absl::StatusOr<std::vector<EngineRankLoad>>) &&> done) override {
    Post(timeout,
         [this, done = std::move(done)](absl::Time deadline) mutable { std::move(done)(Loads(deadline)); });
  }
  std::shared_ptr<EngineRecords> Subscribe(RecordCallbacks callbacks) override {
    std::move(callbacks.on_end)(absl::UnimplementedError("loads are polled"));
    return nullptr;
  }
  std::shared_ptr<EngineStream> Generate(const EngineCall& call, std::optional<int32_t> rank,
                                         const std::string&, StreamCallbacks callbacks) override {
    const auto* const request = dynamic_cast<const PlacedRequest*>(call.passed.message.get());
    if (request == nullptr) {
      std::move(callbacks.on_end)(absl::FailedPreconditionError(
          "the engine is behind Envoy (--engines=http://..): requests must come through Envoy"));
      return std::make_shared<EngineStream>();
    }
    request->SendTo({server_, rank}, [on_end = std::move(callbacks.on_end)](const absl::Status& end) mutable {
      if (!end.ok()) return std::move(on_end)(end);
      std::move(on_end)(EngineEnd{.finish = EngineFinish::kStop});
    });
    return std::make_shared<EngineStream>();
  }

 private:
  void Run() {
    std::vector<EventQueue::Event> tasks;
    while (!tasks_.closed()) {
      tasks_.WaitAndTake(absl::Hours(1), tasks);
      for (EventQueue::Event& task : tasks) {
        if (!tasks_.closed()) std::move(task)();
      }
    }
  }

  // Runs the task on the thread. What waits for others before it waits within its own timeout.
  template <typename Task>
  void Post(absl::Duration timeout, Task task) {
    tasks_.Post([deadline = MonotonicNow() + timeout, task = std::move(task)]() mutable { task(deadline); });
  }

  absl::StatusOr<std::string> Get(const std::string& path, absl::Time deadline) {
    absl::StatusOr<HttpGet::Answer> answer = get_(path, deadline);
    if (answer.ok() && answer->status == 200) return std::move(answer->body);
    if (answer.ok()) answer = absl::FailedPreconditionError(absl::StrCat("status ", answer->status));
    return absl::Status(answer.status().code(), absl::StrCat("GET ", path, ": ", answer.status().message()));
  }

  absl::StatusOr<EngineDescription> Describe(absl::Time deadline) {
    EngineDescription description;
    BFIO_ASSIGN_OR_RETURN(const std::string models, Get("/v1/models", deadline));
    BFIO_RETURN_IF_ERROR(ReadModels(models, description));
    BFIO_ASSIGN_OR_RETURN(const std::string metrics, Get("/metrics", deadline));
    const std::map<int32_t, HttpRankMetrics> ranks = ReadEngineMetrics(metrics);
    if (ranks.empty())
      return absl::FailedPreconditionError(
          "GET /metrics: neither vLLM's nor SGLang's (SGLang needs --enable-metrics)");
    description.first_rank = ranks.begin()->first;
    description.ranks = static_cast<int32_t>(ranks.size());
    if (ranks.rbegin()->first - description.first_rank >= description.ranks)
      return absl::FailedPreconditionError("GET /metrics: its ranks are not numbered one after another");
    description.slots = slots_;
    for (const auto& [rank, metrics] : ranks) {
      if (description.slots == 0)
        description.slots = static_cast<int32_t>(std::clamp(metrics.slots, 0.0, kMostEngineSlots + 1.0));
      if (metrics.kv_tokens > 0) description.kv_tokens = Count(metrics.kv_tokens);
      description.running.push_back(LoadOf(metrics));
    }
    if (description.slots < 1)
      return absl::FailedPreconditionError(
          "it does not report how many requests it runs at a time: set slots (vLLM: max_num_seqs) in its "
          "entry of "
          "--config");
    return description;
  }

  absl::StatusOr<std::vector<EngineRankLoad>> Loads(absl::Time deadline) {
    BFIO_ASSIGN_OR_RETURN(const std::string text, Get("/metrics", deadline));
    std::vector<EngineRankLoad> loads;
    for (const auto& [rank, metrics] : ReadEngineMetrics(text)) {
      if (metrics.running >= 0) loads.push_back({rank, LoadOf(metrics)});
    }
    return loads;
  }

  const std::string server_;
  const int32_t slots_;
  EventQueue tasks_;
  HttpGet get_;
  std::thread thread_;
};

// Reads `{a="x",b="y"}` at the start of `rest` and removes it; false: malformed.
bool TakeLabels(absl::string_view& rest, MetricSample& sample) {
  rest.remove_prefix(1);
  while (true) {
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (!rest.empty() && rest.front() == '}') return rest.remove_prefix(1), true;
    const size_t equals = rest.find("=\"");
    if (equals == absl::string_view::npos) return false;
    const absl::string_view name = rest.substr(0, equals);
    rest.remove_prefix(equals + 2);
    size_t end = 0;
    while (end < rest.size() && rest[end] != '"') end += rest[end] == '\\' ? 2 : 1;
    if (end >= rest.size()) return false;
    sample.labels.emplace_back(name, rest.substr(0, end));
    rest.remove_prefix(end + 1);
    if (!rest.empty() && rest.front() == ',') rest.remove_prefix(1);
  }
}

}  // namespace

std::unique_ptr<EngineClient> NewHttpEngine(const EngineAddress& engine) {
  return std::make_unique<HttpEngine>(engine);
}

absl::string_view MetricSample::label(absl::string_view wanted) const {
  for (const auto& [name, value] : labels) {
    if (name == wanted) return value;
  }
  return {};
}

void ReadMetrics(absl::string_view text, absl::string_view prefix,
                 absl::FunctionRef<void(const MetricSample&)> on) {
  MetricSample sample;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, prefix)) continue;
    const size_t end = line.find_first_of("{ ");
    if (end == absl::string_view::npos) continue;
    sample.name = line.substr(0, end);
    sample.labels.clear();
    absl::string_view rest = line.substr(end);
    if (rest.front() == '{' && !TakeLabels(rest, sample)) continue;
    // A timestamp may follow.
    const std::vector<absl::string_view> parts = absl::StrSplit(rest, ' ', absl::SkipWhitespace());
    if (!parts.empty() && absl::SimpleAtod(parts.front(), &sample.value)) on(sample);
  }
}

std::map<int32_t, HttpRankMetrics> ReadEngineMetrics(absl::string_view text) {
  std::map<int32_t, HttpRankMetrics> ranks;
  const auto read = [&](absl::string_view prefix, absl::string_view name, double HttpRankMetrics::*field) {
    ReadMetrics(text, absl::StrCat(prefix, name), [&](const MetricSample& sample) {
      // Counters may have the suffix _total.
      absl::string_view rest = sample.name.substr(prefix.size() + name.size());
      if (!rest.empty() && rest != "_total") return;
      if (const std::optional<int32_t> rank = RankOf(sample)) ranks[*rank].*field = Plausible(sample.value);
    });
  };
  read("vllm:", "num_requests_running", &HttpRankMetrics::running);
  read("vllm:", "num_requests_waiting", &HttpRankMetrics::waiting);
  read("vllm:", "kv_cache_usage_perc", &HttpRankMetrics::kv_use);
  read("vllm:", "generation_tokens", &HttpRankMetrics::generated);
  read("sglang:", "num_running_reqs", &HttpRankMetrics::running);
  read("sglang:", "num_queue_reqs", &HttpRankMetrics::waiting);
  read("sglang:", "token_usage", &HttpRankMetrics::kv_use);
  read("sglang:", "generation_tokens", &HttpRankMetrics::generated);
  read("sglang:", "max_total_num_tokens", &HttpRankMetrics::kv_tokens);
  read("sglang:", "max_running_requests", &HttpRankMetrics::slots);
  const auto count = static_cast<int32_t>(ranks.size());
  ReadMetrics(text, "vllm:cache_config_info", [&](const MetricSample& sample) {
    const std::optional<int32_t> rank = RankOf(sample);
    if (rank && ranks.contains(*rank)) ranks[*rank].kv_tokens = KvTokensIn(sample, count);
  });
  return ranks;
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
