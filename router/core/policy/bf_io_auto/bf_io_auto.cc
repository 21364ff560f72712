#include "router/core/policy/bf_io_auto/bf_io_auto.h"

#include <algorithm>
#include <cmath>

#include "router/core/policy/snapshot_instance.h"

namespace bfio::core {

void BfIoAutoPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  oversized_.Observe(snapshot);
  headroom_.Observe(snapshot);
  const PoolScale scale = MeasurePool(snapshot.waiting);
  const int64_t waiting = static_cast<int64_t>(snapshot.waiting.size());
  const int64_t admissions = std::min(free_.free_slots(), waiting);
  urgency_.Observe(snapshot);
  if (admissions > 0) {
    if (free_.free_slots() < waiting || !PlaceAll(snapshot, decision)) {
      decision.assignments.clear();
      free_.Reset(snapshot);
      Solve(snapshot, scale, decision);
    }
  }
  urgency_.Learn(snapshot, decision.assignments);
  oversized_.Remember(snapshot, decision.assignments);
}

bool BfIoAutoPolicy::PlaceAll(const Snapshot& snapshot, Decision& decision) {
  switch (snapshot.rule) {
    case PlacementRule::kCounts:
      counts_.Decide(snapshot, decision);
      return decision.assignments.size() == snapshot.waiting.size();
    case PlacementRule::kRefill:
    case PlacementRule::kHorizon:
      if (!snapshot.far.steps.empty()) return horizon_.Place(snapshot, stop_, free_, decision);
      [[fallthrough]];
    case PlacementRule::kHeadroom: {
      const double growth = headroom_.ExpectedGrowth(snapshot, oversized_.completed_tokens());
      return headroom_.Place(snapshot, growth, stop_, free_, decision);
    }
  }
  return false;
}

void BfIoAutoPolicy::Solve(const Snapshot& snapshot, const PoolScale& scale, Decision& decision) {
  FillInstance(snapshot, free_, /*horizon=*/0, instance_);
  const std::vector<WorkerIndex>& level = level_workers_.Find(snapshot.workers);
  oversized_.Apply(snapshot, urgency_.slacks(), scale, urgency_.admissions(), level, instance_);
  if (!level.empty()) instance_.target_load = LevelTarget(instance_, level, scale.mean);
  urgency_.SetWeights(snapshot, scale, instance_);
  const Solution& solution = solver_.Solve(instance_, stop_);
  // PlaceAll may have set it before.
  decision.stopped_early = decision.stopped_early || solver_.statistics().CutShort();
  for (int32_t i = 0; i < static_cast<int32_t>(solution.worker_of.size()); ++i) {
    if (solution.worker_of[i] != kUnassigned) decision.assignments.push_back({i, solution.worker_of[i]});
  }
}

namespace {

// Weight of one completion in the mean gap. The mean covers about 100 completions, so its standard error is a
// tenth of the deviation of one.
constexpr double kGapGain = 0.01;
// A worker is reserved for a request that exceeds the mean gap by this many deviations of the pool's prompts.
// Smaller requests fit the gaps that ordinary requests leave.
constexpr double kOversizedDeviations = 2;
// Assumed share of steps in which a reserved worker's load falls; in the others the worker may admit an
// ordinary request. Found by trial; 0.9 differs by less than the noise of a run.
constexpr double kSinkShare = 0.6;
// Share of the workers that may be reserved at a time, at least one: two of 16. Found by trial; 0.2 and 0.3
// differ by less than the noise of a run. In a group of fewer than kLeastGroup workers a reservation costs
// the others too much capacity.
constexpr double kShareOfWorkers = 0.13;
constexpr size_t kLeastGroup = 4;

}  // namespace

void OversizedRequests::Observe(const Snapshot& snapshot) {
  const int64_t steps = snapshot.step - after_step_;
  if (after_.size() != snapshot.workers.size() || steps < 1) {
    after_.clear();
    return;
  }
  double lost = 0, completions = 0;
  for (size_t g = 0; g < after_.size(); ++g) {
    completions += static_cast<double>(after_[g].active - snapshot.workers[g].active);
    lost += static_cast<double>(after_[g].load + after_[g].active * steps - snapshot.workers[g].load_tokens);
  }
  after_.clear();
  if (completions < 1 || lost <= 0) return;
  const double mean = lost / completions;
  gap_ = gap_ == 0 ? mean : gap_ + (mean - gap_) * (1 - std::pow(1 - kGapGain, completions));
}

