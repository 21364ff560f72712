// The run of simulated engines under a rule: requests arrive, the rule sends them to ranks, ranks step. One
// loop for all commands that simulate engines; they differ in their traffic and in the dispatcher. Threads:
// one per run. Units: seconds.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/cost/group_time.h"
#include "tools/sim/rank/serve_group.h"

namespace bfio::sim {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// Where requests come from, and who measures them.
class Traffic {
 public:
  virtual ~Traffic() = default;
  // Time of the next arrival; kNever: none is due until a step has ended.
  virtual double NextArrival() const = 0;
  // Adds the next request to those of the group. Empty: it does not come after all.
  virtual std::optional<ServeRequestIndex> Arrive(double now_s) = 0;
  // The dispatcher has seen the arrival, and idle ranks have begun steps; or a step has ended now.
  virtual void Arrived(ServeRequestIndex request) {}
  virtual void Stepped(const ServeStep& step, double now_s) = 0;
  // Called before and after each decision, with its measured duration; steps may begin then.
  virtual void Deciding(double now_s) {}
  virtual void Decided(double seconds) {}
  // The run ends although requests may arrive or run.
  virtual bool Done(double now_s) const { return false; }
};

// The rule between traffic and ranks.
class EngineDispatcher {
 public:
  virtual ~EngineDispatcher() = default;
  virtual void Arrived(ServeRequestIndex request) = 0;
  // A step has ended; ranks are in their state after it.
  virtual void Stepped(int32_t stepper, const ServeStep& step, double now_s) {}
  // Decides with all that it has been told; called after Stepped, after arrivals, and at NextDecision. An
  // error ends the run.
  virtual absl::Status Decide(double now_s) { return absl::OkStatus(); }
  virtual double NextDecision() const { return kNever; }
  // Binds the requests that are due and sets the orders of the stepper's next step, one per rank. False: the
  // stepper has nothing to do.
  virtual bool Order(int32_t stepper, std::vector<RankOrder>& orders) = 0;
  // Decisions follow the beginning of the next step: they are made while it runs.
  virtual bool ahead() const { return false; }
  // Requests that are bound to no rank.
  virtual int64_t waiting() const { return 0; }
  // Ranks have measured this cost.
  virtual void SetCost(const GroupCost& cost) {}
};

// INTERNAL when the dispatcher makes no runnable plan although requests are there.
absl::Status RunEngines(ServeGroup& group, Traffic& traffic, EngineDispatcher& dispatcher);

// Orders that leave no more than the budget's tokens to every rank: decodes come first.
void FillBudget(const ServeGroup& group, int32_t stepper, int64_t budget, std::vector<RankOrder>& orders);

struct Latencies {
  double mean = 0, p50 = 0, p99 = 0;
};
// `values`: each value with its number of samples.
Latencies LatenciesOf(std::vector<std::pair<double, int64_t>> values);

// Of the requests that arrived in [from_s, until_s).
struct RequestTimes {
  int64_t requests = 0;
  Latencies ttft_s, tpot_s, e2e_s;
};
// REQUIRES: these requests have ended.
RequestTimes TimesOf(const std::vector<ServeRequest>& requests, double from_s, double until_s = kNever);

}  // namespace bfio::sim
