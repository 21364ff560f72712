#include "router/core/solver/search.h"

#include <algorithm>

namespace bfio::core {
namespace {

// Gains below this are rounding: taking them could make the search run in circles.
constexpr double kLeastGain = 1e-3;
// How far the search walks from the ideal load, either way, for the sake of worth or KV.
constexpr int64_t kLongestWalk = 128;
// How many partners a trade looks at: all of them when no more are admitted, else a sample.
constexpr size_t kMostPartners = 64;
constexpr size_t kSampledPartners = 16;
// Up to so many admitted items the search ends only after a round in which all were looked at.
constexpr size_t kMostThorough = 32;

}  // namespace

template <class Pricing>
bool Search<Pricing>::Descend(Pricing& pricing, Allocation& allocation, PoolIndex& index, Run& run) {
  pricing_ = &pricing;
  allocation_ = &allocation;
  index_ = &index;
  run_ = &run;
  admitted_.clear();
  for (int32_t i = 0; i < allocation.items(); ++i) {
    if (allocation.WorkerOf(i) != kUnassigned) admitted_.push_back(i);
  }
  changed_.assign(allocation.workers(), 0);
  looked_.assign(allocation.items(), -1);
  looked_epoch_.assign(allocation.items(), -1);
  clock_ = 0;
  thorough_ = false;
  while (Round()) {
  }
  if (admitted_.size() > kMostThorough) return !run.Over();
  thorough_ = true;
  while (Round()) {
  }
  return !run.Over();
}

template <class Pricing>
bool Search<Pricing>::Settled(int32_t item) const {
  const int32_t g = allocation_->WorkerOf(item);
  return !thorough_ && looked_[item] >= changed_[g] && looked_epoch_[item] == pricing_->epoch(g);
}

template <class Pricing>
bool Search<Pricing>::Round() {
  bool improved = false;
  for (int32_t& admitted : admitted_) {
    if (Settled(admitted)) continue;
    const int64_t before = clock_;
    Swap(admitted);
    Trade(admitted);
    Move(admitted);
    if (run_->Over()) return false;
    if (clock_ != before) {
      improved = true;
    } else {
      looked_[admitted] = clock_;
      looked_epoch_[admitted] = pricing_->epoch(allocation_->WorkerOf(admitted));
    }
  }
  return improved;
}

template <class Pricing>
void Search<Pricing>::Put(int32_t item, int32_t worker) {
  allocation_->Place(item, worker);
  pricing_->Put(item, worker, +1);
  Changed(worker);
}

template <class Pricing>
void Search<Pricing>::Take(int32_t item) {
  pricing_->Put(item, allocation_->WorkerOf(item), -1);
  allocation_->Remove(item);
}

template <class Pricing>
bool Search<Pricing>::Swap(int32_t& admitted) {
  const int32_t g = allocation_->WorkerOf(admitted);
  const PoolIndex::Class& pool = index_->ClassOf(admitted);
  const int64_t kv_room = allocation_->kv(g) + allocation_->item(admitted).kv_reserve;
  const double cost_out = AdmitCost(admitted);
  pricing_->Open(g, admitted);
  Best best{-kLeastGain};
  for (int32_t curve : pricing_->terms().by_area()) {
    const PoolIndex::Bucket& bucket = pool.buckets[curve];
    if (!bucket.entries.empty()) LookInto(bucket, cost_out, kv_room, best);
  }
  if (!run_->Spend(allocation_->instance().steps() + pricing_->terms().curves())) return false;
  for (int32_t item : pool.expected) {
    if (allocation_->item(item).kv_reserve > kv_room) continue;
    pricing_->Lowest(allocation_->instance().CurveOf(allocation_->item(item)));
    best.Offer(pricing_->GainOf(item) + AdmitCost(item) - cost_out, item);
  }
  if (best.partner == kUnassigned) return false;
  Take(admitted);
  Put(best.partner, g);
  pricing_->Settle();
  index_->Replace(best.partner, admitted);
  admitted = best.partner;
  run_->Improved();
  return true;
}

template <class Pricing>
void Search<Pricing>::LookInto(const PoolIndex::Bucket& bucket, double cost_out, int64_t kv_room,
                               Best& best) {
  using Entry = PoolIndex::Entry;
  const auto& entries = bucket.entries;
  const bool costs = pricing_->HasAdmitCosts();
  const double least_cost = costs ? -bucket.most_worth - cost_out : 0;
  const SeatPrice lowest = pricing_->Lowest(bucket.curve);
  if (lowest.gain + least_cost > best.gain) return;
  // False: nothing further out can be better.
  const auto look = [&](const Entry& entry) {
    const double gain = pricing_->Gain(entry.load, bucket.curve);
    if (gain + least_cost > best.gain) return false;
    if (entry.kv_reserve <= kv_room) best.Offer(gain - (costs ? entry.worth + cost_out : 0), entry.item);
    return true;
  };
  const auto middle = std::lower_bound(entries.begin(), entries.end(), lowest.load,
                                       [](const Entry& entry, double load) { return entry.load < load; });
  int64_t looked = 0;
  for (auto it = middle; it != entries.end() && it - middle < kLongestWalk; ++it) {
    ++looked;
    if (!look(*it)) break;
  }
  for (auto it = middle; it != entries.begin() && middle - it < kLongestWalk;) {
    ++looked;
    if (!look(*--it)) break;
  }
  run_->Spend(looked * (costs ? 1 : allocation_->instance().steps()));
}

template <class Pricing>
bool Search<Pricing>::Trade(int32_t admitted) {
  const int32_t g = allocation_->WorkerOf(admitted);
  if (!pricing_->MayTrade(g)) return false;
  const SolverItem& item = allocation_->item(admitted);
  Best best{-kLeastGain};
  const size_t partners = admitted_.size() <= kMostPartners ? admitted_.size() : kSampledPartners;
  // An even sample of the admitted, so that the cost of a round stays linear in them.
  for (size_t k = 0; k < partners; ++k) {
    const int32_t other = admitted_[k * admitted_.size() / partners];
    const int32_t h = allocation_->WorkerOf(other);
    const SolverItem& partner = allocation_->item(other);
    if (h == g || (partner.load == item.load && partner.curve == item.curve)) continue;
    if (partner.kv_reserve - item.kv_reserve > allocation_->kv(g) ||
        item.kv_reserve - partner.kv_reserve > allocation_->kv(h)) {
      continue;
    }
    if (!run_->Spend(pricing_->PairWork())) return false;
    best.Offer(pricing_->Pair(admitted, g, other, h), other);
  }
  if (best.partner == kUnassigned) return false;
  const int32_t h = allocation_->WorkerOf(best.partner);
  Take(admitted);
  Take(best.partner);
  Put(admitted, h);
  Put(best.partner, g);
  pricing_->Settle();
  run_->Improved();
  return true;
}

template <class Pricing>
bool Search<Pricing>::Move(int32_t admitted) {
  const int32_t g = allocation_->WorkerOf(admitted);
  if (allocation_->slots_left() == 0 || !pricing_->MayTrade(g)) return false;
  Best best{-kLeastGain};
  for (int32_t h = 0; h < allocation_->workers(); ++h) {
    if (h == g || !allocation_->Fits(admitted, h)) continue;
    if (!run_->Spend(allocation_->instance().steps())) return false;
    best.Offer(pricing_->Move(admitted, g, h), h);
  }
  if (best.partner == kUnassigned) return false;
  Take(admitted);
  Put(admitted, best.partner);
  pricing_->Settle();
  run_->Improved();
  return true;
}

template class Search<PaperPricing>;
template class Search<QuadraticPricing>;

}  // namespace bfio::core
