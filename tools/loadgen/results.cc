#include "tools/loadgen/results.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bfio::loadgen {
namespace {

constexpr size_t kBreachExamples = 5;

}  // namespace

void Results::Sent(double due_s, std::optional<double> lag_s) {
  ++requests_sent;
  timeline.OnSent(due_s);
  if (!lag_s.has_value()) return;
  schedule_lag_s.Add(*lag_s);
  timeline.OnLag(due_s, *lag_s);
}

void Results::Add(const EndedRequest& request) {
  timeline.OnEnded(request);
  goodput.Add(request);
  output_tokens += request.output_tokens;
  token_mismatches += request.token_mismatches;
  if (!request.breach.empty()) {
    ++stream_breaches;
    if (breach_examples.size() < kBreachExamples) breach_examples.push_back(request.breach);
  }
  if (request.interrupted) {
    ++interrupted;
    return;
  }
  if (request.code != "OK") {
    ++failed[request.code];
    failed_examples.emplace(request.code, request.message);
    return;
  }
  ++completed;
  prompt_tokens += request.prompt_tokens;
  e2e_s.Add(request.e2e_s);
  if (request.output_tokens == 0) return;
  ttft_s.Add(request.ttft_s);
  if (request.output_tokens > 1) tpot_s.Add(request.tpot_s());
  for (const TokenGap& gap : request.gaps) itl_s.Add(gap.gap_s / gap.tokens, gap.tokens);
}

std::optional<double> Results::good_share() const {
  const uint64_t due = completed + failed_total() + not_sent;
  return due > 0 ? std::optional<double>(static_cast<double>(goodput.good()) / static_cast<double>(due))
                 : std::nullopt;
}

uint64_t Results::failed_total() const {
  uint64_t total = 0;
  for (const auto& [code, count] : failed) total += count;
  return total;
}

int ExitCode(const Results& results, bool interrupted) {
  if (interrupted) return 130;
  if (results.stream_breaches > 0 || results.token_mismatches > 0) return 3;
  return results.failed_total() > 0 || results.completed == 0 ? 1 : 0;
}

namespace {

// 30 years. Later times count as this one, and times before 0 as 0.
constexpr double kLongestS = 1e9;

}  // namespace

void TimelineBin::Merge(const TimelineBin& other) {
  due += other.due;
  completed += other.completed;
  failed += other.failed;
  tokens += other.tokens;
  ttft_s.Merge(other.ttft_s);
  tpot_s.Merge(other.tpot_s);
  e2e_s.Merge(other.e2e_s);
  itl_s.Merge(other.itl_s);
  schedule_lag_s.Merge(other.schedule_lag_s);
  under_way_sum += other.under_way_sum;
  under_way_max = std::max(under_way_max, other.under_way_max);
  under_way_samples += other.under_way_samples;
}

TimelineBin& Timeline::At(double seconds) {
  const double t = seconds > 0 ? std::min(seconds, kLongestS) : 0;
  for (; t >= width_s_ * static_cast<double>(kMostBins); width_s_ *= 2) {
    std::vector<TimelineBin> halved((bins_.size() + 1) / 2);
    for (size_t i = 0; i < bins_.size(); ++i) halved[i / 2].Merge(bins_[i]);
    bins_ = std::move(halved);
  }
  const auto index = static_cast<size_t>(t / width_s_);
  if (index >= bins_.size()) bins_.resize(index + 1);
  return bins_[index];
}

void Timeline::OnUnderWay(double now_s, uint64_t requests) {
  TimelineBin& bin = At(now_s);
  bin.under_way_sum += requests;
  bin.under_way_max = std::max(bin.under_way_max, requests);
  ++bin.under_way_samples;
}

void Timeline::OnEnded(const EndedRequest& request) {
  const bool ok = request.ok();
  bool first = true;
  request.ForEachMessage([&](double when, double gap_s, uint32_t tokens) {
    TimelineBin& bin = At(when);
    bin.tokens += tokens;
    if (ok && !first) bin.itl_s.Add(gap_s / tokens, tokens);
    first = false;
  });
  if (request.interrupted) return;
  TimelineBin& end = At(request.due_s + request.e2e_s);
  ++(ok ? end.completed : end.failed);
  if (!ok) return;
  TimelineBin& due = At(request.due_s);
  due.e2e_s.Add(request.e2e_s);
  if (request.output_tokens == 0) return;
  due.ttft_s.Add(request.ttft_s);
  if (request.output_tokens > 1) due.tpot_s.Add(request.tpot_s());
}

namespace {

absl::Status BadGoodput(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--goodput: ", what, "; expected limits in seconds such as ttft:0.5,tpot:0.05,e2e:30"));
}

bool Misses(const std::optional<double>& limit, double value) {
  return limit.has_value() && value > *limit;
}

}  // namespace

absl::StatusOr<GoodputLimits> ParseGoodput(absl::string_view text) {
  GoodputLimits limits;
  if (text.empty()) return limits;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    std::optional<double>* limit = pair.first == "ttft"                          ? &limits.ttft_s
                                   : pair.first == "tpot"                        ? &limits.tpot_s
                                   : pair.first == "e2e" || pair.first == "e2el" ? &limits.e2e_s
                                                                                 : nullptr;
    if (limit == nullptr)
      return BadGoodput(absl::StrCat("'", part, "' is not ttft:SECONDS, tpot:SECONDS or e2e:SECONDS"));
    if (limit->has_value()) return BadGoodput(absl::StrCat("two limits on ", pair.first));
    double seconds = 0;
    if (!absl::SimpleAtod(pair.second, &seconds) || !(seconds > 0) || std::isinf(seconds)) {
      return BadGoodput(absl::StrCat("'", pair.second, "' is not a positive number"));
    }
    *limit = seconds;
  }
  return limits;
}

bool Goodput::Add(const EndedRequest& request) {
  if (!request.ok()) return false;
  const bool ttft = Misses(limits_.ttft_s, request.ttft_s);
  const bool tpot = request.output_tokens > 1 && Misses(limits_.tpot_s, request.tpot_s());
  const bool e2e = Misses(limits_.e2e_s, request.e2e_s);
  missed_ttft_ += ttft;
  missed_tpot_ += tpot;
  missed_e2e_ += e2e;
  const bool good = !ttft && !tpot && !e2e;
  good_ += good;
  return good;
}

}  // namespace bfio::loadgen
