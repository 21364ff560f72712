#include "tools/loadgen/timeline.h"

#include <algorithm>
#include <utility>

namespace bfio::loadgen {
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

}  // namespace bfio::loadgen
