// The two objectives, each able to price an exchange in O(1).
//
// Purpose: improvement is written once, for any class with this shape:
//   Reset(loads)        takes the workers' loads
//   Value()             the objective of the loads
//   Single(g)           prices "worker g's load changes by d"
//   Pair(g, h)          prices "g's changes by d and h's by -d"
//   Apply(g, d)         makes the change
//   AdmitCost(age)      what admitting an item costs besides its load
// Loads are kept as doubles around their first mean: below 2^53 they are exact, so plans repeat bit for bit.
#ifndef BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_
#define BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace bfio::core {

// Loads minus their first mean (rounded), and the sum of those.
class CentredLoads {
 public:
  void Reset(absl::Span<const int64_t> loads) {
    int64_t total = 0;
    for (int64_t load : loads) total += load;
    const int64_t centre = total / static_cast<int64_t>(loads.size());
    x_.clear();
    sum_ = 0;
    for (int64_t load : loads) {
      x_.push_back(static_cast<double>(load - centre));
      sum_ += x_.back();
    }
  }
  void Apply(int32_t g, double d) {
    x_[g] += d;
    sum_ += d;
  }
  double operator[](int32_t g) const { return x_[g]; }
  double sum() const { return sum_; }
  double size() const { return static_cast<double>(x_.size()); }
  absl::Span<const double> all() const { return x_; }

 private:
  std::vector<double> x_;
  double sum_ = 0;
};

// sum_g (L_g - mean)^2 = sum_g L_g^2 - (sum_g L_g)^2 / G, minus age_weight per step waited.
class SquareObjective {
 public:
  explicit SquareObjective(double age_weight) : age_weight_(age_weight) {}

  void Reset(absl::Span<const int64_t> loads) { x_.Reset(loads); }

  double Value() const {
    double squares = 0;
    for (double x : x_.all()) squares += x * x;
    return squares - x_.sum() * x_.sum() / x_.size();
  }

  // The objective is quadratic in one load.
  struct SinglePrice {
    double a, b;
    double operator()(double d) const { return (a * d + b) * d; }
  };
  SinglePrice Single(int32_t g) const { return {1 - 1 / x_.size(), 2 * (x_[g] - x_.sum() / x_.size())}; }

  // The sum does not change.
  struct PairPrice {
    double difference;
    double operator()(double d) const { return 2 * d * (d + difference); }
  };
  PairPrice Pair(int32_t g, int32_t h) const { return {x_[g] - x_[h]}; }

  void Apply(int32_t g, double d) { x_.Apply(g, d); }
  double AdmitCost(int64_t age) const { return -age_weight_ * static_cast<double>(age); }

 private:
  double age_weight_;
  CentredLoads x_;
};

// J = G max_g L_g - sum_g L_g (BF-IO paper, section 3). Keeps the three largest loads, so that the largest of
// the others is known whichever one or two workers change.
class PaperObjective {
 public:
  void Reset(absl::Span<const int64_t> loads) {
    x_.Reset(loads);
    FindTop();
  }

  double Value() const { return x_.size() * top_[0].load - x_.sum(); }

  struct SinglePrice {
    double workers, max, max_of_others, load;
    double operator()(double d) const { return workers * (std::max(max_of_others, load + d) - max) - d; }
  };
  SinglePrice Single(int32_t g) const { return {x_.size(), top_[0].load, MaxWithout(g, g), x_[g]}; }

  struct PairPrice {
    double workers, max, max_of_others, g_load, h_load;
    double operator()(double d) const {
      return workers * (std::max(max_of_others, std::max(g_load + d, h_load - d)) - max);
    }
  };
  PairPrice Pair(int32_t g, int32_t h) const {
    return {x_.size(), top_[0].load, MaxWithout(g, h), x_[g], x_[h]};
  }

  void Apply(int32_t g, double d) {
    x_.Apply(g, d);
    FindTop();
  }
  double AdmitCost(int64_t) const { return 0; }

 private:
  struct Entry {
    int32_t worker = kNobody;
    double load = -std::numeric_limits<double>::infinity();
  };
  static constexpr int32_t kNobody = -1;

  double MaxWithout(int32_t g, int32_t h) const {
    for (const Entry& entry : top_) {
      if (entry.worker != g && entry.worker != h) return entry.load;
    }
    return -std::numeric_limits<double>::infinity();
  }

  void FindTop() {
    top_.fill(Entry{});
    for (int32_t g = 0; g < static_cast<int32_t>(x_.all().size()); ++g) {
      Entry entry{g, x_[g]};
      for (Entry& place : top_) {
        if (entry.load > place.load) std::swap(entry, place);
      }
    }
  }

  CentredLoads x_;
  std::array<Entry, 3> top_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_
