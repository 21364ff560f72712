#include "router/core/solver/search.h"

#include <algorithm>

namespace bfio::core {
namespace {

// Number of partners considered in a trade: all admitted items up to kMostPartners, otherwise a sample.
constexpr size_t kMostPartners = 64;
constexpr size_t kSampledPartners = 16;
// Up to this number of admitted items, the search ends only after a round over all of them.
constexpr size_t kMostThorough = 32;
// A kick is kExchangesPerKick forced exchanges with a random waiting item, each found in at most
// kAttemptsPerKick draws.
constexpr int kExchangesPerKick = 2;
constexpr int kAttemptsPerKick = 8;

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
  trades_ = admitted_.size() <= kMostPartners || 2 * admitted_.size() > looked_.size();
  Exhaust();
  if (admitted_.size() > kMostThorough) return !run.Over();
  thorough_ = true;
  Exhaust();
  return !run.Over();
}

template <class Pricing>
void Search<Pricing>::Escape(int32_t kicks) {
  if (admitted_.size() < 2 || admitted_.size() > kMostThorough) return;
  Rng rng(admitted_.size());
  thorough_ = false;
  for (int32_t item : admitted_) MarkSettled(item);
  Remember();
  double best = Value();
  for (int32_t k = 0; k < kicks && !run_->Over(); ++k) {
    bool kicked = false;
    for (int exchange = 0; exchange < kExchangesPerKick; ++exchange) kicked = Kick(rng) || kicked;
    if (!kicked) return;
    Exhaust();
    run_->Spend(allocation_->workers() * allocation_->instance().steps());
    const double value = Value();
    if (value < best - kLeastGain) {
      best = value;
      Remember();
    } else {
      Restore();
    }
  }
}

template <class Pricing>
bool Search<Pricing>::Kick(Rng& rng) {
  int32_t& admitted = admitted_[rng.Below(admitted_.size())];
  const int32_t g = allocation_->WorkerOf(admitted);
  const SolverItem& leaving = allocation_->item(admitted);
  for (int attempt = 0; attempt < kAttemptsPerKick; ++attempt) {
    const auto waiting = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(allocation_->items())));
    const SolverItem& coming = allocation_->item(waiting);
    if (allocation_->WorkerOf(waiting) != kUnassigned || coming.priority != leaving.priority ||
        !allocation_->KvFitsInstead(waiting, admitted, g)) {
      continue;
    }
    Exchange(admitted, waiting);
    return true;
  }
  return false;
}

template <class Pricing>
double Search<Pricing>::Value() const {
  double value = pricing_->Value();
  for (int32_t item : admitted_) value += AdmitCost(item);
  return value;
}

template <class Pricing>
void Search<Pricing>::Remember() {
  best_plan_.clear();
  for (int32_t item : admitted_) best_plan_.emplace_back(item, allocation_->WorkerOf(item));
}

template <class Pricing>
void Search<Pricing>::Restore() {
  in_best_.assign(allocation_->items(), 0);
  for (const auto& [item, worker] : best_plan_) in_best_[item] = 1;
  for (int32_t item : admitted_) {
    if (!in_best_[item]) index_->Insert(item);
  }
  for (const auto& [item, worker] : best_plan_) {
    if (allocation_->WorkerOf(item) == kUnassigned) index_->Erase(item);
  }
  for (int32_t item : admitted_) Take(item);
  admitted_.clear();
  for (const auto& [item, worker] : best_plan_) {
    Put(item, worker);
    admitted_.push_back(item);
  }
  pricing_->Settle();
  for (int32_t item : admitted_) MarkSettled(item);
}

