// The state of one run: how much more work may be done. The anytime contract. A run ends when its budget of
// counted work is spent, or at the caller's deadline; the present plan is feasible at every moment. The core
// has no clock, so the deadline is a function of the caller, called once per some thousand evaluations or
// capacity tests. Threads: one; `stop` is called on it.
#pragma once

#include <cstdint>

#include "router/core/model/stop_signal.h"

namespace bfio::core {

// Statistics of one run of the solver. Threads: any, plain data.
struct SolverStatistics {
  int64_t evaluations = 0;
  int64_t improvements = 0;
  // The search ended at a local optimum, not at the work budget or the deadline.
  bool converged = false;
  // The caller's deadline ended the search.
  bool deadline = false;
  // All plans were tried: the plan is optimal.
  bool exact = false;

  // True: more time might have given another plan.
  bool CutShort() const { return deadline && !exact; }
};

// Smaller gains are rounding errors: accepting them could make a search cycle.
inline constexpr double kLeastGain = 1e-3;

class Run {
 public:
  // Borrows `stop` and `statistics`.
  Run(int64_t budget, const StopSignal& stop, SolverStatistics& statistics)
      : budget_(budget), stop_(stop), statistics_(statistics) {}

  // Accounts for work before it is done. False: stop without doing it.
  bool Spend(int64_t evaluations) {
    if (budget_ <= 0) return false;
    budget_ -= evaluations;
    statistics_.evaluations += evaluations;
    until_check_ -= evaluations;
    return until_check_ > 0 || CheckDeadline();
  }
  // Accounts for work that no budget bounds: construction, and tests without a result. False: the deadline
  // has passed.
  bool GoOn(int64_t work) {
    if (statistics_.deadline) return false;
    until_check_ -= work;
    return until_check_ > 0 || CheckDeadline();
  }
  void Improved() { ++statistics_.improvements; }
  bool Over() const { return budget_ <= 0; }
  // True: the deadline has ended the run.
  bool Stopped() const { return statistics_.deadline; }
  int64_t budget() const { return budget_; }

 private:
  static constexpr int64_t kCheckEvery = 1024;

  bool CheckDeadline() {
    until_check_ = kCheckEvery;
    if (!stop_ || !stop_()) return true;
    statistics_.deadline = true;
    budget_ = 0;
    return false;
  }

  int64_t budget_;
  int64_t until_check_ = kCheckEvery;
  const StopSignal& stop_;
  SolverStatistics& statistics_;
};

}  // namespace bfio::core
