#include "router/group/step_recorder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "router/requests/latency_recorder.h"

namespace bfio::router {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr double kNs = 1e-9;
// Reports of one step arrive together; more open steps than this means that somebody has stopped reporting,
// or lags behind. The oldest steps are then given up, so that the sums go on when the laggard has caught up.
constexpr size_t kMaxPartial = 64;

int64_t TickOf(absl::Time now) {
  return (now - absl::UnixEpoch()) / kTick;
}

}  // namespace

void RateWindow::Add(absl::Time now, int64_t tokens) {
  const int64_t tick = TickOf(now);
  Bucket& bucket = buckets_[tick % buckets_.size()];
  if (bucket.tick != tick) bucket = {tick, 0};
  bucket.tokens += tokens;
}

double RateWindow::PerSecond(absl::Time now) const {
  const int64_t tick = TickOf(now);
  int64_t sum = 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.tick < tick && bucket.tick >= tick - 10) sum += bucket.tokens;
  }
  return static_cast<double>(sum);
}

void StepRecorder::OpenEpoch(uint64_t epoch, int32_t ranks, bool coupled) {
  epoch_ = epoch;
  ranks_ = ranks;
  coupled_ = coupled;
  last_ = NewSummary(0);
  partial_.clear();
  rates_.assign(ranks, RateWindow());
  stragglers_.assign(ranks, 0);
}

v1::StepSummary StepRecorder::NewSummary(uint64_t step) const {
  v1::StepSummary summary;
  summary.set_epoch(epoch_);
  summary.set_step(step);
  summary.mutable_load_tokens()->Resize(ranks_, 0);
  summary.mutable_active_requests()->Resize(ranks_, 0);
  summary.mutable_local_ns()->Resize(ranks_, 0);
  summary.mutable_barrier_wait_ns()->Resize(ranks_, 0);
  return summary;
}

// Nobody waits for anybody: no imbalance, no straggler.
void StepRecorder::OnStepAlone(int32_t rank, const v1::StepReport& report, bool saturated) {
  last_.set_load_tokens(rank, report.load_tokens());
  last_.set_active_requests(rank, report.active_requests());
  auto summary = std::make_shared<v1::StepSummary>(last_);
  last_.clear_assigned();
  summary->set_step(report.step());
  summary->set_rank(static_cast<uint32_t>(rank));
  summary->set_local_ns(rank, report.local_ns());
  summary->set_barrier_wait_ns(rank, report.barrier_wait_ns());
  const auto load = static_cast<double>(report.load_tokens());
  totals_.set_steps(totals_.steps() + 1);
  totals_.set_max_load_tokens(totals_.max_load_tokens() + load);
  totals_.set_mean_load_tokens(totals_.mean_load_tokens() + load);
  totals_.set_max_local_s(totals_.max_local_s() + static_cast<double>(report.local_ns()) * kNs);
  if (saturated) totals_.set_saturated_steps(totals_.saturated_steps() + 1);
  // Decisions come when requests do, and need not come for a long time.
  sink_(summary);
}

void StepRecorder::OnReport(int32_t rank, const v1::StepReport& report, absl::Time now, bool saturated) {
  const double local_s = static_cast<double>(report.local_ns()) * kNs;
  const double wait_s = static_cast<double>(report.barrier_wait_ns()) * kNs;
  totals_.set_barrier_wait_s(totals_.barrier_wait_s() + wait_s);
  local_s_.Add(local_s);
  barrier_wait_s_.Add(wait_s);
  double gap_s = 0;
  if (report.has_gap_ns()) {
    gap_s = static_cast<double>(report.gap_ns()) * kNs;
    totals_.set_gap_s(totals_.gap_s() + gap_s);
    totals_.set_gap_count(totals_.gap_count() + 1);
    gap_s_.Add(gap_s);
  }
  totals_.set_rank_step_s(totals_.rank_step_s() + local_s + wait_s + gap_s);
  totals_.set_generated_tokens(totals_.generated_tokens() + report.token_ids_size());
  // A report of the epoch before (its tokens are good) has no place in this epoch's steps.
  if (report.epoch() != epoch_ || rank >= ranks_) return;
  rates_[rank].Add(now, report.token_ids_size());
  if (!report.barrier_error().empty()) return;
  if (!coupled_) return OnStepAlone(rank, report, saturated);
  if (partial_.size() >= kMaxPartial && !partial_.contains(report.step())) {
    if (report.step() < partial_.begin()->first) return;  // given up
    partial_.erase(partial_.begin());
  }

  Partial& partial = partial_[report.step()];
  v1::StepSummary& summary = partial.summary;
  if (partial.reports == 0) summary = NewSummary(report.step());
  summary.set_load_tokens(rank, report.load_tokens());
  summary.set_active_requests(rank, report.active_requests());
  summary.set_local_ns(rank, report.local_ns());
  summary.set_barrier_wait_ns(rank, report.barrier_wait_ns());
  if (++partial.reports < ranks_) return;
  Complete(partial);
  partial_.erase(report.step());
}

