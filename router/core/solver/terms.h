// The arrays that all prices over a horizon use. Discounts, and per curve the survival p(h) and growth q(h) =
// h p(h) of an item, as plain rows; computed once per instance. An item of load s adds rate (s p(h) + q(h))
// to its worker's time at step h. Ownership: reused between decisions; allocates only to grow. Threads: one
// fills it; any may read it afterwards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "router/core/solver/instance.h"

namespace bfio::core {

// The lowest price of filling a slot, over all possible loads of an item.
struct SlotPrice {
  // The load at which the change of the objective is minimal, and that change.
  double load = 0;
  double gain = 0;
};

// The time that an item adds to a worker, by step.
struct TimeAdded {
  double load, rate;
  const double* survival;
  const double* growth;
  double operator[](int32_t h) const { return rate * (load * survival[h] + growth[h]); }
};

class Terms {
 public:
  void Reset(const Instance& instance) {
    steps_ = instance.steps();
    const int32_t curves = instance.NumCurves();
    discount_.resize(static_cast<size_t>(steps_));
    for (int32_t h = 0; h < steps_; ++h) discount_[h] = instance.Discount(h);
    survival_.resize(static_cast<size_t>(curves) * static_cast<size_t>(steps_));
    growth_.resize(survival_.size());
    area_.assign(static_cast<size_t>(curves), {});
    by_area_.resize(static_cast<size_t>(curves));
    for (int32_t c = 0; c < curves; ++c) {
      for (int32_t h = 0; h < steps_; ++h) {
        const double p = instance.Survival(c, h);
        survival_[c * steps_ + h] = p;
        growth_[c * steps_ + h] = h * p;
        area_[c].per_token += discount_[h] * p;
        area_[c].growth += discount_[h] * h * p;
        if (p > 0) area_[c].end = h + 1;
        if (p > 0) area_[c].least = std::min(area_[c].least, discount_[h] * p);
      }
      for (int32_t h = 0; h < area_[c].end; ++h)
        area_[c].step = area_[c].step && survival_[c * steps_ + h] == 1;
      by_area_[c] = c;
    }
    std::sort(by_area_.begin(), by_area_.end(), [&](int32_t a, int32_t b) {
      return area_[a].per_token > area_[b].per_token || (area_[a].per_token == area_[b].per_token && a < b);
    });
  }

  int32_t steps() const { return steps_; }
  int32_t curves() const { return static_cast<int32_t>(area_.size()); }
  const double* discount() const { return discount_.data(); }
  // p(h) and q(h) = h p(h) of a curve.
  const double* survival(int32_t curve) const { return survival_.data() + curve * steps_; }
  const double* growth(int32_t curve) const { return growth_.data() + curve * steps_; }

  TimeAdded Added(const Instance& instance, int32_t item, int32_t g) const {
    const SolverItem& of = instance.items[item];
    const int32_t curve = instance.CurveOf(of);
    return {static_cast<double>(of.LoadOn(g)), instance.workers[g].time_per_token, survival(curve),
            growth(curve)};
  }

  struct Area {
    // Discounted sums over h: of p, and of q.
    double per_token = 0;
    double growth = 0;
    // The smallest positive d_h p(h), and the first h from which p is 0.
    double least = std::numeric_limits<double>::infinity();
    int32_t end = 0;
    // p is 1 before `end`: the length is known.
    bool step = true;
  };
  const Area& area(int32_t curve) const { return area_[curve]; }
  // Curves in descending order of per_token: the longest lived first.
  const std::vector<int32_t>& by_area() const { return by_area_; }

 private:
  int32_t steps_ = 1;
  std::vector<double> discount_, survival_, growth_;
  std::vector<Area> area_;
  std::vector<int32_t> by_area_;
};

}  // namespace bfio::core
