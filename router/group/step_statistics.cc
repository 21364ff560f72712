#include "router/group/step_statistics.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace bfio::router {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// Reports of one step arrive together. More open steps than this mean that a rank has stopped reporting or is
// behind. The oldest steps are then dropped, so that statistics continue when that rank has caught up.
constexpr size_t kMaxPartial = 64;

int64_t TickOf(absl::Time now) {
  return (now - absl::UnixEpoch()) / kTick;
}

}  // namespace

StepDistributions& StepDistributions::operator+=(const StepDistributions& other) {
  local_s += other.local_s;
  barrier_wait_s += other.barrier_wait_s;
  gap_s += other.gap_s;
  decide_s += other.decide_s;
  return *this;
}

StepTotals& StepTotals::operator+=(const StepTotals& other) {
  steps += other.steps;
  imbalance_tokens += other.imbalance_tokens;
  max_load_tokens += other.max_load_tokens;
  mean_load_tokens += other.mean_load_tokens;
  barrier_wait_s += other.barrier_wait_s;
  rank_step_s += other.rank_step_s;
  gap_s += other.gap_s;
  max_local_s += other.max_local_s;
  gap_count += other.gap_count;
  generated_tokens += other.generated_tokens;
  decisions += other.decisions;
  decide_s += other.decide_s;
  decide_max_s = std::max(decide_max_s, other.decide_max_s);
  decisions_stopped_early += other.decisions_stopped_early;
  saturated_steps += other.saturated_steps;
  silent_ranks += other.silent_ranks;
  return *this;
}

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

void StepStatistics::OpenEpoch(uint64_t epoch, int32_t ranks) {
  epoch_ = epoch;
  ranks_ = ranks;
  last_ = NewSummary(0);
  partial_.clear();
  rates_.assign(ranks, RateWindow());
  stragglers_.assign(ranks, 0);
}

StepSummary StepStatistics::NewSummary(int64_t step) const {
  StepSummary summary;
  summary.group = group_;
  summary.epoch = epoch_;
  summary.step = step;
  summary.load_tokens.resize(ranks_);
  summary.prefill_tokens.resize(ranks_);
  summary.active_requests.resize(ranks_);
  summary.local.resize(ranks_);
  summary.barrier_wait.resize(ranks_);
  return summary;
}

bool StepStatistics::Count(int32_t rank, const StepReport& report, absl::Time now) {
  const double local_s = absl::ToDoubleSeconds(report.local);
  const double wait_s = absl::ToDoubleSeconds(report.barrier_wait);
  auto tokens = static_cast<int64_t>(report.token_ids.size());
  for (const FinishedRequest& finished : report.finished) tokens += finished.generated.value_or(0);
  totals_.barrier_wait_s += wait_s;
  totals_.rank_step_s += local_s + wait_s;
  distributions_.local_s.Add(local_s);
  distributions_.barrier_wait_s.Add(wait_s);
  if (report.gap) {
    const double gap_s = absl::ToDoubleSeconds(*report.gap);
    totals_.gap_s += gap_s;
    totals_.rank_step_s += gap_s;
    ++totals_.gap_count;
    distributions_.gap_s.Add(gap_s);
  }
  totals_.generated_tokens += tokens;
  // A report of a previous epoch: its tokens count, its step does not.
  if (report.epoch != epoch_ || rank >= ranks_) return false;
  rates_[rank].Add(now, tokens);
  return report.barrier_error.empty();
}

void StepStatistics::OnReport(int32_t rank, const StepReport& report, absl::Time now) {
  if (!Count(rank, report, now)) return;
  if (partial_.size() >= kMaxPartial && !partial_.contains(report.step)) {
    if (report.step < partial_.begin()->first) return;  // dropped before
    partial_.erase(partial_.begin());
  }
  Partial& partial = partial_[report.step];
  if (partial.reports == 0) partial.summary = NewSummary(report.step);
  StepSummary& summary = partial.summary;
  summary.load_tokens[rank] = report.load_tokens;
  summary.prefill_tokens[rank] = report.prefill_tokens;
  summary.active_requests[rank] = report.active_requests;
  summary.local[rank] = report.local;
  summary.barrier_wait[rank] = report.barrier_wait;
  if (report.batch) {
    partial.batches.resize(static_cast<size_t>(ranks_));
    partial.batches[rank] = *report.batch;
    ++partial.batches_known;
  }
  if (++partial.reports < ranks_) return;
  Complete(partial);
  partial_.erase(report.step);
}