void StepRecorder::Complete(Partial& partial) {
  v1::StepSummary& summary = partial.summary;
  const auto& loads = summary.load_tokens();
  const uint64_t max = *std::max_element(loads.begin(), loads.end());
  const uint64_t sum = std::accumulate(loads.begin(), loads.end(), uint64_t{0});
  const auto slowest = std::max_element(summary.local_ns().begin(), summary.local_ns().end());
  summary.set_imbalance_tokens(max * static_cast<uint64_t>(ranks_) - sum);
  ++stragglers_[slowest - summary.local_ns().begin()];

  totals_.set_steps(totals_.steps() + 1);
  totals_.set_imbalance_tokens(totals_.imbalance_tokens() + static_cast<double>(summary.imbalance_tokens()));
  totals_.set_max_load_tokens(totals_.max_load_tokens() + static_cast<double>(max));
  totals_.set_mean_load_tokens(totals_.mean_load_tokens() + static_cast<double>(sum) / ranks_);
  totals_.set_max_local_s(totals_.max_local_s() + static_cast<double>(*slowest) * kNs);
  complete_.push_back(std::make_shared<v1::StepSummary>(std::move(summary)));
}

void StepRecorder::OnDecision(int64_t assigned, int64_t waiting, absl::Duration took, bool saturated,
                              bool stopped_early, std::optional<double> gap) {
  const double took_s = absl::ToDoubleSeconds(took);
  totals_.set_decisions(totals_.decisions() + 1);
  decide_s_.Add(took_s);
  if (gap) solver_gap_.Add(*gap);
  totals_.set_decide_s(totals_.decide_s() + took_s);
  totals_.set_decide_max_s(std::max(totals_.decide_max_s(), took_s));
  if (stopped_early) totals_.set_decisions_stopped_early(totals_.decisions_stopped_early() + 1);
  if (!coupled_) {
    last_.set_assigned(last_.assigned() + static_cast<uint32_t>(assigned));
    last_.set_waiting_requests(static_cast<uint32_t>(waiting));
  }
  if (saturated) totals_.set_saturated_steps(totals_.saturated_steps() + 1);
  for (const auto& summary : complete_) {
    summary->set_assigned(static_cast<uint32_t>(assigned));
    summary->set_waiting_requests(static_cast<uint32_t>(waiting));
    summary->set_stopped_early(stopped_early);
    summary->set_decide_ns(static_cast<uint64_t>(absl::ToInt64Nanoseconds(took)));
    sink_(summary);
  }
  complete_.clear();
}

void StepRecorder::OnParked(int64_t waiting) {
  last_.set_waiting_requests(static_cast<uint32_t>(waiting));
  for (const auto& summary : complete_) {
    summary->set_waiting_requests(static_cast<uint32_t>(waiting));
    sink_(summary);
  }
  complete_.clear();
}

void StepRecorder::FillTimes(v1::StepTimes& times) const {
  FillDistribution(local_s_, *times.mutable_local_s());
  FillDistribution(barrier_wait_s_, *times.mutable_barrier_wait_s());
  FillDistribution(gap_s_, *times.mutable_gap_s());
  FillDistribution(decide_s_, *times.mutable_decide_s());
}

void StepRecorder::FillGap(v1::Distribution& gap) const {
  FillDistribution(solver_gap_, gap);
}

double StepRecorder::tokens_per_second(int32_t rank, absl::Time now) const {
  return rank < static_cast<int32_t>(rates_.size()) ? rates_[rank].PerSecond(now) : 0;
}

uint64_t StepRecorder::straggler_steps(int32_t rank) const {
  return rank < static_cast<int32_t>(stragglers_.size()) ? stragglers_[rank] : 0;
}

}  // namespace bfio::router
