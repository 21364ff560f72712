// The waiting items, by class and curve, sorted by load. Finds the best item for a slot without visiting the
// whole pool. Within one class of priority and one curve, an item's price is convex in its load, so the best
// item is next to the ideal load. The search moves outward from there only as long as a weight or KV can
// still compensate for the distance, and no further than kLongestWalk items, so in a larger bucket it may
// miss items that are sought. Items with a reserved worker (SolverItem::reserved_worker) add a
// different load there; these items are kept separately, unsorted. Ownership: borrows the instance from Reset
// on. Reused between decisions; allocates only to grow. Threads: one.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "router/core/solver/instance.h"

namespace bfio::core {

class PoolIndex {
 public:
  struct Entry {
    double load;
    double weight;
    int64_t kv_reserve;
    int32_t item;
  };
  struct Bucket {
    int32_t curve = 0;
    // Largest weight of any item that was ever in the bucket.
    double max_weight = -std::numeric_limits<double>::infinity();
    // Sorted by (load, item).
    std::vector<Entry> entries;
  };
  // One class of priority; `expected`: its items with a reserved worker; `sought`: the heaviest of the
  // waiting items that are, if a walk may miss them. They may be admitted since.
  struct Class {
    int32_t priority = 0;
    std::vector<Bucket> buckets;
    std::vector<int32_t> expected, sought;
  };
  // Limit of the walk from the ideal load, in items in each direction.
  static constexpr int64_t kLongestWalk = 128;

  // Indexes the items that wait under `allocation`.
  void Reset(const Instance& instance, const Allocation& allocation);

  const Class& ClassOf(int32_t item) const { return classes_[class_of_[item]]; }
  void Insert(int32_t item);
  // REQUIRES: the item is in the index.
  void Erase(int32_t item);
  // Replaces `gone` by `come`. REQUIRES: `gone` is in the index, `come` is not, and both have the same class.
  void Replace(int32_t gone, int32_t come);

 private:
  struct Before {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.load < b.load || (a.load == b.load && a.item < b.item);
    }
  };
  Entry EntryOf(int32_t i) const {
    const SolverItem& item = instance_->items[i];
    return {static_cast<double>(item.load), item.weight, item.kv_reserve, i};
  }
  bool Expected(int32_t item) const { return instance_->items[item].reserved_worker != kNoReservedWorker; }
  Bucket& BucketOf(int32_t item);
  void FindClasses();
  void FindSought(Class& of);

  const Instance* instance_ = nullptr;
  // The first num_classes_ are in use.
  std::vector<Class> classes_;
  size_t num_classes_ = 0;
  std::vector<int32_t> class_of_;
};

}  // namespace bfio::core
