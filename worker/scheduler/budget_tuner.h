// The token budget that would have served the requests of late best.
//
// Purpose: no one budget is best: small ones keep decodes smooth, large ones finish prompts sooner and carry
// more, and in between lies the least time end to end. The tuner keeps the requests of late, fits what
// batches cost (common/cost/batch_fit.h), replays the requests under each budget it may choose
// (engine_model.h), a few batches at a time, and takes the best for its goal. A budget that falls behind in
// the replay is none that could be kept, so it counts only where all do. What is not known is not guessed:
// until requests have ended and the cost is known, the largest budget stands.
//
// Threads: belongs to its caller, an engine's step thread or a simulation. Pure: times are handed in. Cost: a
// few microseconds a step, bounded by batches_per_turn replayed batches; memory for `window` requests.
#ifndef BFIO_WORKER_SCHEDULER_BUDGET_TUNER_H_
#define BFIO_WORKER_SCHEDULER_BUDGET_TUNER_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/cost/batch_fit.h"
#include "worker/scheduler/batch_scheduler.h"
#include "worker/scheduler/budget_replay.h"

namespace bfio::worker {

// "e2e", "ttft", "tpot" or "objectives". INVALID_ARGUMENT otherwise.
absl::StatusOr<BudgetGoal> ParseBudgetGoal(absl::string_view name);

struct BudgetTunerOptions {
  BudgetGoal goal = BudgetGoal::kE2e;
  // Of kObjectives, for requests without their own; seconds; 0: none.
  double ttft_objective_s = 0;
  double tpot_objective_s = 0;
  // Budgets tried: from min_budget to max_budget, each half or a third more than the one before.
  int64_t min_budget = 128;
  int64_t max_budget = 2048;
  // As the engine's.
  int64_t slots = BatchRoom::kUnbounded;
  bool prompt_gives_token = false;
  // Requests replayed; batches replayed per Turn.
  int64_t window = 512;
  int64_t batches_per_turn = 32;
};

class BudgetTuner {
 public:
  // `scheduler`: the engine's.
  BudgetTuner(const BudgetTunerOptions& options, BatchScheduler scheduler);

  // A request came to the engine; seconds of a clock that never goes back. `decode`: at most.
  void Arrive(int64_t id, double now_s, int64_t prefill, int64_t decode,
              const RequestObjectives& objectives = {});
  // It has ended with so many decodes, by itself or because it was cancelled.
  void End(int64_t id, int64_t decoded);
  // A batch has been made.
  void Batch(const BatchLoad& load, double seconds);
  // After it the engine waited for others so long: ranks that meet in a barrier make tokens as fast as the
  // slowest.
  void Waited(double seconds);

  // Goes on with the replays; the budget from now on. `backlog`: prompt tokens that wait in the engine.
  int64_t Turn(int64_t backlog);
  int64_t budget() const { return budget_; }
  // Times that all budgets were compared.
  int64_t rounds() const { return rounds_; }
  const BatchFit& fit() const { return fit_; }

 private:
  struct Seen {
    int64_t id;
    double at;
    int64_t prefill, decode;
    bool ended;
    RequestObjectives objectives;
  };
  // Ended requests that a comparison needs.
  static constexpr int64_t kMinEnded = 32;
  // Another budget must be better by this share of a median. At a quarter of it, near capacity and with
  // long-tailed lengths, one window of requests called for budgets that are worse by as much.
  static constexpr double kMargin = 0.02;
  // The same of a share of misses, where every miss is counted.
  static constexpr double kMissMargin = 0.005;
  // Weight of a batch in the time that the other ranks take; share of a batch above which a wait is one for
  // them, and not the barrier's own cost.
  static constexpr double kFloorShare = 1.0 / 64, kWaitShare = 0.02;
  // Weight of the last comparison beside those before.
  static constexpr double kLast = 0.25;

  // The requests of late, as a replay wants them. Empty: too few.
  std::vector<ReplayedRequest> Snapshot() const;
  void Begin();
  void Choose();

  const BudgetTunerOptions options_;
  const BatchScheduler scheduler_;
  BatchFit fit_;
  double last_s_ = 0;
  // What the slowest of the other ranks takes for a step, of late.
  double floor_s_ = 0;
  std::vector<int64_t> budgets_;
  std::deque<Seen> seen_;
  int64_t ended_ = 0;

  // Of the comparison under way.
  std::vector<ReplayedRequest> requests_;
  BatchCost cost_;
  int64_t backlog_ = 0;
  std::optional<BudgetReplay> replay_;
  std::vector<ReplayScore> scores_;
  // By budget: how it did beside the best of each comparison, over comparisons.
  std::vector<double> standing_;

  int64_t budget_;
  int64_t rounds_ = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BUDGET_TUNER_H_
