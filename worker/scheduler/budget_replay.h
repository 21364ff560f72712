// Replays a list of requests under one token budget, a few batches at a time.
//
// Purpose: evaluates one candidate of the budget tuner. The requests are replayed kRounds times, kHeadroom
// times as fast as they arrived, so that a budget that a busier hour would overload falls behind. The first
// round starts with the prompts that wait now and only brings the engine into a steady state; the other
// rounds are scored. Threads: belongs to its caller. Pure; deterministic.
#ifndef BFIO_WORKER_SCHEDULER_BUDGET_REPLAY_H_
#define BFIO_WORKER_SCHEDULER_BUDGET_REPLAY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "worker/scheduler/engine_model.h"

namespace bfio::worker {

// The objective that a budget minimises: the median over requests of a latency, or the share of requests that
// miss an objective.
enum class BudgetGoal { kE2e, kTtft, kTpot, kObjectives };

// Latency objectives of one request, in seconds; absent: the common ones (BudgetTunerOptions).
struct RequestObjectives {
  // Time from its arrival at the engine to its first token; at most 0 if the objective is missed already.
  std::optional<double> ttft_s;
  std::optional<double> tpot_s;
};

struct ReplayedRequest {
  // Arrival, in seconds after the first request.
  double at = 0;
  int64_t prefill = 1, decode = 1;
  RequestObjectives objectives;
};

struct ReplayScore {
  int64_t budget = 0;
  // Tokens left when the last request has arrived, relative to the tokens of all requests.
  double left = 0;
  // Smaller is better: seconds, or the share of requests that miss an objective.
  double cost = 0;
  // Median end-to-end latency in seconds; decides between budgets of equal cost.
  double e2e_s = 0;
};

struct ReplayGoal {
  BudgetGoal goal = BudgetGoal::kE2e;
  // For requests without their own objectives, in seconds; 0: none.
  double ttft_objective_s = 0, tpot_objective_s = 0;
};

class BudgetReplay {
 public:
  static constexpr int kRounds = 3;
  static constexpr double kHeadroom = 1.05;

  // `requests`, ordered by time and not empty, must outlive this. `backlog`: prompt tokens that wait before
  // them.
  BudgetReplay(absl::Span<const ReplayedRequest> requests, int64_t backlog, const EngineModelOptions& engine,
               const BatchScheduler& scheduler);

  // Replays at most `batches` batches and subtracts their number from it. True: the replay is done.
  bool GoOn(int64_t& batches);

  // REQUIRES: the replay is done.
  ReplayScore Score(const ReplayGoal& goal) const;

 private:
  struct Life {
    double prefilled = -1, completed = -1;
  };
  double ArrivalOf(size_t i) const;
  void Arrive(double until);

  absl::Span<const ReplayedRequest> requests_;
  // Duration of one round: up to the last arrival, plus a mean gap.
  double round_s_ = 0;
  EngineModel engine_;
  EngineModel::Ended ended_;
  size_t next_ = 0;
  double now_ = 0;
  int64_t round_tokens_ = 0;
  // Tokens left when the last request had arrived.
  int64_t left_ = 0;
  std::vector<Life> lives_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BUDGET_REPLAY_H_
