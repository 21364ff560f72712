#include "router/core/solver/bound.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace bfio::core {
namespace {

// For two free slots, all pairs are tried up to this pool size.
constexpr size_t kLargestPairPool = 256;

// The lowest price of the open slot over the whole pool: either every item with its bucket's largest weight,
// or every item without a weight.
template <class Pricing>
double BestOfPool(const Instance& instance, Pricing& pricing, const PoolIndex& index,
                  bool with_weights = true) {
  double best = std::numeric_limits<double>::infinity();
  for (size_t k = 0; k < index.num_classes(); ++k) {
    for (const PoolIndex::Bucket& bucket : index.class_at(k).buckets) {
      const auto& entries = bucket.entries;
      if (entries.empty()) continue;
      const double weight = with_weights && pricing.HasAdmitCosts() ? bucket.max_weight : 0;
      const SlotPrice lowest = pricing.Lowest(bucket.curve);
      if (lowest.gain - weight >= best) continue;
      const auto right =
          std::lower_bound(entries.begin(), entries.end(), lowest.load,
                           [](const PoolIndex::Entry& entry, double load) { return entry.load < load; });
      if (right != entries.end()) best = std::min(best, pricing.Gain(right->load, bucket.curve) - weight);
      if (right != entries.begin()) {
        best = std::min(best, pricing.Gain((right - 1)->load, bucket.curve) - weight);
      }
    }
    for (int32_t item : index.class_at(k).expected) {
      pricing.Lowest(instance.CurveOf(instance.items[item]));
      best =
          std::min(best, pricing.GainOf(item) + (with_weights ? pricing.AdmitCost(instance.items[item]) : 0));
    }
  }
  return best;
}

// Whether a feasible plan may leave a slot free.
bool MayStayFree(const Instance& instance) {
  int64_t kv = 0;
  for (const SolverItem& item : instance.items) kv += item.kv_reserve;
  return instance.Target() < instance.TotalSlots() || !instance.kv.empty() ||
         std::any_of(instance.workers.begin(), instance.workers.end(),
                     [&](const WorkerView& worker) { return worker.free_kv_tokens < kv; });
}

// Sum of the `count` largest values.
double SumOfLargest(std::vector<double> values, int64_t count) {
  count = std::min<int64_t>(count, static_cast<int64_t>(values.size()));
  std::nth_element(values.begin(), values.begin() + std::max<int64_t>(0, count - 1), values.end(),
                   std::greater<>());
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

// Lower bound of the cost of a worker with two free slots, over all pairs.
double BestPair(const Instance& instance, PaperPricing& pricing, const PoolIndex& index, int32_t g,
                double share) {
  double best = std::numeric_limits<double>::infinity();
  for (int32_t item = 0; item < static_cast<int32_t>(instance.items.size()); ++item) {
    pricing.Put(item, g, +1);
    pricing.OpenAlone(g, share);
    best = std::min(best, BestOfPool(instance, pricing, index));
    pricing.Put(item, g, -1);
  }
  return best;
}

}  // namespace

double LowerBound(const Instance& instance, PaperPricing& pricing, const PoolIndex& index) {
  const auto workers = static_cast<int32_t>(instance.workers.size());
  if (workers < 2 || instance.items.empty())
    return std::max(0.0, instance.items.empty() ? pricing.Value() : 0);
  double rate = 0, load_rate = 0;
  for (const WorkerView& worker : instance.workers) {
    rate = std::max(rate, worker.time_per_token);
    load_rate = std::max(load_rate, worker.load_rate());
  }
  std::vector<double> areas;
  for (const SolverItem& item : instance.items) {
    const Terms::Area& area = pricing.terms().area(instance.CurveOf(item));
    areas.push_back(load_rate * static_cast<double>(item.load) * area.per_token + rate * area.growth);
  }
  const auto open = std::count_if(instance.workers.begin(), instance.workers.end(),
                                  [](const WorkerView& worker) { return worker.free_slots > 0; });
  const double share = static_cast<double>(workers) / static_cast<double>(std::max<int64_t>(open, 1));
  const bool may_stay_free = MayStayFree(instance);
  double apart = 0;
  for (int32_t g = 0; g < workers; ++g) {
    const int32_t slots = instance.workers[g].free_slots;
    const double as_it_is = pricing.OpenAlone(g, share);
    if (slots == 0) {
      apart += as_it_is;
    } else if (slots == 1) {
      const double filled = BestOfPool(instance, pricing, index);
      apart += may_stay_free ? std::min(filled, as_it_is) : filled;
    } else if (slots == 2 && instance.items.size() <= kLargestPairPool) {
      double filled = BestPair(instance, pricing, index, g, share);
      if (may_stay_free) {
        pricing.OpenAlone(g, share);
        filled = std::min({filled, BestOfPool(instance, pricing, index), as_it_is});
      }
      apart += filled;
    } else {
      apart += std::max(0.0, as_it_is - SumOfLargest(areas, slots));
    }
  }
  return std::max({0.0, apart, pricing.Value() - SumOfLargest(areas, instance.Target())});
}

double LowerBound(const Instance& instance, SquarePricing& pricing, const PoolIndex& index) {
  const bool may_stay_free = MayStayFree(instance);
  std::vector<double> weights;
  for (const SolverItem& item : instance.items) weights.push_back(std::max(0.0, item.weight));
  // Two valid bounds: weights are credited to every open worker that might have them, or once and separately
  // from the costs.
  double bound = 0, without = 0;
  for (int32_t g = 0; g < static_cast<int32_t>(instance.workers.size()); ++g) {
    const int32_t slots = instance.workers[g].free_slots;
    const double as_it_is = pricing.CostOf(g);
    if (slots == 0) {
      bound += as_it_is;
      without += as_it_is;
    } else if (slots == 1 && !instance.items.empty()) {
      pricing.Open(g, kUnassigned);
      const double filled = as_it_is + BestOfPool(instance, pricing, index);
      bound += may_stay_free ? std::min(filled, as_it_is) : filled;
      const double free = as_it_is + BestOfPool(instance, pricing, index, /*with_weights=*/false);
      without += may_stay_free ? std::min(free, as_it_is) : free;
    } else {
      bound -= SumOfLargest(weights, slots);
    }
  }
  return std::max(bound, without - SumOfLargest(weights, instance.Target()));
}

}  // namespace bfio::core
