#include "router/core/policy/bf_io_auto/turns.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {
namespace {

constexpr double kLateFactor = 1.1;
constexpr double kDueFactor = 2;
// A little below the 1 % that the factor is about: admissions come in bursts.
constexpr double kLateShare = 0.008;
constexpr double kSpareShare = 0.005;
constexpr double kSpareSteps = 100;
// A spared request is large: so many deviations above the mean.
constexpr double kSpareDeviations = 2;
// How long a spared request that is due waits for a slot on the worker prepared for it.
constexpr double kHomeSteps = 20;
// Step of the price's logarithm, per late admission; and its bounds, wide enough not to matter.
constexpr double kPriceGain = 0.1;
constexpr double kLeastPrice = 0.01;
constexpr double kMostPrice = 1000;
// What being spared leaves of a request's worth.
constexpr double kSparedWorth = 0.3;
// Weight of one decision in the mean of seats.
constexpr double kSeatsGain = 0.02;

}  // namespace

double Turns::AgeOf(const Snapshot& snapshot, const WaitingView& request) const {
  const double age = static_cast<double>(snapshot.step - request.senior_step());
  if (request.tenant_excess_tokens <= 0) return age;
  const double late = std::max(1.0, kLateFactor * static_cast<double>(snapshot.first_come_p99));
  return age - late * request.tenant_excess_tokens / tokens_per_late_;
}

void Turns::Observe(const Snapshot& snapshot, const PoolScale& scale, int64_t seats) {
  choice_ = static_cast<int64_t>(snapshot.waiting.size()) > seats;
  double load = 0;
  for (const WorkerView& worker : snapshot.workers) load += static_cast<double>(worker.load_tokens);
  tokens_per_late_ = std::max(1.0, load / static_cast<double>(snapshot.workers.size()));

  const double due = kDueFactor * static_cast<double>(snapshot.first_come_p99);
  // By now the yardstick knows of the last plan.
  spare_ = std::min(spare_, kSpareShare * seats_ * due + 2);
  turns_.clear();
  kept_.clear();
  for (const WaitingView& request : snapshot.waiting) {
    Turn turn;
    turn.slack = due - AgeOf(snapshot, request);
    if (!spared_.empty() && spared_.contains(request.id)) {
      turn.slack += kSpareSteps;
      turn.spared = true;
      kept_.insert(request.id);
    }
    turns_.push_back(turn);
  }
  spared_.swap(kept_);  // those that were cancelled are forgotten
  Spare(snapshot, scale);
}

void Turns::Spare(const Snapshot& snapshot, const PoolScale& scale) {
  if (!choice_) return;
  const double large = scale.mean + kSpareDeviations * scale.deviation;
  due_.clear();
  for (size_t i = 0; i < turns_.size(); ++i) {
    if (turns_[i].slack > 0 || turns_[i].spared) continue;
    if (static_cast<double>(snapshot.waiting[i].prefill_tokens) > large)
      due_.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(due_.begin(), due_.end(), [&](int32_t a, int32_t b) {
    return snapshot.waiting[a].prefill_tokens > snapshot.waiting[b].prefill_tokens;
  });
  for (const int32_t i : due_) {
    if (spare_ < 1) break;
    spare_ -= 1;
    spared_.insert(snapshot.waiting[i].id);
    turns_[i].spared = true;
    turns_[i].slack += kSpareSteps;
  }
}

void Turns::SetWorths(const Snapshot& snapshot, const PoolScale& scale, Instance& instance) const {
  // More than any exchange of items can change the balance by; in time, as what is balanced is.
  double low = instance.workers[0].TimeAt(static_cast<double>(instance.workers[0].load_tokens)), high = low,
         largest = 0, steepest = 0;
  for (const WorkerView& worker : instance.workers) {
    low = std::min(low, worker.TimeAt(static_cast<double>(worker.load_tokens)));
    high = std::max(high, worker.TimeAt(static_cast<double>(worker.load_tokens)));
    steepest = std::max(steepest, worker.load_rate());
  }
  for (const SolverItem& item : instance.items)
    largest = std::max(largest, steepest * static_cast<double>(item.load + item.credit));
  const double forced = 4 * std::pow(high - low + 2 * largest, 2);

  const double late = std::max(1.0, kLateFactor * static_cast<double>(snapshot.first_come_p99));
  const double rate = instance.MeanLoadRate();
  const double unit = price_ * scale.deviation * scale.deviation;
  for (size_t i = 0; i < instance.items.size(); ++i) {
    SolverItem& item = instance.items[i];
    const double age = AgeOf(snapshot, snapshot.waiting[i]);
    double lateness = age / late;
    if (turns_[i].spared) lateness = kSparedWorth * std::min(1.0, lateness);
    item.worth = rate * rate * (kLeastAgeWorth * age + unit * lateness * std::abs(lateness));
    if (turns_[i].slack > 0) continue;
    const bool home_closed = item.home != kNoHome && instance.workers[item.home].free_slots == 0;
    if (turns_[i].spared && home_closed && turns_[i].slack > -kHomeSteps) continue;
    item.worth += forced * (1 - turns_[i].slack);
  }
}

void Turns::Learn(const Snapshot& snapshot, absl::Span<const Assignment> plan) {
  const double late = std::floor(kLateFactor * static_cast<double>(snapshot.first_come_p99) + 1e-9);
  double steps = 0;
  for (const Assignment& assignment : plan) {
    const WaitingView& request = snapshot.waiting[static_cast<size_t>(assignment.waiting_index)];
    spared_.erase(request.id);
    // Its own wait: a senior call comes late into the pool, not out of it.
    const bool is_late = AgeOf(snapshot, request) - static_cast<double>(request.seniority) > late;
    steps += (is_late ? 1 : 0) - kLateShare;
  }
  // KV may have admitted fewer than there were seats.
  const int64_t admitted = static_cast<int64_t>(plan.size());
  if (admitted < static_cast<int64_t>(snapshot.waiting.size())) {
    price_ = std::clamp(price_ * std::exp(kPriceGain * steps), kLeastPrice, kMostPrice);
  }
  const double now = static_cast<double>(admitted);
  seats_ = seats_ == 0 ? now : seats_ + kSeatsGain * (now - seats_);
  spare_ += kSpareShare * now;
}

}  // namespace bfio::core