void OversizedRequests::Remember(const Snapshot& snapshot, absl::Span<const Assignment> plan) {
  after_.clear();
  for (const WorkerView& worker : snapshot.workers) after_.push_back({worker.load_tokens, worker.active});
  for (const Assignment& assignment : plan) {
    After& after = after_[static_cast<size_t>(assignment.worker)];
    after.load += snapshot.waiting[static_cast<size_t>(assignment.waiting_index)].prefill_tokens;
    ++after.active;
  }
  after_step_ = snapshot.step;
}

void OversizedRequests::Apply(const Snapshot& snapshot, absl::Span<const double> slacks,
                              const PoolScale& scale, double admissions, absl::Span<const WorkerIndex> level,
                              Instance& instance) {
  if (gap_ == 0 || level.size() < kLeastGroup) return;
  const size_t items = instance.items.size();
  sizes_.clear();
  for (const SolverItem& item : instance.items) sizes_.push_back(item.load);
  const auto quarter = sizes_.begin() + static_cast<int64_t>(items / 4);
  std::nth_element(sizes_.begin(), quarter, sizes_.end());
  // Tokens by which a worker's load falls in a step when every gap is filled by a small request.
  const double sink = admissions / static_cast<double>(snapshot.workers.size()) *
                      std::max(gap_ - static_cast<double>(*quarter), 0.3 * gap_);
  candidates_.clear();
  for (size_t i = 0; i < items; ++i) {
    // A lower class gets no slot now, even with a reserved worker.
    if (snapshot.waiting[i].priority < snapshot.waiting[0].priority) break;
    const double excess = static_cast<double>(instance.items[i].load) - gap_;
    if (excess < kOversizedDeviations * scale.deviation || excess <= 0) continue;
    const double sinking = kSinkShare * excess / sink;
    if (slacks[i] < sinking) {
      candidates_.push_back({excess * std::min(1.0, 1 - slacks[i] / sinking), static_cast<int32_t>(i)});
    }
  }
  // The largest request gets the least loaded worker, so that this worker stays reserved for the same
  // request.
  std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.precounted_tokens > b.precounted_tokens;
  });
  const size_t most =
      std::max<size_t>(1, static_cast<size_t>(kShareOfWorkers * static_cast<double>(level.size())));
  if (candidates_.size() > most) candidates_.resize(most);
  lowest_.assign(level.begin(), level.end());
  std::stable_sort(lowest_.begin(), lowest_.end(), [&](WorkerIndex a, WorkerIndex b) {
    return instance.workers[a].load_tokens < instance.workers[b].load_tokens;
  });
  for (size_t k = 0; k < candidates_.size(); ++k) {
    SolverItem& candidate = instance.items[candidates_[k].item];
    candidate.reserved_worker = lowest_[k];
    candidate.precounted_tokens = std::llround(candidates_[k].precounted_tokens);
    instance.workers[candidate.reserved_worker].load_tokens += candidate.precounted_tokens;
  }
}

namespace {

// In units of r P. The square of the lateness has nearly quadrupled by then, so few requests wait that long.
// Together with kReservedShare it is 2.15, which is 2.5 P at the default r: the longest intended wait.
constexpr double kDueFactor = 1.9;
// In units of r P. A worker frees a slot within a few steps. Without this time an oversized request would be
// forced onto a worker that is not ready for it, and the whole group would wait.
constexpr double kReservedShare = 0.25;
// Target share of late admissions. Slightly below the 1 % of a 99th percentile, because admissions occur in
// bursts.
constexpr double kLateShare = 0.008;
// Step of the price's logarithm for a late admission: about 50 late admissions change the price by a factor
// of ten. With twice this value the price swings by more than that factor for a thousand steps after the
// start of a group.
constexpr double kPriceGain = 0.05;
// Bounds of the price, wide enough to have no effect: far below and above the gain in balance of a swap.
constexpr double kLeastPrice = 0.01;
constexpr double kMostPrice = 1000;
// Weight of one decision in the mean of admissions, which covers about 50 decisions.
constexpr double kAdmissionsGain = 0.02;

double AgeOf(const Snapshot& snapshot, size_t waiting_index) {
  return static_cast<double>(snapshot.step - snapshot.waiting[waiting_index].senior_step());
}

}  // namespace

