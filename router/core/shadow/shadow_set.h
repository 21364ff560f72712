// Policies whose plans are computed but not executed, and the idle work that following them would have saved.
//
// Purpose: on every decision each shadow plans for the same snapshot as the acting policy, and the idle work
// of the two plans is compared (plan_value.h). The difference is the shadow's regret: avoided when the acting
// policy's plan leaves less idle work, missed when the shadow's plan leaves less.
//
// What it measures: on the snapshots that result from the acting policy's decisions, which plan's next step
// (and, with an outlook, next H steps) would be better balanced. It costs one decision per shadow and does
// not affect serving. It does not measure the effect of the shadow's own decisions, because pool and loads
// result from another policy: a shadow that always takes the requests that fit best is better in every single
// step here, but acting alone it would be left with requests that fit no gap. It does not measure waits.
// Simulate a policy with a large regret before you switch to it. Cost: a decision and O((G + requests) H) per
// shadow and step. A caller's bound limits that: when the bound is reached, the shadows that have not planned
// yet are skipped for that decision and counted, and the next decision begins with them. Threads: one.
#ifndef BFIO_ROUTER_CORE_SHADOW_SHADOW_SET_H_
#define BFIO_ROUTER_CORE_SHADOW_SHADOW_SET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/stats/histogram.h"
#include "router/core/model/stop_signal.h"
#include "router/core/policy/policy.h"
#include "router/core/shadow/plan_value.h"

namespace bfio::core {

// Weight of a step's idle work relative to the step before it; it halves after seven steps. Not tuned.
inline constexpr double kShadowDiscount = 0.9;

struct ShadowRegret {
  std::string policy;
  // Number of snapshots on which both planned, and of those on which the shadow was skipped for lack of time.
  int64_t decisions = 0;
  int64_t skipped = 0;
  // Idle work of the plans' own step, tokens, one sample for each decision on which the acting policy's was
  // less (avoided) or more (missed) than the shadow's. Sums and means are exact.
  Histogram avoided;
  Histogram missed;
  // The same over the outlook (PlanValue::idle_ahead), summed.
  double avoided_ahead = 0;
  double missed_ahead = 0;
  // Sum of the shadow's longest_now less the acting policy's, tokens: above 0, its steps would be longer.
  double longer = 0;
};

class ShadowSet {
 public:
  // `stop` is called before each shadow plans.
  explicit ShadowSet(std::vector<std::unique_ptr<Policy>> shadows, StopSignal stop = {});

  // Whether at least one shadow reads Snapshot::first_come; the same for Snapshot::prefixes.
  bool uses_first_come_waits() const;
  bool uses_prefixes() const;

  // Makes every shadow's plan for the snapshot and compares it with the acting policy's.
  void Observe(const Snapshot& snapshot, absl::Span<const Assignment> acting);

  // By shadow.
  const std::vector<ShadowRegret>& regrets() const { return regrets_; }
  // Resets the regrets; the shadows keep their state.
  void ResetRegrets();

 private:
  void ObserveOne(const Snapshot& snapshot, const PlanValue& ours, size_t shadow);

  std::vector<std::unique_ptr<Policy>> shadows_;
  StopSignal stop_;
  std::vector<ShadowRegret> regrets_;
  // The shadow that plans first.
  size_t first_ = 0;
  PlanMeter meter_{kShadowDiscount};
  Decision decision_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SHADOW_SHADOW_SET_H_
