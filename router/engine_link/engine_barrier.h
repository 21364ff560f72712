// What the router infers about ranks that meet in a barrier inside their engines: the cost of their steps,
// whether there is a barrier, and the prompts that hold all of them up. Pure. Threads: one. Tokens, seconds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/cost/group_fit.h"
#include "common/cost/group_time.h"

namespace bfio::router {

// The longest prompt that each rank of a barrier still has to compute, and the longest of all: meanwhile none
// of the ranks may deliver tokens.
class BarrierPrompts {
 public:
  // 0: the rank has none, or is gone.
  void Set(uint64_t rank, int64_t tokens) {
    if (std::exchange(by_rank_[rank], tokens) == tokens) return;
    if (tokens == 0) by_rank_.erase(rank);
    longest_ = 0;
    for (const auto& [each, prompt] : by_rank_) longest_ = std::max(longest_, prompt);
  }
  // 0: no rank has a prompt.
  int64_t longest() const { return longest_; }

 private:
  std::map<uint64_t, int64_t> by_rank_;
  int64_t longest_ = 0;
};

// Whether ranks with a declared barrier step together: while they decode without a pause, all have the same
// number of steps. Steps are counted over the ranks that decode, since the last of them began, until one has
// kSteps. kWindows such counts in a row that differ by more than kShare mean that there is no barrier.
class BarrierWatch {
 public:
  static constexpr int64_t kSteps = 128;
  static constexpr int kWindows = 3;
  // Inferred steps are sometimes split when a token comes late.
  static constexpr double kShare = 0.25;

  // The rank has ended a step with tokens; `decodes`: a request of it decodes in the next step, too.
  void OnStep(uint64_t rank, bool decodes);
  // The rank has no requests, or is gone.
  void OnIdle(uint64_t rank);

  // The fault, once; empty: none, or it was reported.
  std::string TakeWarning();

 private:
  void StartOver();

  // Steps of the ranks that decode.
  std::map<uint64_t, int64_t> steps_;
  int apart_ = 0;
  int64_t most_ = 0, fewest_ = 0;
  bool told_ = false;
};

// The cost of steps, fitted from outside. The batches of one step are gathered over the ranks; the step took
// the median of the times that they report. All ranks have the same cost. Steps are timed by the arrival of
// tokens, so some are far from the fit: a time above kUnlike times the expected one, or below 1 / kUnlike of
// it, counts as that bound while most steps are nearer.
class BarrierCost {
 public:
  static constexpr double kUnlike = 1.5;
  // The version after which the fit is good enough to bound steps in this way.
  static constexpr int64_t kMatureVersion = 16;

  // A rank has ended a step with that batch. A rank's second batch begins the next step. `rank`: any number
  // that identifies the rank.
  void Add(uint64_t rank, const BatchLoad& batch, absl::Duration step);

  // Empty until the steps determine it.
  const std::optional<GroupCost>& cost() const { return fit_.cost(); }
  double predicted_ratio() const { return fit_.predicted_ratio(); }
  // Changes with the cost.
  int64_t version() const { return fit_.version(); }

 private:
  void EndStep();

  // Of the present step.
  std::vector<uint64_t> ranks_;
  std::vector<BatchLoad> batches_;
  std::vector<double> took_s_;
  // The recent share of steps outside kUnlike.
  double unlike_ = 0;
  GroupFit fit_;
};

// The state of a barrier in which ranks meet.
struct EngineBarrier {
  BarrierCost cost;
  BarrierWatch watch;
  BarrierPrompts prompts;
};

}  // namespace bfio::router
