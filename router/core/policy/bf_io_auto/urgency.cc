#include "router/core/policy/bf_io_auto/urgency.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {
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
    steepest = std::max(steepest, worker.load_rate());
  }
  for (const SolverItem& item : instance.items)
    largest = std::max(largest, steepest * static_cast<double>(item.load + item.precounted_tokens));
  const double forced = 4 * std::pow(high - low + 2 * largest, 2);

  const double rate = instance.MeanLoadRate();
  const double unit = price_ * scale.deviation * scale.deviation;
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
