#include "router/core/solver/quadratic_pricing.h"

#include <algorithm>

#include "router/core/solver/evaluate.h"

namespace bfio::core {

void QuadraticPricing::Reset(const Instance& instance, const Terms& terms, const Allocation& allocation) {
  instance_ = &instance;
  terms_ = &terms;
  steps_ = terms.steps();
  FindTargets(instance, kind_, targets_);
  const auto workers = static_cast<int32_t>(instance.workers.size());
  y_.resize(static_cast<size_t>(workers) * steps_);
  if (given_.size() < instance.workers.size()) given_.resize(instance.workers.size());
  version_.resize(instance.workers.size());
  for (int32_t g = 0; g < workers; ++g) {
    given_[g].clear();
    version_[g] = ++next_version_;
    const WorkerView& worker = instance.workers[g];
    for (int32_t h = 0; h < steps_; ++h) {
      const double tokens =
          refill_ ? static_cast<double>(worker.load_tokens) + static_cast<double>(worker.active) * h
                  : instance.LoadAhead(g, h);
      Row(g)[h] = worker.TimeAt(tokens) - targets_[h];
    }
  }
  for (int32_t i = 0; i < allocation.items(); ++i) {
    if (allocation.WorkerOf(i) != kUnassigned) Put(i, allocation.WorkerOf(i), +1);
  }
  if (left_slots_.size() < instance.items.size()) left_slots_.resize(instance.items.size());
  if (free_slots_.size() < instance.workers.size()) free_slots_.resize(instance.workers.size());
}

QuadraticPricing::Addition QuadraticPricing::AdditionOf(int32_t item, int32_t g) const {
  const double rate = instance_->workers[g].time_per_token,
               time = instance_->workers[g].load_rate() * LoadOn(item, g);
  if (refill_) return {time, rate, nullptr, nullptr};
  return {time, rate, terms_->survival(CurveOf(item)), terms_->growth(CurveOf(item))};
}

double QuadraticPricing::Weight(int32_t g, int32_t h, int32_t without) const {
  double weight = terms_->discount()[h];
  if (!refill_) return weight;
  weight *= instance_->QuietAhead(g, h);
  for (int32_t item : given_[g]) {
    if (item != without) weight *= terms_->survival(CurveOf(item))[h];
  }
  return weight;
}

double QuadraticPricing::CostOf(int32_t g) const {
  double cost = 0;
  for (int32_t h = 0; h < steps_; ++h) cost += Weight(g, h, kUnassigned) * Row(g)[h] * Row(g)[h];
  return cost;
}

double QuadraticPricing::Value() const {
  double value = 0;
  for (int32_t g = 0; g < static_cast<int32_t>(instance_->workers.size()); ++g) value += CostOf(g);
  return value;
}

void QuadraticPricing::Put(int32_t item, int32_t g, int32_t sign) {
  version_[g] = ++next_version_;
  const Addition addition = AdditionOf(item, g);
  for (int32_t h = 0; h < steps_; ++h) Row(g)[h] += sign * addition[h];
  if (sign > 0) {
    given_[g].push_back(item);
  } else {
    given_[g].erase(std::find(given_[g].begin(), given_[g].end(), item));
  }
}

QuadraticPricing::Slot& QuadraticPricing::SlotOf(int32_t g, int32_t out) {
  Slot& slot = out == kUnassigned ? free_slots_[g] : left_slots_[out];
  if (slot.version != version_[g]) Compute(g, out, slot);
  return slot;
}

void QuadraticPricing::Compute(int32_t g, int32_t out, Slot& slot) const {
  slot.worker = g;
  slot.out = out;
  slot.version = version_[g];
  slot.rate = instance_->workers[g].time_per_token;
  slot.load_rate = instance_->workers[g].load_rate();
  slot.now = 0;
  slot.empty = 0;
  slot.y.resize(steps_);
  slot.w.resize(steps_);
  slot.parabolas.resize(terms_->curves());
  slot.known.assign(terms_->curves(), 0);
  const Addition leaving = AdditionOf(std::max(out, 0), g);
  for (int32_t h = 0; h < steps_; ++h) {
    const double y = Row(g)[h];
    slot.w[h] = Weight(g, h, out);
    slot.y[h] = out == kUnassigned ? y : y - leaving[h];
    const double out_survival = refill_ && out != kUnassigned ? terms_->survival(CurveOf(out))[h] : 1;
    slot.now += slot.w[h] * out_survival * y * y;
    slot.empty += slot.w[h] * slot.y[h] * slot.y[h];
  }
  slot.empty -= slot.now;
}

QuadraticPricing::Parabola QuadraticPricing::Fit(const Slot& slot, int32_t curve) const {
  const double* p = terms_->survival(curve);
  const double r = slot.rate, load_rate = slot.load_rate;
  // An item of load s changes y to y + u (R s + r h), with weight v.
  double constant = -slot.now, slope = 0, bend = 0;
  const auto add = [&](int32_t h, double u, double v) {
    const double y = slot.y[h] + r * u * h;
    constant += v * y * y;
    slope += v * y * u;
    bend += v * u * u;
  };
  if (refill_) {
    for (int32_t h = 0; h < steps_; ++h) add(h, 1, slot.w[h] * p[h]);
  } else {
    for (int32_t h = 0; h < steps_; ++h) add(h, p[h], slot.w[h]);
  }
  return {constant, 2 * load_rate * slope, load_rate * load_rate * bend};
}

double QuadraticPricing::Pair(int32_t a, int32_t a_worker, int32_t b, int32_t b_worker) {
  return GainAt(SlotOf(a_worker, a), b) + GainAt(SlotOf(b_worker, b), a);
}

double QuadraticPricing::Move(int32_t item, int32_t from, int32_t to) {
  return SlotOf(from, item).empty + GainAt(SlotOf(to, kUnassigned), item);
}

}  // namespace bfio::core
