// How one token budget would have served a list of requests: a replay that goes on a few batches at a time.
//
// Purpose: one candidate of the budget tuner. The requests come kRounds times, kHeadroom times as fast as
// they came: what the next busy hour would overrun shows it. The first time, behind the prompts that wait
// now, sets the engine to work; the others are scored. Threads: belongs to its caller. Pure; deterministic.
#ifndef BFIO_WORKER_SCHEDULER_BUDGET_REPLAY_H_
#define BFIO_WORKER_SCHEDULER_BUDGET_REPLAY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "worker/scheduler/engine_model.h"

namespace bfio::worker {

// What a budget shall be best for: the median of a time over requests, or the share of requests that meet
// both objectives.
enum class BudgetGoal { kE2e, kTtft, kTpot, kObjectives };

// Of one request, seconds; absent: the common ones (BudgetTunerOptions).
struct RequestObjectives {
  // For its first token, from when it came to the engine; one that is missed already is at most 0.
  std::optional<double> ttft_s;
  std::optional<double> tpot_s;
};

struct ReplayedRequest {
  // Seconds from the first one.
  double at = 0;
  int64_t prefill = 1, decode = 1;
  RequestObjectives objectives;
};

struct ReplayScore {
  int64_t budget = 0;
  // Tokens left when the last request has come, by the tokens of all requests.
  double left = 0;
  // Less is better: seconds, or the share of requests that miss an objective.
  double cost = 0;
  // Median end to end, seconds: decides between budgets of equal cost.
  double e2e_s = 0;
};

struct ReplayGoal {
  BudgetGoal goal = BudgetGoal::kE2e;
  // Of requests without their own, seconds; 0: none.
  double ttft_objective_s = 0, tpot_objective_s = 0;
};

class BudgetReplay {
 public:
  static constexpr int kRounds = 3;
  static constexpr double kHeadroom = 1.05;

  // `requests`, by time, are borrowed and not empty; `backlog`: prompt tokens that wait before them.
  BudgetReplay(absl::Span<const ReplayedRequest> requests, int64_t backlog, const EngineModelOptions& engine,
               const BatchScheduler& scheduler);

  // Goes on by at most so many batches, which it counts down. True: it is done.
  bool GoOn(int64_t& batches);

  // REQUIRES: it is done.
  ReplayScore Score(const ReplayGoal& goal) const;

 private:
  struct Life {
    double prefilled = -1, completed = -1;
  };
  double ArrivalOf(size_t i) const;
  void Arrive(double until);

  absl::Span<const ReplayedRequest> requests_;
  // Of one round: up to the last arrival, and a mean gap.
  double round_s_ = 0;
  EngineModel engine_;
  EngineModel::Ended ended_;
  size_t next_ = 0;
  double now_ = 0;
  int64_t round_tokens_ = 0;
  // When the last request had come.
  int64_t left_ = 0;
  std::vector<Life> lives_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BUDGET_REPLAY_H_
