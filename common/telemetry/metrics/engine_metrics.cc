#include "common/telemetry/metrics/engine_metrics.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace bfio {
namespace {

constexpr int32_t kMostRanks = 1024;
constexpr double kLargestCount = int64_t{1} << 40;
constexpr size_t kMostBuckets = 1024;

// A number that an engine may have, or -1: it is not reported.
double Plausible(double value) {
  return value >= 0 && value <= kLargestCount ? value : -1;
}

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

void AddTo(MetricHistogram& histogram, absl::string_view part, const MetricSample& sample) {
  const double value = std::max(0.0, Plausible(sample.value));
  double bound = 0;
  if (part == "_count") {
    histogram.count += value;
  } else if (part == "_sum") {
    histogram.sum += value;
  } else if (part == "_bucket" && histogram.up_to.size() < kMostBuckets &&
             absl::SimpleAtod(sample.label("le"), &bound) && bound >= 0) {
    histogram.up_to[bound] += value;
  }
}

using Field = double EngineMetrics::*;
using Distribution = MetricHistogram EngineMetrics::*;

const absl::flat_hash_map<absl::string_view, Field>& Fields() {
  static const auto* const fields = new absl::flat_hash_map<absl::string_view, Field>{
      {"vllm:num_requests_running", &EngineMetrics::running},
      {"vllm:num_requests_waiting", &EngineMetrics::waiting},
      {"vllm:kv_cache_usage_perc", &EngineMetrics::kv_use},
      {"vllm:generation_tokens", &EngineMetrics::generated},
      {"vllm:prompt_tokens", &EngineMetrics::prompted},
      {"vllm:prompt_tokens_cached", &EngineMetrics::cached},
      {"sglang:num_running_reqs", &EngineMetrics::running},
      {"sglang:num_queue_reqs", &EngineMetrics::waiting},
      {"sglang:token_usage", &EngineMetrics::kv_use},
      {"sglang:generation_tokens", &EngineMetrics::generated},
      {"sglang:prompt_tokens", &EngineMetrics::prompted},
      {"sglang:cached_tokens", &EngineMetrics::cached},
      {"sglang:max_total_num_tokens", &EngineMetrics::kv_tokens},
      {"sglang:max_running_requests", &EngineMetrics::slots}};
  return *fields;
}

const absl::flat_hash_map<absl::string_view, Distribution>& Distributions() {
  static const auto* const distributions = new absl::flat_hash_map<absl::string_view, Distribution>{
      {"vllm:inter_token_latency_seconds", &EngineMetrics::gaps},
      {"vllm:time_to_first_token_seconds", &EngineMetrics::first_tokens},
      {"vllm:e2e_request_latency_seconds", &EngineMetrics::ends},
      {"vllm:request_prompt_tokens", &EngineMetrics::prompts},
      {"vllm:request_generation_tokens", &EngineMetrics::outputs},
      {"sglang:inter_token_latency_seconds", &EngineMetrics::gaps},
      {"sglang:time_to_first_token_seconds", &EngineMetrics::first_tokens},
      {"sglang:e2e_request_latency_seconds", &EngineMetrics::ends},
      {"sglang:prompt_tokens_histogram", &EngineMetrics::prompts},
      {"sglang:generation_tokens_histogram", &EngineMetrics::outputs}};
  return *distributions;
}

}  // namespace

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

std::map<int32_t, EngineMetrics> ReadEngineMetrics(absl::string_view text) {
  std::map<int32_t, EngineMetrics> ranks;
  std::vector<MetricSample> caches;
  const auto read = [&](const MetricSample& sample) {
    if (sample.name == "vllm:cache_config_info") {
      if (caches.size() < kMostRanks) caches.push_back(sample);
      return;
    }
    const std::optional<int32_t> rank = RankOf(sample);
    if (!rank) return;
    // Counters may have the suffix _total.
    if (const auto field = Fields().find(absl::StripSuffix(sample.name, "_total")); field != Fields().end()) {
      // Several counters of one rank, such as one per source, add up.
      double& value = ranks[*rank].*field->second;
      const double more = Plausible(sample.value);
      value = absl::EndsWith(sample.name, "_total") && value >= 0 && more >= 0 ? value + more : more;
      return;
    }
    const size_t part = sample.name.rfind('_');
    if (part == absl::string_view::npos) return;
    if (const auto of = Distributions().find(sample.name.substr(0, part)); of != Distributions().end())
      AddTo(ranks[*rank].*of->second, sample.name.substr(part), sample);
  };
  for (const absl::string_view engine : {"vllm:", "sglang:"}) ReadMetrics(text, engine, read);
  const auto count = static_cast<int32_t>(ranks.size());
  for (const MetricSample& sample : caches) {
    const std::optional<int32_t> rank = RankOf(sample);
    if (!rank || !ranks.contains(*rank)) continue;
    EngineMetrics& metrics = ranks[*rank];
    metrics.kv_tokens = KvTokensIn(sample, count);
    metrics.kv_type = std::string(sample.label("cache_dtype"));
    if (!absl::SimpleAtoi(sample.label("block_size"), &metrics.kv_block_tokens)) metrics.kv_block_tokens = 0;
  }
  return ranks;
}

}  // namespace bfio
