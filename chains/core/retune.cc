#include "chains/core/retune.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace bfio::core {
namespace {

// Without an overload, a composition must have been better for this many times RetuneTimes::after_s.
constexpr double kLonger = 5;
// Servers are composed for at most this share of the largest rate.
constexpr double kMostLoad = 0.9;

}  // namespace

double RateBand(double rate, double memory_s) {
  return std::max(kRetuneBand, 1 + 2 / std::sqrt(2 * rate * memory_s));
}

std::optional<Retuning> BetterComposition(absl::Span<const PoolServer> servers, const BlockSizes& sizes,
                                          int64_t max_slots, double demand, double band,
                                          absl::Span<const ExistingChain> standing) {
  const double high = demand * band;
  const Response now_high = ResponseOf({}, standing, high);
  Retuning better;
  better.now = ResponseOf({}, standing, demand);
  better.overload = std::isinf(better.now.bound);
  better.near_overload = std::isinf(now_high.bound);
  better.demand = better.near_overload ? std::max(kRetuneMargin, band) * demand : demand;
  std::vector<PoolServer> free(servers.begin(), servers.end());
  for (PoolServer& server : free) {
    server.hosts.reset();
    server.slots_used = 0;
  }
  auto plan = PlanChains(free, sizes, max_slots, better.demand);
  if (!plan.ok()) return std::nullopt;
  if (const double most = TotalRate(Rates(plan->chains)); better.near_overload && most <= better.demand) {
    // No composition carries better.demand; `most` is the largest rate. One for somewhat less responds
    // faster.
    better.demand = std::max(demand, kMostLoad * most);
    plan = PlanChains(free, sizes, max_slots, better.demand);
    if (!plan.ok()) return std::nullopt;
  }
  better.then = ResponseOf(plan->chains, {}, demand);
  const Response then_high = ResponseOf(plan->chains, {}, high);
  // If no composition carries the upper end, chains that carry the measured demand are kept: a change-over
  // costs most at such a demand.
  const bool carries = better.near_overload && better.then.rate > better.now.rate * (1 + kRetuneGain) &&
                       (better.overload || !std::isinf(then_high.bound));
  const bool faster =
      !better.overload && better.then.bound < better.now.bound * (1 - kRetuneGain) && !(now_high < then_high);
  if (!carries && !faster) return std::nullopt;
  return better;
}

bool RetunePatience::Check(double now_s, const std::optional<Retuning>& better, const RetuneTimes& times) {
  if (!better.has_value()) {
    Forget();
    return false;
  }
  if (!since_.has_value()) {
    since_ = checked_ = now_s;
    overload_since_.reset();
    lost_ = 0;
  }
  if (!better->overload) {
    overload_since_.reset();
    lost_ += (now_s - checked_) * (better->now.bound - better->then.bound);
  } else if (!overload_since_.has_value()) {
    overload_since_ = now_s;
  }
  checked_ = now_s;
  if (overload_since_.has_value() && now_s - *overload_since_ >= times.after_s) return true;
  if (now_s - *since_ < kLonger * times.after_s) return false;
  return better->near_overload || lost_ >= times.pause_s * times.pause_s / 2;
}

}  // namespace bfio::core