template <class Pricing>
void Search<Pricing>::MarkSettled(int32_t item) {
  looked_[item] = clock_;
  looked_epoch_[item] = pricing_->epoch(allocation_->WorkerOf(item));
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
      MarkSettled(admitted);
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
  const double cost_out = AdmitCost(admitted);
  pricing_->Open(g, admitted);
  Best best{-kLeastGain};
  for (int32_t curve : pricing_->terms().by_area()) {
    const PoolIndex::Bucket& bucket = pool.buckets[curve];
    if (!bucket.entries.empty()) SearchBucket(bucket, admitted, cost_out, best);
  }
  if (!run_->Spend(allocation_->instance().steps() + pricing_->terms().curves())) return false;
  for (const std::vector<int32_t>* items : {&pool.expected, &pool.sought}) {
    for (int32_t item : *items) {
      if (allocation_->WorkerOf(item) != kUnassigned) continue;
      if (!allocation_->KvFitsInstead(item, admitted, g)) {
        if (!run_->GoOn(KvWork())) return false;
        continue;
      }
      pricing_->Lowest(allocation_->instance().CurveOf(allocation_->item(item)));
      best.Offer(pricing_->GainOf(item) + AdmitCost(item) - cost_out, item);
    }
  }
  if (best.partner == kUnassigned) return false;
  Exchange(admitted, best.partner);
  run_->Improved();
  return true;
}

template <class Pricing>
void Search<Pricing>::Exchange(int32_t& admitted, int32_t waiting) {
  const int32_t g = allocation_->WorkerOf(admitted);
  Take(admitted);
  Put(waiting, g);
  pricing_->Settle();
  index_->Replace(waiting, admitted);
  admitted = waiting;
}

template <class Pricing>
void Search<Pricing>::SearchBucket(const PoolIndex::Bucket& bucket, int32_t admitted, double cost_out,
                                   Best& best) {
  using Entry = PoolIndex::Entry;
  const int32_t g = allocation_->WorkerOf(admitted);
  const int64_t kv_capacity = std::min(allocation_->kv(g) + allocation_->item(admitted).kv_reserve,
                                       allocation_->instance().workers[g].max_sequence_tokens - 1);
  const auto& entries = bucket.entries;
  const bool costs = pricing_->HasAdmitCosts();
  const double least_cost = costs ? -bucket.max_weight - cost_out : 0;
  const SlotPrice lowest = pricing_->Lowest(bucket.curve);
  if (lowest.gain + least_cost > best.gain) return;
  // Returns false when no item further out can be better.
  const auto look = [&](const Entry& entry) {
    const double gain = pricing_->Gain(entry.load, bucket.curve);
    if (gain + least_cost > best.gain) return false;
    if (entry.kv_reserve <= kv_capacity || allocation_->KvFitsInstead(entry.item, admitted, g)) {
      best.Offer(gain - (costs ? entry.weight + cost_out : 0), entry.item);
    } else if (!run_->GoOn(KvWork())) {
      return false;
    }
    return true;
  };
  const auto middle = std::lower_bound(entries.begin(), entries.end(), lowest.load,
                                       [](const Entry& entry, double load) { return entry.load < load; });
  int64_t looked = 0;
  for (auto it = middle; it != entries.end() && it - middle < PoolIndex::kLongestWalk; ++it) {
    ++looked;
    if (!look(*it)) break;
  }
  for (auto it = middle; it != entries.begin() && middle - it < PoolIndex::kLongestWalk;) {
    ++looked;
    if (!look(*--it)) break;
  }
  run_->Spend(looked * (costs ? 1 : allocation_->instance().steps()));
}

template <class Pricing>
bool Search<Pricing>::Trade(int32_t admitted) {
  const int32_t g = allocation_->WorkerOf(admitted);
  if (!trades_ || !pricing_->MayTrade(g)) return false;
  const SolverItem& item = allocation_->item(admitted);
  Best best{-kLeastGain};
  const size_t partners = admitted_.size() <= kMostPartners ? admitted_.size() : kSampledPartners;
  // An even sample of the admitted items, so that the cost of a round is linear in their number.
  for (size_t k = 0; k < partners; ++k) {
    const int32_t other = admitted_[k * admitted_.size() / partners];
    const int32_t h = allocation_->WorkerOf(other);
    const SolverItem& partner = allocation_->item(other);
    if (h == g || (partner.load == item.load && partner.curve == item.curve)) continue;
    if (!allocation_->KvFitsInstead(other, admitted, g) || !allocation_->KvFitsInstead(admitted, other, h)) {
      if (!run_->GoOn(KvWork())) return false;
      continue;
    }
    if (!run_->Spend(allocation_->instance().steps())) return false;
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
    if (h == g) continue;
    if (!allocation_->Fits(admitted, h)) {
      if (!run_->GoOn(KvWork())) return false;
      continue;
    }
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
template class Search<SquarePricing>;

}  // namespace bfio::core
