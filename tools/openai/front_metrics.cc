#include "tools/openai/front_metrics.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace bfio::openai {
namespace {

using enum MetricKind;

constexpr MetricInfo kBuildInfo = {"bfio:openai_build_info", kGauge, "version",
                                   "1; the label is the front's version"};
constexpr MetricInfo kRunning = {"bfio:openai_requests_running", kGauge, "", "completions under way"};
constexpr MetricInfo kEnded = {"bfio:openai_requests_total", kCounter, "code",
                               "completions that ended, by HTTP status; 499: the client disconnected; a "
                               "stream that broke counts with the status it would have had"};
constexpr MetricInfo kTokens = {"bfio:openai_generation_tokens_total", kCounter, "",
                                "tokens delivered to clients"};
constexpr MetricInfo kConnections = {"bfio:openai_connections", kGauge, "",
                                     "HTTP connections, waiting ones included"};
constexpr MetricInfo kWaiting = {"bfio:openai_connections_waiting", kGauge, "",
                                 "connections that wait for a thread (--max_connections)"};
constexpr MetricInfo kFirstToken = {"bfio:openai_time_to_first_token_seconds", kHistogram, "",
                                    "from a request's headers to its first token, of those that got one"};
constexpr MetricInfo kLatency = {
    "bfio:openai_e2e_request_latency_seconds", kHistogram, "",
    "from a request's headers to the end of its reply, of those that ended with 200"};

}  // namespace

std::vector<MetricInfo> FrontMetricInfos() {
  return {kBuildInfo, kRunning, kEnded, kTokens, kConnections, kWaiting, kFirstToken, kLatency};
}

FrontMetrics::Completion::Completion(FrontMetrics* metrics) : metrics_(metrics), begin_(MonotonicNow()) {
  MutexLock lock(&metrics_->mutex_);
  ++metrics_->running_;
}

FrontMetrics::Completion::~Completion() {
  const double took = absl::ToDoubleSeconds(MonotonicNow() - begin_);
  MutexLock lock(&metrics_->mutex_);
  --metrics_->running_;
  ++metrics_->ended_[code_];
  if (code_ == 200) metrics_->latency_s_.Add(took);
}

void FrontMetrics::Completion::AddTokens(int64_t tokens) {
  if (tokens <= 0) return;
  const bool first = tokens_ == 0;
  tokens_ += tokens;
  const double waited = absl::ToDoubleSeconds(MonotonicNow() - begin_);
  MutexLock lock(&metrics_->mutex_);
  metrics_->tokens_ += tokens;
  if (first) metrics_->first_token_s_.Add(waited);
}

std::string FrontMetrics::Text(const std::string& version, int64_t connections, int64_t waiting) const {
  Exposition text;
  text.Add(kBuildInfo, 1, version);
  MutexLock lock(&mutex_);
  text.Add(kRunning, static_cast<double>(running_));
  // There from the start, so that the first failure shows as a rise.
  for (const int code : {200, 429, 503}) {
    if (!ended_.contains(code)) text.Add(kEnded, 0, absl::StrCat(code));
  }
  for (const auto& [code, times] : ended_) text.Add(kEnded, static_cast<double>(times), absl::StrCat(code));
  text.Add(kTokens, static_cast<double>(tokens_));
  text.Add(kConnections, static_cast<double>(connections));
  text.Add(kWaiting, static_cast<double>(waiting));
  text.AddHistogram(kFirstToken, {first_token_s_.bounds(), first_token_s_.counts(), first_token_s_.sum()});
  text.AddHistogram(kLatency, {latency_s_.bounds(), latency_s_.counts(), latency_s_.sum()});
  return text.Text();
}

}  // namespace bfio::openai
