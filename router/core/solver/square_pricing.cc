#include "router/core/solver/square_pricing.h"

#include "router/core/solver/evaluate.h"

namespace bfio::core {

void SquarePricing::Reset(const Instance& instance, const Terms& terms, const Allocation& allocation) {
  instance_ = &instance;
  terms_ = &terms;
  steps_ = terms.steps();
  FindTargets(instance, targets_);
  const auto workers = static_cast<int32_t>(instance.workers.size());
  y_.resize(static_cast<size_t>(workers) * steps_);
  slot_y_.resize(static_cast<size_t>(steps_));
  for (int32_t g = 0; g < workers; ++g) {
    for (int32_t h = 0; h < steps_; ++h) {
      Row(g)[h] = instance.workers[g].TimeAt(instance.LoadAhead(g, h)) - targets_[h];
    }
  }
  for (int32_t i = 0; i < allocation.items(); ++i) {
    if (allocation.WorkerOf(i) != kUnassigned) Put(i, allocation.WorkerOf(i), +1);
  }
}

double SquarePricing::CostOf(int32_t g) const {
  double cost = 0;
  for (int32_t h = 0; h < steps_; ++h) cost += terms_->discount()[h] * Row(g)[h] * Row(g)[h];
  return cost;
}

double SquarePricing::Value() const {
  double value = 0;
  for (int32_t g = 0; g < static_cast<int32_t>(instance_->workers.size()); ++g) value += CostOf(g);
  return value;
}

void SquarePricing::Put(int32_t item, int32_t g, int32_t sign) {
  const TimeAdded added = Added(item, g);
  for (int32_t h = 0; h < steps_; ++h) Row(g)[h] += sign * added[h];
}

void SquarePricing::Open(int32_t g, int32_t out) {
  slot_worker_ = g;
  slot_cost_ = CostOf(g);
  slot_y_.assign(Row(g), Row(g) + steps_);
  if (out == kUnassigned) return;
  const TimeAdded leaving = Added(out, g);
  for (int32_t h = 0; h < steps_; ++h) slot_y_[h] -= leaving[h];
}

SlotPrice SquarePricing::Lowest(int32_t curve) {
  const double* p = terms_->survival(curve);
  const double* q = terms_->growth(curve);
  const double* d = terms_->discount();
  const double rate = instance_->workers[slot_worker_].time_per_token;
  constant_ = -slot_cost_;
  slope_ = bend_ = 0;
  for (int32_t h = 0; h < steps_; ++h) {
    const double y = slot_y_[h] + rate * q[h];
    constant_ += d[h] * y * y;
    slope_ += d[h] * y * p[h];
    bend_ += d[h] * p[h] * p[h];
  }
  slope_ *= 2 * rate;
  bend_ *= rate * rate;
  const double load = bend_ > 0 ? -slope_ / (2 * bend_) : 0;
  return {load, constant_ + load * slope_ / 2};
}

double SquarePricing::Pair(int32_t a, int32_t a_worker, int32_t b, int32_t b_worker) const {
  const double* a_row = Row(a_worker);
  const double* b_row = Row(b_worker);
  const TimeAdded a_out = Added(a, a_worker), a_in = Added(b, a_worker);
  const TimeAdded b_out = Added(b, b_worker), b_in = Added(a, b_worker);
  double gain = 0;
  for (int32_t h = 0; h < steps_; ++h) {
    const double a_change = a_in[h] - a_out[h], b_change = b_in[h] - b_out[h];
    gain +=
        terms_->discount()[h] * (a_change * (a_change + 2 * a_row[h]) + b_change * (b_change + 2 * b_row[h]));
  }
  return gain;
}

double SquarePricing::Move(int32_t item, int32_t from, int32_t to) const {
  const TimeAdded leaving = Added(item, from), coming = Added(item, to);
  double gain = 0;
  for (int32_t h = 0; h < steps_; ++h) {
    const double less = leaving[h], more = coming[h];
    gain += terms_->discount()[h] * (less * (less - 2 * Row(from)[h]) + more * (more + 2 * Row(to)[h]));
  }
  return gain;
}

}  // namespace bfio::core
