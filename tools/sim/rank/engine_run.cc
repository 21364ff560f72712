#include "tools/sim/rank/engine_run.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace bfio::sim {
namespace {

// More consecutive steps without work are an error.
constexpr int64_t kMostEmptySteps = 1000;

class EngineRun {
 public:
  EngineRun(ServeGroup& group, Traffic& traffic, EngineDispatcher& dispatcher)
      : group_(group),
        traffic_(traffic),
        dispatcher_(dispatcher),
        ends_s_(static_cast<size_t>(group.steppers()), kNever) {}

  absl::Status Go() {
    while (true) {
      group_.Advance(now_s_);
      for (int32_t s = 0; s < group_.steppers(); ++s) {
        if (ends_s_[s] > now_s_) continue;
        BFIO_RETURN_IF_ERROR(EndStep(s));
        if (traffic_.Done(now_s_)) return absl::OkStatus();
      }
      TakeArrivals();
      if (traffic_.Done(now_s_)) return absl::OkStatus();
      BFIO_RETURN_IF_ERROR(Decide());
      for (int32_t s = 0; s < group_.steppers(); ++s) BeginStep(s);
      for (const ServeRequestIndex index : std::exchange(arrived_, {})) traffic_.Arrived(index);
      const double next_s =
          std::min({traffic_.NextArrival(), dispatcher_.NextDecision(), group_.NextTransfer(),
                    *std::min_element(ends_s_.begin(), ends_s_.end())});
      if (empty_steps_ > kMostEmptySteps || (next_s == kNever && dispatcher_.waiting() > 0)) {
        return absl::InternalError(absl::StrCat("no runnable plan at ", now_s_, " s"));
      }
      if (next_s == kNever) return absl::OkStatus();
      now_s_ = std::max(now_s_, next_s);
    }
  }

 private:
  void TakeArrivals() {
    while (traffic_.NextArrival() <= now_s_) {
      const std::optional<ServeRequestIndex> index = traffic_.Arrive(now_s_);
      if (!index) continue;
      dispatcher_.Arrived(*index);
      arrived_.push_back(*index);
    }
  }

  absl::Status Decide() {
    traffic_.Deciding(now_s_);
    const absl::Time before = MonotonicNow();
    BFIO_RETURN_IF_ERROR(dispatcher_.Decide(now_s_));
    traffic_.Decided(absl::ToDoubleSeconds(MonotonicNow() - before));
    return absl::OkStatus();
  }

  // Unless it is in a step, or has nothing to do.
  void BeginStep(int32_t stepper) {
    if (group_.in_step(stepper) || !dispatcher_.Order(stepper, orders_)) return;
    const double seconds = group_.Begin(stepper, orders_);
    ends_s_[stepper] = now_s_ + seconds;
    empty_steps_ = seconds > 0 ? 0 : empty_steps_ + 1;
  }

  absl::Status EndStep(int32_t stepper) {
    ends_s_[stepper] = kNever;
    const ServeStep& step = group_.End(stepper, now_s_);
    dispatcher_.Stepped(stepper, step, now_s_);
    traffic_.Stepped(step, now_s_);
    if (!dispatcher_.ahead()) return absl::OkStatus();
    TakeArrivals();
    BeginStep(stepper);
    return Decide();
  }

  ServeGroup& group_;
  Traffic& traffic_;
  EngineDispatcher& dispatcher_;
  double now_s_ = 0;
  // When the steps end that steppers are in; kNever: in none.
  std::vector<double> ends_s_;
  // Arrivals that traffic has not been told of.
  std::vector<ServeRequestIndex> arrived_;
  // Consecutive steps without work.
  int64_t empty_steps_ = 0;
  std::vector<RankOrder> orders_;
};

}  // namespace

absl::Status RunEngines(ServeGroup& group, Traffic& traffic, EngineDispatcher& dispatcher) {
  return EngineRun(group, traffic, dispatcher).Go();
}

void FillBudget(const ServeGroup& group, int32_t stepper, int64_t budget, std::vector<RankOrder>& orders) {
  orders.clear();
  const auto [first, end] = group.RanksOf(stepper);
  for (int32_t g = first; g < end; ++g)
    orders.push_back({std::max<int64_t>(0, budget - group.ranks()[g].decodes)});
}

Latencies LatenciesOf(std::vector<std::pair<double, int64_t>> values) {
  std::sort(values.begin(), values.end());
  double sum = 0;
  int64_t all = 0;
  for (const auto& [value, count] : values) {
    sum += value * static_cast<double>(count);
    all += count;
  }
  if (all == 0) return {};
  const auto at = [&](double q) {
    auto left = static_cast<int64_t>(q * static_cast<double>(all));
    for (const auto& [value, count] : values) {
      if (left < count) return value;
      left -= count;
    }
    return values.back().first;
  };
  return {sum / static_cast<double>(all), at(0.5), at(0.99)};
}

RequestTimes TimesOf(const std::vector<ServeRequest>& requests, double from_s, double until_s) {
  std::vector<std::pair<double, int64_t>> ttft_s, tpot_s, e2e_s;
  for (const ServeRequest& request : requests) {
    if (request.arrival_s < from_s || request.arrival_s >= until_s) continue;
    ttft_s.emplace_back(request.first_token_s - request.arrival_s, 1);
    e2e_s.emplace_back(request.end_s - request.arrival_s, 1);
    if (request.output == 1) continue;
    const auto tokens = static_cast<double>(request.output - 1);
    tpot_s.emplace_back((request.end_s - request.first_token_s) / tokens, 1);
  }
  return {std::ssize(e2e_s), LatenciesOf(std::move(ttft_s)), LatenciesOf(std::move(tpot_s)),
          LatenciesOf(std::move(e2e_s))};
}

}  // namespace bfio::sim
