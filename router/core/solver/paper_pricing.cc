#include "router/core/solver/paper_pricing.h"

#include <algorithm>
#include <utility>

namespace bfio::core {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

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
  slot_.slack.resize(steps_);
  slot_.within.resize(steps_ + 1);
  slot_.tail.resize(steps_ + 1);
  slot_.breaks.resize(steps_);
  for (int32_t g = 0; g < workers; ++g) {
    const bool open = instance.workers[g].free_slots > 0;
    if (open) open_.push_back(g);
    for (int32_t h = 0; h < steps_; ++h) {
      Row(g)[h] = instance.workers[g].TimeAt(instance.LoadAhead(g, h));
      if (!open) Insert(closed_top_[h], {g, Row(g)[h]});
    }
  }
  for (int32_t i = 0; i < allocation.items(); ++i) {
    const int32_t g = allocation.WorkerOf(i);
    if (g == kUnassigned) continue;
    const TimeAdded added = Added(i, g);
    for (int32_t h = 0; h < steps_; ++h) Row(g)[h] += added[h];
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
  slot_.worker = g;
  slot_.rate = instance_->workers[g].time_per_token;
  slot_.base = 0;
  const double* row = Row(g);
  const double* d = terms_->discount();
  const TimeAdded leaving = Added(std::max(out, 0), g);
  for (int32_t h = 0; h < steps_; ++h) {
    const double removed = out == kUnassigned ? 0 : leaving[h];
    // A single worker is always its own maximum.
    const double others = group_ > 1 ? MaxWithout(top_[h], g, g) : 0;
    slot_.slack[h] = others - (row[h] - removed);
    slot_.base += d[h] * (group_ * (others - top_[h][0].time) + removed);
  }
  const double per_time = 1 / slot_.rate;
  slot_.within[0] = kInfinity;
  for (int32_t h = 0; h < steps_; ++h) {
    slot_.within[h + 1] = std::min(slot_.within[h], slot_.slack[h] * per_time - h);
  }
  slot_.tail[steps_] = 0;
  for (int32_t h = steps_ - 1; h >= 0; --h) {
    slot_.tail[h] = slot_.tail[h + 1] + d[h] * std::max(0.0, -slot_.slack[h]);
  }
}

double PaperPricing::Gain(double load, int32_t curve) const {
  const Terms::Area& area = terms_->area(curve);
  const double* p = terms_->survival(curve);
  const double* q = terms_->growth(curve);
  const double* d = terms_->discount();
  const double* slack = slot_.slack.data();
  const double rate = slot_.rate, time = rate * load;
  // Two sums, so that consecutive additions do not depend on each other.
  double even = slot_.tail[area.end], odd = 0;
  int32_t h = 0;
  for (; h + 1 < area.end; h += 2) {
    even += d[h] * std::max(0.0, time * p[h] + rate * q[h] - slack[h]);
    odd += d[h + 1] * std::max(0.0, time * p[h + 1] + rate * q[h + 1] - slack[h + 1]);
  }
  if (h < area.end) even += d[h] * std::max(0.0, time * p[h] + rate * q[h] - slack[h]);
  return slot_.base + group_ * (even + odd) - time * area.per_token - rate * area.growth;
}

SlotPrice PaperPricing::Lowest(int32_t curve) {
  const Terms::Area& area = terms_->area(curve);
  if (!area.step || group_ * area.least < area.per_token) return Select(curve);
  const double load = slot_.within[area.end];
  return {load,
          slot_.base + group_ * slot_.tail[area.end] - slot_.rate * (load * area.per_token + area.growth)};
}

SlotPrice PaperPricing::Select(int32_t curve) {
  // Beyond breaks[h], step h costs G d_h p_h per token; every token earns its area.
  const Terms::Area& area = terms_->area(curve);
  const double* p = terms_->survival(curve);
  const double per_time = 1 / slot_.rate;
  const auto first = slot_.breaks.begin(), last = first + area.end;
  for (int32_t h = 0; h < area.end; ++h) {
    slot_.breaks[h] = p[h] > 0 ? slot_.slack[h] * per_time / p[h] - h : kInfinity;
  }
  double slope = -area.per_token;
  while (true) {
    const auto next = std::min_element(first, last);
    if (next == last || *next == kInfinity) return {kInfinity, -kInfinity};
    slope += group_ * terms_->discount()[next - first] * p[next - first];
    if (slope >= 0) return {*next, Gain(*next, curve)};
    *next = kInfinity;
  }
}

double PaperPricing::Pair(int32_t a, int32_t a_worker, int32_t b, int32_t b_worker) {
  const double* a_row = Row(a_worker);
  const double* b_row = Row(b_worker);
  const TimeAdded a_out = Added(a, a_worker), a_in = Added(b, a_worker);
  const TimeAdded b_out = Added(b, b_worker), b_in = Added(a, b_worker);
  double gain = 0;
  for (int32_t h = 0; h < steps_; ++h) {
    const double a_change = a_in[h] - a_out[h], b_change = b_in[h] - b_out[h];
    const double max =
        std::max(MaxWithout(top_[h], a_worker, b_worker), std::max(a_row[h] + a_change, b_row[h] + b_change));
    gain += terms_->discount()[h] * (group_ * (max - top_[h][0].time) - a_change - b_change);
  }
  return gain;
}

double PaperPricing::Move(int32_t item, int32_t from, int32_t to) {
  const TimeAdded leaving = Added(item, from), coming = Added(item, to);
  double gain = 0;
  for (int32_t h = 0; h < steps_; ++h) {
    const double less = leaving[h], more = coming[h];
    const double max =
        std::max(MaxWithout(top_[h], from, to), std::max(Row(from)[h] - less, Row(to)[h] + more));
    gain += terms_->discount()[h] * (group_ * (max - top_[h][0].time) + less - more);
  }
  return gain;
}

void PaperPricing::Put(int32_t item, int32_t g, int32_t sign) {
  double* row = Row(g);
  const TimeAdded added = Added(item, g);
  for (int32_t h = 0; h < steps_; ++h) {
    row[h] += sign * added[h];
    const Top& top = top_[h];
    if (row[h] > top[2].time || top[0].worker == g || top[1].worker == g || top[2].worker == g) dirty_[h] = 1;
  }
}

void PaperPricing::Settle() {
  bool ranked = false, moved = false, rose = false;
  for (int32_t h = 0; h < steps_; ++h) {
    if (!dirty_[h]) continue;
    dirty_[h] = 0;
    ranked = true;
    const double first = top_[h][0].time, second = top_[h][1].time;
    Rank(h);
    moved = moved || top_[h][0].time != first || top_[h][1].time != second;
    rose = rose || top_[h][0].time > first;
  }
  if (moved) ++moves_;
  if (rose) ++rises_;
  if (!ranked) return;
  for (int32_t g : open_) critical_[g] = 0;
  for (const Top& top : top_) {
    if (top[0].worker >= 0) critical_[top[0].worker] = 1;
  }
}

void PaperPricing::Rank(int32_t h) {
  Top top = closed_top_[h];
  const double* times = times_.data() + h;
  for (int32_t g : open_) {
    const double time = times[static_cast<size_t>(g) * steps_];
    if (time > top[2].time) Insert(top, {g, time});
  }
  top_[h] = top;
}

}  // namespace bfio::core
