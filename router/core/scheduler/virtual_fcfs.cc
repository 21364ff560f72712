#include "router/core/scheduler/virtual_fcfs.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace bfio::core {
namespace {

// The recent wait covers one to two times this many decisions (and this many requests, where decisions admit
// few): long enough for a 99th percentile, short enough that the start of a group or a burst soon no longer
// counts.
constexpr double kBlockSteps = 30;
constexpr double kBlockRequests = 150;
// Length of the long-run wait's window, relative to the recent one: its percentile varies a third as much.
constexpr int64_t kLongRun = 10;
// Share of the samples above a 99th percentile.
constexpr double kAbove = 0.01;
// Weight of one decision in the mean of admissions.
constexpr double kAdmittedGain = 0.02;
// Idle tenants are removed when the number of tenants has doubled and is at least this.
constexpr size_t kLeastPruned = 64;

}  // namespace

void VirtualFcfs::Arrive(int64_t step, uint32_t tenant) {
  ++queued_;
  Tenant& of = tenants_[tenant];
  if (of.queue.empty()) {
    of.served = std::max(of.served, floor_);
    of.queue.push_back({step, 1});
    order_.insert({of.served, step, tenant});
    return;
  }
  // New requests go to the end; only requests that return with their age go before others.
  const auto at = std::upper_bound(of.queue.begin(), of.queue.end(), step,
                                   [](int64_t since, const Arrivals& other) { return since < other.step; });
  if (at != of.queue.begin() && std::prev(at)->step == step) {
    ++std::prev(at)->requests;
    return;
  }
  const int64_t oldest = of.queue.front().step;
  of.queue.insert(at, {step, 1});
  if (step > oldest) return;
  order_.erase({of.served, oldest, tenant});
  order_.insert({of.served, step, tenant});
}

void VirtualFcfs::Leave(uint32_t tenant) {
  const auto it = tenants_.find(tenant);
  if (it == tenants_.end() || it->second.queue.empty()) {
    TakeOldest(order_.begin(), 0);
  } else {
    TakeOldest(order_.find({it->second.served, it->second.queue.front().step, tenant}), 0);
  }
}

int64_t VirtualFcfs::TakeOldest(std::set<Turn>::const_iterator turn, double charge) {
  auto node = order_.extract(turn);
  Tenant& of = tenants_.find(node.value().tenant)->second;
  const int64_t step = of.queue.front().step;
  --queued_;
  of.served += charge;
  if (--of.queue.front().requests == 0) of.queue.pop_front();
  if (of.queue.empty()) {
    Prune();
    return step;
  }
  node.value().served = of.served;
  node.value().oldest = of.queue.front().step;
  order_.insert(std::move(node));
  return step;
}

void VirtualFcfs::Prune() {
  if (tenants_.size() < std::max(prune_at_, kLeastPruned)) return;
  absl::erase_if(tenants_, [&](const auto& entry) {
    return entry.second.queue.empty() && entry.second.served <= floor_;
  });
  prune_at_ = 2 * tenants_.size();
}

void VirtualFcfs::Decide(int64_t step, int64_t admitted, absl::FunctionRef<double(uint32_t tenant)> charge) {
  admitted_ += kAdmittedGain * (static_cast<double>(admitted) - admitted_);
  const auto block = static_cast<int64_t>(std::max(kBlockRequests, kBlockSteps * admitted_));
  for (int64_t i = 0; i < admitted; ++i) {
    const auto turn = order_.begin();
    floor_ = turn->served;
    // A single tenant needs no charges, and its counter must not lose precision.
    const double charged = tenants_.size() == 1 ? 0 : charge(turn->tenant);
    const int64_t wait = std::max<int64_t>(0, step - TakeOldest(turn, charged));
    recent_.waits.Add(wait, block);
    long_run_.waits.Add(wait, kLongRun * block);
  }
  if (admitted > 0) recent_.p99 = long_run_.p99 = -1;
}

int64_t VirtualFcfs::WaitOfNext(int64_t step) const {
  return order_.empty() ? 0 : std::max<int64_t>(0, step - order_.begin()->oldest);
}

int64_t VirtualFcfs::WaitOfNext(int64_t step, uint32_t tenant) const {
  const auto it = tenants_.find(tenant);
  if (it == tenants_.end() || it->second.queue.empty()) return 0;
  return std::max<int64_t>(0, step - it->second.queue.front().step);
}

int64_t VirtualFcfs::Waits::P99() const {
  if (p99 < 0) p99 = waits.Quantile(kAbove);
  return p99;
}

void RecentWaits::Add(int64_t steps, int64_t block) {
  if (filling_.samples >= block) {
    std::swap(full_, filling_);
    filling_.counts.clear();
    filling_.samples = 0;
  }
  const size_t bucket = Bucket(steps);
  if (bucket >= filling_.counts.size()) filling_.counts.resize(bucket + 1, 0);
  ++filling_.counts[bucket];
  ++filling_.samples;
}

int64_t RecentWaits::Quantile(double above) const {
  const double most = above * static_cast<double>(full_.samples + filling_.samples);
  int64_t seen = 0;
  for (size_t bucket = std::max(full_.counts.size(), filling_.counts.size()); bucket-- > 0;) {
    seen += full_.At(bucket) + filling_.At(bucket);
    if (static_cast<double>(seen) > most) return Lowest(bucket);
  }
  return 0;
}

size_t RecentWaits::Bucket(int64_t steps) {
  if (steps < kExact) return static_cast<size_t>(steps);
  const double doublings = std::log2(static_cast<double>(steps) / static_cast<double>(kExact));
  return static_cast<size_t>(kExact + static_cast<int64_t>(doublings * kPerDoubling));
}

int64_t RecentWaits::Lowest(size_t bucket) {
  const int64_t index = static_cast<int64_t>(bucket);
  if (index < kExact) return index;
  const double doublings = static_cast<double>(index - kExact) / kPerDoubling;
  return static_cast<int64_t>(std::ceil(static_cast<double>(kExact) * std::exp2(doublings)));
}

}  // namespace bfio::core