void UrgencyTracker::Observe(const Snapshot& snapshot) {
  double load = 0;
  for (const WorkerView& worker : snapshot.workers) load += static_cast<double>(worker.load_tokens);
  // Requests of a tenant count as r P younger for each mean worker load of the tenant's lead.
  const double tokens_per_scale = std::max(1.0, load / static_cast<double>(snapshot.workers.size()));
  scales_.clear();
  leads_.clear();
  delays_.clear();
  slacks_.clear();
  int64_t p99 = 0;
  for (size_t i = 0; i < snapshot.waiting.size(); ++i) {
    const WaitingView& request = snapshot.waiting[i];
    // The pool is in order of priority.
    if (i == 0 || snapshot.waiting[i - 1].priority != request.priority)
      p99 = snapshot.FirstCome(request.priority).p99;
    scales_.push_back(std::max(1.0, wait_ratio_ * static_cast<double>(p99)));
    leads_.push_back(scales_[i] * request.tenant_excess_tokens / tokens_per_scale);
    // The lead grows as long as a request of the least served tenant fits no gap, so the lead alone must not
    // delay the limit. It delays the limit only as far as a fair order would also let the tenant's requests
    // wait longer than P.
    const auto beyond = static_cast<double>(request.tenant_reference_wait - p99);
    delays_.push_back(std::clamp(beyond, 0.0, leads_[i]));
    slacks_.push_back(kDueFactor * scales_[i] + delays_[i] - AgeOf(snapshot, i));
  }
}

void UrgencyTracker::SetWeights(const Snapshot& snapshot, const PoolScale& scale, Instance& instance) const {
  // More than any exchange of items can change the balance; in the unit of time that is balanced.
  double low = instance.workers[0].TimeAt(static_cast<double>(instance.workers[0].load_tokens)), high = low,
         largest = 0, steepest = 0;
  for (const WorkerView& worker : instance.workers) {
    low = std::min(low, worker.TimeAt(static_cast<double>(worker.load_tokens)));
    high = std::max(high, worker.TimeAt(static_cast<double>(worker.load_tokens)));
    steepest = std::max(steepest, worker.time_per_token);
  }
  for (const SolverItem& item : instance.items)
    largest = std::max(largest, steepest * static_cast<double>(item.load + item.precounted_tokens));
  const double forced = 4 * std::pow(high - low + 2 * largest, 2);

  const double rate = instance.MeanRate();
  const double unit = price_ * scale.deviation * scale.deviation;
  const bool tenants_differ = std::any_of(leads_.begin(), leads_.end(), [](double lead) { return lead > 0; });
  for (size_t i = 0; i < instance.items.size(); ++i) {
    SolverItem& item = instance.items[i];
    // A request that is left for the next decision waits a step longer.
    const double slack = slacks_[i] - 1;
    const bool reserved_closed =
        item.reserved_worker != kNoReservedWorker && instance.workers[item.reserved_worker].free_slots == 0;
    const bool overdue = slack <= (reserved_closed ? -kReservedShare * scales_[i] : 0);
    // Once a request is overdue, the lead counts only as for the limit; otherwise it could outweigh the terms
    // below.
    const double age = AgeOf(snapshot, i) - (overdue ? delays_[i] : leads_[i]);
    const double lateness = age / scales_[i];
    item.weight = rate * rate * (kLeastAgeWeight * age + unit * lateness * std::abs(lateness));
    if (overdue) item.weight += forced * (1 - slack);
    // One among thousands of another tenant's.
    item.sought = tenants_differ && leads_[i] == 0;
  }
}

void UrgencyTracker::Learn(const Snapshot& snapshot, absl::Span<const Assignment> plan) {
  double steps = 0;
  for (const Assignment& assignment : plan) {
    const auto index = static_cast<size_t>(assignment.waiting_index);
    const WaitingView& request = snapshot.waiting[index];
    // The request's own wait, without seniority or lead: a senior call enters the pool late but does not wait
    // longer, and the reference already has the tenants in fair order.
    const auto wait = static_cast<double>(snapshot.step - request.enqueued_step);
    const auto long_run = static_cast<double>(snapshot.FirstCome(request.priority).long_run_p99);
    const double late = std::floor(wait_ratio_ * long_run + 1e-9);
    steps += (wait > late ? 1 : 0) - kLateShare;
  }
  // KV may have admitted fewer than planned.
  const int64_t admitted = static_cast<int64_t>(plan.size());
  if (admitted < static_cast<int64_t>(snapshot.waiting.size())) {
    price_ = std::clamp(price_ * std::exp(kPriceGain * steps), kLeastPrice, kMostPrice);
  }
  const double now = static_cast<double>(admitted);
  admissions_ = admissions_ == 0 ? now : admissions_ + kAdmissionsGain * (now - admissions_);
}

}  // namespace bfio::core
