#include "router/core/solver/paper_pricing.h"

#include <algorithm>
#include <utility>

namespace bfio::core {

void PaperPricing::Insert(Top& top, Entry entry) {
  for (Entry& place : top) {
    if (entry.time > place.time) std::swap(entry, place);
  }
}

double PaperPricing::MaxWithout(const Top& top, int32_t g, int32_t h) {
  for (const Entry& entry : top) {
    if (entry.worker != g && entry.worker != h) return entry.time;
  }
  return -std::numeric_limits<double>::infinity();
}

void PaperPricing::Reset(const Instance& instance, const Terms& terms, const Allocation& allocation) {
  instance_ = &instance;
  terms_ = &terms;
  steps_ = terms.steps();
  const auto workers = static_cast<int32_t>(instance.workers.size());
  group_ = workers;
  times_.resize(static_cast<size_t>(workers) * steps_);
  open_.clear();
  closed_top_.assign(steps_, Top{});
  top_.resize(steps_);
  critical_.assign(workers, 0);
  seat_.slack.resize(steps_);
  seat_.breaks.resize(steps_);
  for (int32_t g = 0; g < workers; ++g) {
    const bool open = instance.workers[g].slots > 0;
    if (open) open_.push_back(g);
    for (int32_t h = 0; h < steps_; ++h) {
      Row(g)[h] = instance.workers[g].Time(instance.LoadAhead(g, h));
      if (!open) Insert(closed_top_[h], {g, Row(g)[h]});
    }
  }
  for (int32_t i = 0; i < allocation.items(); ++i) {
    const int32_t g = allocation.WorkerOf(i);
    if (g == kUnassigned) continue;
    for (int32_t h = 0; h < steps_; ++h) Row(g)[h] += Added(i, g, h);
  }
  dirty_.assign(steps_, 1);
  Settle();
}

double PaperPricing::Value() const {
  double value = 0;
  for (size_t g = 0; g < instance_->workers.size(); ++g) {
    const double* row = Row(static_cast<int32_t>(g));
    for (int32_t h = 0; h < steps_; ++h) value += terms_->discount()[h] * (top_[h][0].time - row[h]);
  }
  return value;
}

void PaperPricing::Open(int32_t g, int32_t out) {
  seat_.worker = g;
  seat_.rate = instance_->workers[g].time_per_token;
  seat_.base = 0;
  const double* row = Row(g);
  for (int32_t h = 0; h < steps_; ++h) {
    const double removed = out == kUnassigned ? 0 : Added(out, g, h);
    // A group of one is always its own maximum.
    const double others = group_ > 1 ? MaxWithout(top_[h], g, g) : 0;
    seat_.slack[h] = others - (row[h] - removed);
    seat_.base += terms_->discount()[h] * (group_ * (others - top_[h][0].time) + removed);
  }
}

double PaperPricing::Gain(double load, int32_t curve) const {
  const double* p = terms_->survival(curve);
  const double* q = terms_->growth(curve);
  const double* d = terms_->discount();
  const double* slack = seat_.slack.data();
  double excess = 0;
  for (int32_t h = 0; h < steps_; ++h) {
    excess += d[h] * std::max(0.0, seat_.rate * (load * p[h] + q[h]) - slack[h]);
  }
  const Terms::Area& area = terms_->area(curve);
  return seat_.base + group_ * excess - seat_.rate * (load * area.per_token + area.growth);
}

double PaperPricing::Ideal(int32_t curve) {
  // Beyond breaks[h] step h costs G d_h p_h a token; every token earns its area.
  const double* p = terms_->survival(curve);
  double slope = -terms_->area(curve).per_token;
  for (int32_t h = 0; h < steps_; ++h) {
    seat_.breaks[h] =
        p[h] > 0 ? seat_.slack[h] / (seat_.rate * p[h]) - h : std::numeric_limits<double>::infinity();
  }
  while (true) {
    const auto next = std::min_element(seat_.breaks.begin(), seat_.breaks.end());
    const auto h = next - seat_.breaks.begin();
    const double at = *next;
    if (at == std::numeric_limits<double>::infinity()) return at;
    slope += group_ * terms_->discount()[h] * p[h];
    if (slope >= 0) return at;
    *next = std::numeric_limits<double>::infinity();
  }
}

double PaperPricing::Pair(int32_t a, int32_t a_worker, int32_t b, int32_t b_worker) {
  const double* a_row = Row(a_worker);
  const double* b_row = Row(b_worker);
  double gain = 0;
  for (int32_t h = 0; h < steps_; ++h) {
    const double a_change = Added(b, a_worker, h) - Added(a, a_worker, h);
    const double b_change = Added(a, b_worker, h) - Added(b, b_worker, h);
    const double max =
        std::max(MaxWithout(top_[h], a_worker, b_worker), std::max(a_row[h] + a_change, b_row[h] + b_change));
    gain += terms_->discount()[h] * (group_ * (max - top_[h][0].time) - a_change - b_change);
  }
  return gain;
}

double PaperPricing::Move(int32_t item, int32_t from, int32_t to) {
  double gain = 0;
  for (int32_t h = 0; h < steps_; ++h) {
    const double less = Added(item, from, h), more = Added(item, to, h);
    const double max =
        std::max(MaxWithout(top_[h], from, to), std::max(Row(from)[h] - less, Row(to)[h] + more));
    gain += terms_->discount()[h] * (group_ * (max - top_[h][0].time) + less - more);
  }
  return gain;
}

void PaperPricing::Put(int32_t item, int32_t g, int32_t sign) {
  double* row = Row(g);
  for (int32_t h = 0; h < steps_; ++h) {
    row[h] += sign * Added(item, g, h);
    const Top& top = top_[h];
    if (row[h] >= top[2].time || top[0].worker == g || top[1].worker == g || top[2].worker == g)
      dirty_[h] = 1;
  }
}

void PaperPricing::Settle() {
  bool changed = false;
  for (int32_t h = 0; h < steps_; ++h) {
    if (!dirty_[h]) continue;
    dirty_[h] = 0;
    changed = true;
    Rank(h);
  }
  if (!changed) return;
  ++epoch_;
  for (int32_t g : open_) critical_[g] = 0;
  for (const Top& top : top_) critical_[top[0].worker] = 1;
}

void PaperPricing::Rank(int32_t h) {
  Top top = closed_top_[h];
  for (int32_t g : open_) {
    const double time = Row(g)[h];
    if (time > top[2].time) Insert(top, {g, time});
  }
  top_[h] = top;
}

}  // namespace bfio::core
