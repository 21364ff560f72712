// Finds the token budget that would have served the recent requests best.
//
// Purpose: no single budget is best. Small ones keep the time per output token even, large ones finish
// prompts sooner and have more throughput, and the lowest end-to-end latency lies in between. The tuner keeps
// the recent requests, fits the cost of batches (common/cost/batch_fit.h), replays the requests under each
// budget it may choose (engine_model.h), a few batches at a time, and takes the best for its goal. A budget
// that falls behind in the replay is not sustainable, so it is chosen only if all fall behind. Until enough
// requests have ended and the cost is known, the largest budget is used.
//
// Threads: belongs to its caller, an engine's step thread or a simulation. Pure: times are arguments. Cost: a
// few microseconds per step, bounded by batches_per_turn replayed batches; memory for `window` requests.
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
  // For kObjectives, for requests without their own objectives; seconds; 0: none.
  double ttft_objective_s = 0;
  double tpot_objective_s = 0;
  // The candidates: from min_budget to max_budget, each a half or a third larger than the one before.
  int64_t min_budget = 128;
  int64_t max_budget = 2048;
  // The engine's slots.
  int64_t slots = BatchCapacity::kUnbounded;
  bool prompt_gives_token = false;
  // Requests replayed; batches replayed per UpdateBudget.
  int64_t window = 512;
  int64_t batches_per_turn = 32;
};

class BudgetTuner {
 public:
  // `scheduler`: the engine's scheduler.
  BudgetTuner(const BudgetTunerOptions& options, BatchScheduler scheduler);

  // A request has arrived at the engine at `now_s` of a monotonic clock. `decode`: upper bound of its
  // generated tokens.
  void Arrive(int64_t id, double now_s, int64_t prefill, int64_t decode,
              const RequestObjectives& objectives = {});
  // A request has ended after `decoded` decodes, by itself or by cancellation.
  void End(int64_t id, int64_t decoded);
  // A batch has been computed in `seconds`.
  void Batch(const BatchLoad& load, double seconds);
  // Time that the engine then waited for others: ranks that meet in a barrier generate tokens at the pace of
  // the slowest.
  void Waited(double seconds);

  // Continues the replays; returns the budget to use from now on. `backlog`: prompt tokens that wait in the
  // engine.
  int64_t UpdateBudget(int64_t backlog);
  int64_t budget() const { return budget_; }
  // How often all budgets have been compared.
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
  // Number of ended requests that a comparison needs.
  static constexpr int64_t kMinEnded = 32;
  // Another budget must be better by this share of a median over a full window of requests. With fewer
  // requests the margin is larger, inversely to the root of their number, because their median varies more. A
  // quarter of this margin is too small: near capacity and with long-tailed lengths, noise in a single window
  // then selects budgets that are worse by as much.
  static constexpr double kMargin = 0.02;
  // The same for a share of misses, in which every miss counts.
  static constexpr double kMissMargin = 0.005;
  // Weight of a batch in the estimate of the other ranks' time; share of a batch's time above which a wait is
  // attributed to other ranks rather than to the barrier's own cost.
  static constexpr double kFloorShare = 1.0 / 64, kWaitShare = 0.02;
  // Weight of the latest comparison relative to the earlier ones, for equal numbers of requests. The first
  // comparisons have few requests and proportionally less weight: a budget that a few dozen requests suggest
  // must not be kept for minutes.
  static constexpr double kLast = 0.25;
  // A budget that computes less than this share of the tokens that arrive is not replayed. Its replay would
  // show that it falls behind, and would take most of a comparison's time, because its batches are small and
  // many.
  static constexpr double kLeastCapacity = 0.85;

  // The recent requests in the form that a replay needs. Empty: too few.
  std::vector<ReplayedRequest> Snapshot() const;
  // Begins the replay of the next budget that may keep up; false: there is none.
  bool Begin();
  void Choose();

  const BudgetTunerOptions options_;
  const BatchScheduler scheduler_;
  BatchFit fit_;
  double last_s_ = 0;
  // Recent estimate of the step time of the slowest other rank.
  double floor_s_ = 0;
  std::vector<int64_t> budgets_;
  std::deque<Seen> seen_;
  int64_t ended_ = 0;

  // State of the current comparison.
  std::vector<ReplayedRequest> requests_;
  BatchCost cost_;
  int64_t backlog_ = 0;
  std::optional<BudgetReplay> replay_;
  std::vector<ReplayScore> scores_;
  // By budget: its score relative to the best of each comparison, averaged over comparisons.
  std::vector<double> standing_;
  // By budget: number of requests in the comparisons that it was replayed in, weighted like the comparisons.
  std::vector<double> compared_;

  int64_t budget_;
  int64_t rounds_ = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BUDGET_TUNER_H_
