// The two objectives, each able to price an exchange in O(1).
//
// Purpose: improvement is written once, for any class with this shape:
//   Reset(instance, loads)  takes the workers' loads
//   Value()                 the objective of the loads
//   Single(g)               prices "worker g's load changes by d"
//   Pair(g, h)              prices "g's load changes by d, h's by e"
//   Apply(g, d)             makes the change
//   AdmitCost(item)         what admitting an item costs besides its load
// Loads are kept as doubles around a whole number: below 2^53 they are exact, so plans repeat bit for bit.
#ifndef BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_
#define BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "router/core/solver/instance.h"

namespace bfio::core {

// sum_g (L_g - target)^2, less the worth of what is admitted. One term per worker: no worker's price depends
// on another's load.
class SquareObjective {
 public:
  void Reset(const Instance& instance, absl::Span<const int64_t> loads) {
    x_.clear();
    for (int64_t load : loads) x_.push_back(static_cast<double>(load) - instance.target_load);
  }

  double Value() const {
    double squares = 0;
    for (double x : x_) squares += x * x;
    return squares;
  }

  struct SinglePrice {
    double twice_x;
    double operator()(double d) const { return d * (d + twice_x); }
  };
  SinglePrice Single(int32_t g) const { return {2 * x_[g]}; }

  struct PairPrice {
    SinglePrice g, h;
    double operator()(double d, double e) const { return g(d) + h(e); }
  };
  PairPrice Pair(int32_t g, int32_t h) const { return {Single(g), Single(h)}; }

  void Apply(int32_t g, double d) { x_[g] += d; }
  double AdmitCost(const SolverItem& item) const { return -item.worth; }

 private:
  // L_g - target.
  std::vector<double> x_;
};

// J = G max_g L_g - sum_g L_g (BF-IO paper, section 3). Keeps the three largest loads, so that the largest of
// the others is known whichever one or two workers change.
class PaperObjective {
 public:
  void Reset(const Instance&, absl::Span<const int64_t> loads) {
    int64_t total = 0;
    for (int64_t load : loads) total += load;
    const int64_t centre = total / static_cast<int64_t>(loads.size());
    x_.clear();
    for (int64_t load : loads) x_.push_back(static_cast<double>(load - centre));
    FindTop();
  }

  double Value() const {
    double value = 0;
    for (double x : x_) value += top_[0].load - x;
    return value;
  }

  struct SinglePrice {
    double workers, max, max_of_others, load;
    double operator()(double d) const { return workers * (std::max(max_of_others, load + d) - max) - d; }
  };
  SinglePrice Single(int32_t g) const { return {Workers(), top_[0].load, MaxWithout(g, g), x_[g]}; }

  struct PairPrice {
    double workers, max, max_of_others, g_load, h_load;
    double operator()(double d, double e) const {
      return workers * (std::max(max_of_others, std::max(g_load + d, h_load + e)) - max) - d - e;
    }
  };
  PairPrice Pair(int32_t g, int32_t h) const {
    return {Workers(), top_[0].load, MaxWithout(g, h), x_[g], x_[h]};
  }

  void Apply(int32_t g, double d) {
    x_[g] += d;
    FindTop();
  }
  double AdmitCost(const SolverItem&) const { return 0; }

 private:
  struct Entry {
    int32_t worker = kNobody;
    double load = -std::numeric_limits<double>::infinity();
  };
  static constexpr int32_t kNobody = -1;

  double Workers() const { return static_cast<double>(x_.size()); }

  double MaxWithout(int32_t g, int32_t h) const {
    for (const Entry& entry : top_) {
      if (entry.worker != g && entry.worker != h) return entry.load;
    }
    return -std::numeric_limits<double>::infinity();
  }

  void FindTop() {
    top_.fill(Entry{});
    for (int32_t g = 0; g < static_cast<int32_t>(x_.size()); ++g) {
      Entry entry{g, x_[g]};
      for (Entry& place : top_) {
        if (entry.load > place.load) std::swap(entry, place);
      }
    }
  }

  // L_g minus their first mean, rounded.
  std::vector<double> x_;
  std::array<Entry, 3> top_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_OBJECTIVE_H_
