#include "worker/scheduler/budget_replay.h"

#include <algorithm>

namespace bfio::worker {
namespace {

constexpr int64_t kBacklog = -1;

double MedianOf(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

BudgetReplay::BudgetReplay(absl::Span<const ReplayedRequest> requests, int64_t backlog,
                           const EngineModelOptions& engine, const BatchScheduler& scheduler)
    : requests_(requests), engine_(engine, scheduler), lives_(kRounds * requests.size()) {
  if (backlog > 0) engine_.Arrive({kBacklog, backlog, 1});
  const double span = requests.back().at - requests.front().at;
  round_s_ = span + span / static_cast<double>(requests.size());
  for (const ReplayedRequest& request : requests) round_tokens_ += request.prefill + request.decode;
}

double BudgetReplay::ArrivalOf(size_t i) const {
  const auto round = static_cast<double>(i / requests_.size());
  return (round * round_s_ + requests_[i % requests_.size()].at - requests_.front().at) / kHeadroom;
}

void BudgetReplay::Arrive(double until) {
  for (; next_ < lives_.size() && ArrivalOf(next_) <= until; ++next_) {
    const ReplayedRequest& request = requests_[next_ % requests_.size()];
    engine_.Arrive({static_cast<int64_t>(next_), request.prefill, request.decode});
    if (next_ + 1 == lives_.size()) left_ = engine_.tokens();
  }
}

bool BudgetReplay::GoOn(int64_t& batches) {
  for (; batches > 0; --batches) {
    Arrive(now_);
    const auto seconds = engine_.Start();
    if (!seconds) {
      // A blocked scheduler is done too; requests that did not end count in the score.
      if (next_ == lives_.size()) return true;
      now_ = std::max(now_, ArrivalOf(next_));
      continue;
    }
    now_ += *seconds;
    Arrive(now_);
    engine_.End(ended_);
    for (const int64_t id : ended_.prefilled) {
      if (id != kBacklog) lives_[id].prefilled = now_;
    }
    for (const int64_t id : ended_.completed) {
      if (id != kBacklog) lives_[id].completed = now_;
    }
  }
  return false;
}

ReplayScore BudgetReplay::Score(const ReplayGoal& goal) const {
  std::vector<double> ttft, tpot, e2e;
  int64_t missed = 0;
  for (size_t i = requests_.size(); i < lives_.size(); ++i) {
    const double at = ArrivalOf(i);
    // A request that never ended took at least until the end of the replay.
    const double prefilled = lives_[i].prefilled < 0 ? now_ : lives_[i].prefilled;
    const double completed = lives_[i].completed < 0 ? now_ : lives_[i].completed;
    ttft.push_back(prefilled - at);
    const int64_t after =
        TokensAfterPrompt(requests_[i % requests_.size()].decode, engine_.options().prompt_gives_token);
    if (after > 0) tpot.push_back((completed - prefilled) / static_cast<double>(after));
    e2e.push_back(completed - at);
    const RequestObjectives& own = requests_[i % requests_.size()].objectives;
    // If the deadline of a request's first token had passed before it arrived, no budget could have met it;
    // then only its time per token counts.
    const double ttft_goal = own.ttft_s.value_or(goal.ttft_objective_s);
    const double tpot_goal = own.tpot_s.value_or(goal.tpot_objective_s);
    const bool met = (ttft_goal <= 0 || ttft.back() <= ttft_goal) &&
                     (tpot_goal <= 0 || after <= 0 || tpot.back() <= tpot_goal);
    if (!met || lives_[i].completed < 0) ++missed;
  }
  ReplayScore score;
  score.budget = engine_.token_budget();
  score.left = static_cast<double>(left_) / static_cast<double>(round_tokens_);
  score.e2e_s = MedianOf(e2e);
  switch (goal.goal) {
    case BudgetGoal::kE2e:
      score.cost = score.e2e_s;
      break;
    case BudgetGoal::kTtft:
      score.cost = MedianOf(ttft);
      break;
    case BudgetGoal::kTpot:
      score.cost = MedianOf(tpot);
      break;
    case BudgetGoal::kObjectives:
      score.cost = static_cast<double>(missed) / static_cast<double>(e2e.size());
      break;
  }
  return score;
}

}  // namespace bfio::worker
