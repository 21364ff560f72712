// Prices of exchanges under J = sum_h d_h (G max_g T_g(h) - sum_g T_g(h)) (BF-IO paper, section 3). One of
// the two pricings of the search (search.h defines a pricing). Keeps every worker's time at every step and
// the three largest of each step, so that an exchange costs O(H) whatever G is.
//
// The price of giving a slot to an item is piecewise linear and convex in the item's load s for a given
// curve: it falls while the worker stays below the others' maximum and rises beyond. Lowest() is its minimum.
// When one step beyond the maximum costs more than all steps together earn (always with G > H + 1 and known
// ends), the minimum is at the first step that reaches the maximum, and one pass over h finds it for every
// curve. Ownership: borrows instance and terms from Reset on. Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "router/core/solver/instance.h"
#include "router/core/solver/terms.h"

namespace bfio::core {

class PaperPricing {
 public:
  // Takes the workers' times with the items that `allocation` has placed.
  void Reset(const Instance& instance, const Terms& terms, const Allocation& allocation);
  double Value() const;

  // Opens a slot: worker g without item `out` (kUnassigned: unchanged). Lowest and Gain refer to the open
  // slot.
  void Open(int32_t g, int32_t out);
  // For items of that curve: the load at which Gain is minimal, and its value there.
  SlotPrice Lowest(int32_t curve);
  // Change of the objective when an item of this load and curve takes the slot.
  double Gain(double load, int32_t curve) const;
  double GainOf(int32_t item) const { return Gain(LoadOn(item, slot_.worker), CurveOf(item)); }
  // The cost of admitting an item apart from its load.
  double AdmitCost(const SolverItem&) const { return 0; }
  bool HasAdmitCosts() const { return false; }

  // Change of the objective when two items on different workers change places, or one moves to worker `to`.
  double Pair(int32_t a, int32_t a_worker, int32_t b, int32_t b_worker);
  double Move(int32_t item, int32_t from, int32_t to);
  // Exchanges between equal workers keep the sum, so they improve only if they lower a maximum. (Between
  // unequal workers the sum may also fall; the search ignores that.)
  bool MayTrade(int32_t g) const { return critical_[g] != 0; }

  const Terms& terms() const { return *terms_; }

  // Adds (+1) the item to the worker or removes it (-1). Call Settle after a set of these.
  void Put(int32_t item, int32_t g, int32_t sign);
  void Settle();
  // Changes when a price of the worker may have changed without a Put to it. A worker that is the largest at
  // no step gains nothing when a maximum falls.
  int64_t epoch(int32_t g) const { return critical_[g] != 0 ? 2 * moves_ + 1 : 2 * rises_; }

 private:
  struct Entry {
    int32_t worker = kNobody;
    double time = -std::numeric_limits<double>::infinity();
  };
  using Top = std::array<Entry, 3>;
  static constexpr int32_t kNobody = -1;

  struct Slot {
    int32_t worker = 0;
    double rate = 1;
    // Gain of an item that adds nothing and exceeds no slack.
    double base = 0;
    // [h]: how much the worker may add before it is the largest; negative when it already is.
    std::vector<double> slack;
    // [h]: the largest load that stays within the slack of all steps before h.
    std::vector<double> within;
    // [e]: discounted sum over h >= e of the worker's excess over the others without the item.
    std::vector<double> tail;
    // Scratch space.
    std::vector<double> breaks;
  };

  double* Row(int32_t g) { return times_.data() + static_cast<size_t>(g) * steps_; }
  const double* Row(int32_t g) const { return times_.data() + static_cast<size_t>(g) * steps_; }
  double LoadOn(int32_t item, int32_t g) const {
    return static_cast<double>(instance_->items[item].LoadOn(g));
  }
  int32_t CurveOf(int32_t item) const { return instance_->CurveOf(instance_->items[item]); }
  SlotPrice Select(int32_t curve);
  TimeAdded Added(int32_t item, int32_t g) const { return terms_->Added(*instance_, item, g); }
  static void Insert(Top& top, Entry entry);
  static double MaxWithout(const Top& top, int32_t g, int32_t h);
  void Rank(int32_t h);

  const Instance* instance_ = nullptr;
  const Terms* terms_ = nullptr;
  int32_t steps_ = 1;
  double group_ = 0;
  // [g * steps + h]: the worker's time.
  std::vector<double> times_;
  // Workers with free slots, by index.
  std::vector<int32_t> open_;
  // [h]: the three largest times among the workers without free slots, and among all.
  std::vector<Top> closed_top_, top_;
  std::vector<char> dirty_;
  // [g]: whether the worker is the largest at any step.
  std::vector<char> critical_;
  Slot slot_;
  // Number of changes of a largest or second largest time; number of rises of a largest time.
  int64_t moves_ = 0, rises_ = 0;
};

}  // namespace bfio::core