void StepStatistics::Complete(Partial& partial) {
  StepSummary& summary = partial.summary;
  const std::vector<int64_t>& loads = summary.load_tokens;
  const int64_t max = *std::max_element(loads.begin(), loads.end());
  const int64_t sum = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const auto slowest = std::max_element(summary.local.begin(), summary.local.end());
  summary.imbalance_tokens = max * ranks_ - sum;
  ++stragglers_[slowest - summary.local.begin()];

  ++totals_.steps;
  totals_.imbalance_tokens += static_cast<double>(summary.imbalance_tokens);
  totals_.max_load_tokens += static_cast<double>(max);
  totals_.mean_load_tokens += static_cast<double>(sum) / ranks_;
  totals_.max_local_s += absl::ToDoubleSeconds(*slowest);
  if (partial.batches_known == ranks_) {
    // One rank of each step, in turn.
    const size_t rank = static_cast<size_t>(summary.step) % summary.local.size();
    fit_.Add(partial.batches, absl::ToDoubleSeconds(summary.local[rank]), rank);
  }
  complete_.push_back(std::make_shared<StepSummary>(std::move(summary)));
}

// No rank waits for another, so there is no imbalance and no straggler. The summary does not wait for a
// decision either, because decisions happen only when requests arrive.
void StepStatistics::OnStepAlone(int32_t rank, const StepReport& report, absl::Time now, bool saturated,
                                 Summaries& done) {
  if (!Count(rank, report, now)) return;
  last_.load_tokens[rank] = report.load_tokens;
  last_.active_requests[rank] = report.active_requests;
  auto summary = std::make_shared<StepSummary>(last_);
  last_.assigned = 0;
  summary->step = report.step;
  summary->rank = rank;
  summary->prefill_tokens[rank] = report.prefill_tokens;
  summary->local[rank] = report.local;
  summary->barrier_wait[rank] = report.barrier_wait;
  const auto load = static_cast<double>(report.load_tokens);
  ++totals_.steps;
  totals_.max_load_tokens += load;
  totals_.mean_load_tokens += load;
  totals_.max_local_s += absl::ToDoubleSeconds(report.local);
  if (saturated) ++totals_.saturated_steps;
  done.push_back(std::move(summary));
}

void StepStatistics::OnDecision(const core::Plan& plan, int64_t waiting, absl::Duration took, bool saturated,
                                Summaries& done) {
  const double took_s = absl::ToDoubleSeconds(took);
  const auto assigned = static_cast<int64_t>(plan.placements.size());
  ++totals_.decisions;
  totals_.decide_s += took_s;
  totals_.decide_max_s = std::max(totals_.decide_max_s, took_s);
  distributions_.decide_s.Add(took_s);
  if (plan.stopped_early) ++totals_.decisions_stopped_early;
  if (saturated) ++totals_.saturated_steps;
  last_.assigned += assigned;
  last_.waiting_requests = waiting;
  for (const auto& summary : complete_) {
    summary->assigned = assigned;
    summary->waiting_requests = waiting;
    summary->stopped_early = plan.stopped_early;
    summary->decide = took;
    done.push_back(summary);
  }
  complete_.clear();
}

void StepStatistics::OnParked(int64_t waiting, Summaries& done) {
  last_.waiting_requests = waiting;
  for (const auto& summary : complete_) {
    summary->waiting_requests = waiting;
    done.push_back(summary);
  }
  complete_.clear();
}

double StepStatistics::tokens_per_second(int32_t rank, absl::Time now) const {
  return rank < static_cast<int32_t>(rates_.size()) ? rates_[rank].PerSecond(now) : 0;
}

int64_t StepStatistics::straggler_steps(int32_t rank) const {
  return rank < static_cast<int32_t>(stragglers_.size()) ? stragglers_[rank] : 0;
}

}  // namespace bfio::router
