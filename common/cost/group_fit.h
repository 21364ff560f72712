// Fits the cost of a group's steps online (group_time.h): C, A, B0, K1, K2, the prices E and E', and whether
// rows are padded.
//
// Purpose: a GroupCost that predicts the time of steps with other batches. A step takes as long as its
// slowest rank, which is that of the fit so far. Least squares of relative errors, of t = C + A max(0, rows -
// B0) + K2 context + E [prompts] + E' [a rank above S] + K1 pairs, for each of many B0, of which the best is
// used, and both with rows padded and with each rank's own. No coefficient is negative. K1, E and E' are 0
// unless they explain the times significantly better: K1 is multiplied by the squared lengths of prompts that
// may be much longer than those seen, and prompts are held back because of E. Rows count as each rank's own
// until one of both explains the times significantly better; then, until the other does.
//
// The step k steps ago has the weight exp(-k / memory), or less while the fit is young. A time of more than
// kCut times the fit's (a preempted step) is reduced to that. Pure. Threads: belongs to its caller. Cost: a
// microsecond per step and some per rank, and up to some hundred every kMinSteps; allocates while young.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/cost/group_time.h"
#include "common/cost/moments.h"

namespace bfio {

class GroupFit {
 public:
  // The number of steps that a fit needs, and after which it changes.
  static constexpr int64_t kMinSteps = 32;
  // B0 is at most (kKnees - 1) * kKneeRows.
  static constexpr size_t kKnees = 17;
  static constexpr int64_t kKneeRows = 32;

  struct Options {
    // Steps after which the weight of an old one is 1/e.
    double memory_steps = 4096;
    // Whether there are E and E'.
    bool prices = true;
    // S.
    int64_t captured_rows = GroupTerms().captured_rows;
  };

  GroupFit() : GroupFit(Options()) {}
  explicit GroupFit(const Options& options);

  // One step of all ranks; those without a batch may be missing. `seconds`: the time of the whole step or,
  // where ranks are timed apart from waiting for each other, of this rank. Ignores a time of no tokens, or
  // one that is not a positive number.
  void Add(absl::Span<const BatchLoad> ranks, double seconds, std::optional<size_t> rank = std::nullopt);
  void Add(const BatchLoad& rank, double seconds) { Add(absl::MakeConstSpan(&rank, 1), seconds); }

  // Absent while the fit is undetermined: too few steps, or all with the same rows.
  const std::optional<GroupCost>& cost() const { return hypotheses_[padded_].cost; }
  // Whether the steps have shown that rows are padded, or that they are not.
  bool padding_identified() const { return identified_; }
  // Predicted over measured time of the recent steps; 1 before the first fit.
  double predicted_ratio() const { return measured_ > 0 ? predicted_ / measured_ : 1; }
  // Changes with the cost.
  int64_t version() const { return steps_ / kMinSteps; }

 private:
  // A step that takes more than this many times the fit's time counts as disturbed.
  static constexpr double kCut = 4;
  // Steps are added anew while the fit is young, and padding and prices are not identified earlier.
  static constexpr int64_t kYoung = 512;
  // max(0, rows - B0) for each multiple of kKneeRows; context, prompts, above S, pairs; seconds.
  using StepMoments = BasicMoments<kKnees + 5>;

  // Rows are padded, or not.
  struct Hypothesis {
    StepMoments moments;
    // By which the slowest rank is found: with K1 even if it is not significant, and prices while young.
    GroupCost slowest;
    std::optional<GroupCost> cost;
    // Sum of squared residuals.
    double rest = 0;
  };

  struct Step {
    size_t ranks = 0;
    double seconds = 0;
    std::optional<size_t> rank;
  };

  void Take(absl::Span<const BatchLoad> ranks, double seconds, std::optional<size_t> rank);
  void Refit(Hypothesis& hypothesis);
  void ComparePadding();

  const Options options_;
  // By whether rows are padded.
  std::array<Hypothesis, 2> hypotheses_;
  bool padded_ = false, identified_ = false;
  int64_t steps_ = 0;
  // Number of steps by their age, and mean time when the first fit was made.
  double count_ = 0, usual_s_ = 0;
  double predicted_ = 0, measured_ = 0;
  // The first kYoung steps, and their ranks one after another.
  std::vector<Step> young_;
  std::vector<BatchLoad> young_ranks_;
};

}  // namespace bfio
