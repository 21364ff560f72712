#include "router/core/solver/pool_index.h"

namespace bfio::core {
namespace {

constexpr size_t kMostSought = 32;

}  // namespace

void PoolIndex::FindSought(Class& of) {
  of.sought.clear();
  for (const Bucket& bucket : of.buckets) {
    if (std::ssize(bucket.entries) <= kLongestWalk) continue;
    for (const Entry& entry : bucket.entries)
      if (instance_->items[entry.item].sought) of.sought.push_back(entry.item);
  }
  const size_t most = std::min(kMostSought, of.sought.size());
  std::partial_sort(of.sought.begin(), of.sought.begin() + static_cast<int64_t>(most), of.sought.end(),
                    [this](int32_t a, int32_t b) {
                      const double left = instance_->items[a].weight, right = instance_->items[b].weight;
                      return left > right || (left == right && a < b);
                    });
  of.sought.resize(most);
}

void PoolIndex::FindClasses() {
  const auto items = static_cast<int32_t>(instance_->items.size());
  class_of_.resize(items);
  num_classes_ = 0;
  const int32_t curves = instance_->NumCurves();
  for (int32_t i = 0; i < items; ++i) {
    const int32_t priority = instance_->items[i].priority;
    if (num_classes_ == 0 || classes_[num_classes_ - 1].priority != priority) {
      if (classes_.size() == num_classes_) classes_.emplace_back();
      Class& fresh = classes_[num_classes_++];
      fresh.priority = priority;
      fresh.expected.clear();
      fresh.buckets.resize(curves);
      for (int32_t c = 0; c < curves; ++c) {
        fresh.buckets[c].curve = c;
        fresh.buckets[c].max_weight = -std::numeric_limits<double>::infinity();
        fresh.buckets[c].entries.clear();
      }
    }
    class_of_[i] = static_cast<int32_t>(num_classes_) - 1;
  }
}

void PoolIndex::Reset(const Instance& instance, const Allocation& allocation) {
  instance_ = &instance;
  FindClasses();
  for (int32_t i = 0; i < allocation.items(); ++i) {
    if (Expected(i)) {
      if (allocation.WorkerOf(i) == kUnassigned) classes_[class_of_[i]].expected.push_back(i);
      continue;
    }
    Bucket& bucket = BucketOf(i);
    bucket.max_weight = std::max(bucket.max_weight, instance.items[i].weight);
    if (allocation.WorkerOf(i) == kUnassigned) bucket.entries.push_back(EntryOf(i));
  }
  for (size_t k = 0; k < num_classes_; ++k) {
    for (Bucket& bucket : classes_[k].buckets) {
      std::sort(bucket.entries.begin(), bucket.entries.end(), Before());
    }
    FindSought(classes_[k]);
  }
}

PoolIndex::Bucket& PoolIndex::BucketOf(int32_t item) {
  return classes_[class_of_[item]].buckets[instance_->CurveOf(instance_->items[item])];
}

void PoolIndex::Replace(int32_t gone, int32_t come) {
  if (Expected(gone) || Expected(come) || &BucketOf(gone) != &BucketOf(come)) {
    Erase(gone);
    Insert(come);
    return;
  }
  // Only entries between the two positions move.
  std::vector<Entry>& entries = BucketOf(gone).entries;
  const Entry entry = EntryOf(come);
  const auto from = std::lower_bound(entries.begin(), entries.end(), EntryOf(gone), Before());
  const auto to = std::lower_bound(entries.begin(), entries.end(), entry, Before());
  if (from < to) {
    std::move(from + 1, to, from);
    *(to - 1) = entry;
  } else {
    std::move_backward(to, from, from + 1);
    *to = entry;
  }
}

void PoolIndex::Insert(int32_t item) {
  if (Expected(item)) return classes_[class_of_[item]].expected.push_back(item);
  std::vector<Entry>& entries = BucketOf(item).entries;
  const Entry entry = EntryOf(item);
  entries.insert(std::lower_bound(entries.begin(), entries.end(), entry, Before()), entry);
}

void PoolIndex::Erase(int32_t item) {
  if (Expected(item)) {
    std::vector<int32_t>& expected = classes_[class_of_[item]].expected;
    expected.erase(std::find(expected.begin(), expected.end(), item));
    return;
  }
  std::vector<Entry>& entries = BucketOf(item).entries;
  entries.erase(std::lower_bound(entries.begin(), entries.end(), EntryOf(item), Before()));
}

}  // namespace bfio::core
