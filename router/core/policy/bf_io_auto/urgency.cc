#include "router/core/policy/bf_io_auto/urgency.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {
namespace {

constexpr double kLateFactor = 1.1;
constexpr double kDueFactor = 2;
// A little below the 1 % that the factor stands for: admissions come in bursts.
constexpr double kLateShare = 0.008;
constexpr double kDeferredShare = 0.005;
constexpr double kDeferredSteps = 100;
// A deferred request is large: so many deviations above the mean.
constexpr double kDeferredDeviations = 2;
// How long an overdue deferred request waits for a slot on the worker reserved for it.
constexpr double kReservedSteps = 20;
// Step of the price's logarithm, per late admission; and its bounds, wide enough not to matter.
constexpr double kPriceGain = 0.1;
constexpr double kLeastPrice = 0.01;
constexpr double kMostPrice = 1000;
// Share of a request's lateness that counts while it is deferred.
constexpr double kDeferredWeight = 0.3;
// Weight of one decision in the mean of admissions.
constexpr double kAdmissionsGain = 0.02;

}  // namespace

double UrgencyTracker::AgeOf(const Snapshot& snapshot, const WaitingView& request) const {
  const double age = static_cast<double>(snapshot.step - request.senior_step());
  if (request.tenant_excess_tokens <= 0) return age;
  const double late = std::max(1.0, kLateFactor * static_cast<double>(snapshot.first_come_p99));
  return age - late * request.tenant_excess_tokens / tokens_per_late_;
}

void UrgencyTracker::Observe(const Snapshot& snapshot, const PoolScale& scale, int64_t admissions) {
  choice_ = static_cast<int64_t>(snapshot.waiting.size()) > admissions;
  double load = 0;
  for (const WorkerView& worker : snapshot.workers) load += static_cast<double>(worker.load_tokens);
  tokens_per_late_ = std::max(1.0, load / static_cast<double>(snapshot.workers.size()));

  const double due = kDueFactor * static_cast<double>(snapshot.first_come_p99);
  // The reference wait includes the last plan now.
  deferrals_ = std::min(deferrals_, kDeferredShare * admissions_ * due + 2);
  urgencies_.clear();
  kept_.clear();
  for (const WaitingView& request : snapshot.waiting) {
    Urgency urgency;
    urgency.slack = due - AgeOf(snapshot, request);
    if (!deferred_.empty() && deferred_.contains(request.id)) {
      urgency.slack += kDeferredSteps;
      urgency.deferred = true;
      kept_.insert(request.id);
    }
    urgencies_.push_back(urgency);
  }
  deferred_.swap(kept_);  // those that were cancelled are forgotten
  Defer(snapshot, scale);
}

void UrgencyTracker::Defer(const Snapshot& snapshot, const PoolScale& scale) {
  if (!choice_) return;
  const double large = scale.mean + kDeferredDeviations * scale.deviation;
  due_.clear();
  for (size_t i = 0; i < urgencies_.size(); ++i) {
    if (urgencies_[i].slack > 0 || urgencies_[i].deferred) continue;
    if (static_cast<double>(snapshot.waiting[i].prefill_tokens) > large)
      due_.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(due_.begin(), due_.end(), [&](int32_t a, int32_t b) {
    return snapshot.waiting[a].prefill_tokens > snapshot.waiting[b].prefill_tokens;
  });
  for (const int32_t i : due_) {
    if (deferrals_ < 1) break;
    deferrals_ -= 1;
    deferred_.insert(snapshot.waiting[i].id);
    urgencies_[i].deferred = true;
    urgencies_[i].slack += kDeferredSteps;
  }
}

void UrgencyTracker::SetWeights(const Snapshot& snapshot, const PoolScale& scale, Instance& instance) const {
  // More than any exchange of items can change the balance by; in time, as what is balanced is.
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

  const double late = std::max(1.0, kLateFactor * static_cast<double>(snapshot.first_come_p99));
  const double rate = instance.MeanLoadRate();
  const double unit = price_ * scale.deviation * scale.deviation;
  for (size_t i = 0; i < instance.items.size(); ++i) {
    SolverItem& item = instance.items[i];
    const double age = AgeOf(snapshot, snapshot.waiting[i]);
    double lateness = age / late;
    if (urgencies_[i].deferred) lateness = kDeferredWeight * std::min(1.0, lateness);
    item.weight = rate * rate * (kLeastAgeWeight * age + unit * lateness * std::abs(lateness));
    if (urgencies_[i].slack > 0) continue;
    const bool reserved_closed =
        item.reserved_worker != kNoReservedWorker && instance.workers[item.reserved_worker].free_slots == 0;
    if (urgencies_[i].deferred && reserved_closed && urgencies_[i].slack > -kReservedSteps) continue;
    item.weight += forced * (1 - urgencies_[i].slack);
  }
}

void UrgencyTracker::Learn(const Snapshot& snapshot, absl::Span<const Assignment> plan) {
  const double late = std::floor(kLateFactor * static_cast<double>(snapshot.first_come_p99) + 1e-9);
  double steps = 0;
  for (const Assignment& assignment : plan) {
    const WaitingView& request = snapshot.waiting[static_cast<size_t>(assignment.waiting_index)];
    deferred_.erase(request.id);
    // Its own wait: a senior call comes late into the pool, not out of it.
    const bool is_late = AgeOf(snapshot, request) - static_cast<double>(request.seniority) > late;
    steps += (is_late ? 1 : 0) - kLateShare;
  }
  // KV may have admitted fewer than planned.
  const int64_t admitted = static_cast<int64_t>(plan.size());
  if (admitted < static_cast<int64_t>(snapshot.waiting.size())) {
    price_ = std::clamp(price_ * std::exp(kPriceGain * steps), kLeastPrice, kMostPrice);
  }
  const double now = static_cast<double>(admitted);
  admissions_ = admissions_ == 0 ? now : admissions_ + kAdmissionsGain * (now - admissions_);
  deferrals_ += kDeferredShare * now;
}

}  // namespace bfio::core
