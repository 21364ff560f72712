#include "worker/scheduler/budget_tuner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::worker {
namespace {

// How many more tokens a budget may leave than the budget that leaves the fewest, as a share of the replayed
// tokens.
constexpr double kBehind = 0.03;

constexpr double kTieWeight = 1e-3;

// Scores of a budget that is not replayed: worse than any replayed budget's.
constexpr double kNotReplayed = 1e9;

// 128, 192, 256, 384, ..: powers of two and the midpoints between them.
std::vector<int64_t> Budgets(int64_t least, int64_t most) {
  std::vector<int64_t> budgets;
  for (int64_t budget = std::max<int64_t>(1, least); budget < most; budget *= 2) {
    budgets.push_back(budget);
    if (budget + budget / 2 < most && budget > 1) budgets.push_back(budget + budget / 2);
  }
  budgets.push_back(most);
  return budgets;
}

// A score relative to the best: 1 is equal. A share of misses is added, seconds are a ratio. The end-to-end
// latency decides between equal scores.
double StandingOf(const ReplayScore& score, const ReplayScore& best, BudgetGoal goal) {
  const double e2e = best.e2e_s > 0 ? score.e2e_s / best.e2e_s : 1;
  if (goal == BudgetGoal::kObjectives) return 1 + score.cost - best.cost + kTieWeight * e2e;
  return (best.cost > 0 ? score.cost / best.cost : 1) + kTieWeight * e2e;
}

}  // namespace

absl::StatusOr<BudgetGoal> ParseBudgetGoal(absl::string_view name) {
  if (name == "e2e") return BudgetGoal::kE2e;
  if (name == "ttft") return BudgetGoal::kTtft;
  if (name == "tpot") return BudgetGoal::kTpot;
  if (name == "objectives") return BudgetGoal::kObjectives;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown goal '", name, "'; must be e2e, ttft, tpot or objectives"));
}

BudgetTuner::BudgetTuner(const BudgetTunerOptions& options, BatchScheduler scheduler)
    : options_(options),
      scheduler_(std::move(scheduler)),
      budgets_(Budgets(options.min_budget, options.max_budget)),
      budget_(options.max_budget) {}

void BudgetTuner::Arrive(int64_t id, double now_s, int64_t prefill, int64_t decode,
                         const RequestObjectives& objectives) {
  seen_.push_back({id, now_s, prefill, decode, false, objectives});
  if (static_cast<int64_t>(seen_.size()) <= options_.window) return;
  if (seen_.front().ended) --ended_;
  seen_.pop_front();
}

void BudgetTuner::Batch(const BatchLoad& load, double seconds) {
  fit_.Add(load, seconds);
  last_s_ = seconds;
}

void BudgetTuner::Waited(double seconds) {
  // If this rank did not wait, no other rank was slower, which bounds their time from above.
  const double others_s = seconds > kWaitShare * last_s_ ? last_s_ + seconds : std::min(floor_s_, last_s_);
  floor_s_ += kFloorShare * (others_s - floor_s_);
}

void BudgetTuner::End(int64_t id, int64_t decoded) {
  const auto it = std::find_if(seen_.begin(), seen_.end(),
                               [&](const Seen& seen) { return seen.id == id && !seen.ended; });
  if (it == seen_.end()) return;
  it->ended = true;
  it->decode = std::max<int64_t>(1, decoded);
  ++ended_;
}

std::vector<ReplayedRequest> BudgetTuner::Snapshot() const {
  std::vector<ReplayedRequest> requests;
  if (ended_ < kMinEnded) return requests;
  std::vector<int64_t> decodes;
  for (const Seen& seen : seen_) {
    if (seen.ended) decodes.push_back(seen.decode);
  }
  size_t next = 0;
  for (const Seen& seen : seen_) {
    // A request that still runs is assumed to end like an earlier one: its upper bound is a poor estimate of
    // its length.
    const int64_t decode = seen.ended ? seen.decode : std::min(seen.decode, decodes[next++ % decodes.size()]);
    requests.push_back({seen.at - seen_.front().at, seen.prefill, decode, seen.objectives});
  }
  if (!(requests.back().at > 0)) requests.clear();
  return requests;
}

bool BudgetTuner::Begin() {
  int64_t tokens = 0;
  for (const ReplayedRequest& request : requests_) tokens += request.prefill + request.decode;
  const double needed = kLeastCapacity * BudgetReplay::kHeadroom * static_cast<double>(tokens) /
                        (requests_.back().at - requests_.front().at);
  // The largest budget is always replayed.
  while (scores_.size() + 1 < budgets_.size() && cost_.Capacity(budgets_[scores_.size()]) < needed)
    scores_.push_back({budgets_[scores_.size()], kNotReplayed, kNotReplayed, kNotReplayed});
  if (scores_.size() == budgets_.size()) return false;
  EngineModelOptions engine;
  engine.token_budget = budgets_[scores_.size()];
  engine.slots = options_.slots;
  engine.cost = cost_;
  engine.least_s = floor_s_;
  engine.prompt_gives_token = options_.prompt_gives_token;
  replay_.emplace(requests_, backlog_, engine, scheduler_);
  return true;
}

int64_t BudgetTuner::UpdateBudget(int64_t backlog) {
  if (!replay_) {
    const auto cost = fit_.cost();
    if (!cost) return budget_;
    requests_ = Snapshot();
    if (requests_.empty()) return budget_;
    cost_ = *cost;
    backlog_ = backlog;
    scores_.clear();
    Begin();
  }
  int64_t batches = options_.batches_per_turn;
  while (batches > 0 && replay_) {
    if (!replay_->GoOn(batches)) break;
    scores_.push_back(replay_->Score({options_.goal, options_.ttft_objective_s, options_.tpot_objective_s}));
    replay_.reset();
    if (!Begin()) Choose();
  }
  return budget_;
}

void BudgetTuner::Choose() {
  ++rounds_;
  ReplayScore best = scores_.front();
  for (const ReplayScore& score : scores_) {
    best.left = std::min(best.left, score.left);
    best.cost = std::min(best.cost, score.cost);
    best.e2e_s = std::min(best.e2e_s, score.e2e_s);
  }
  standing_.resize(scores_.size(), 0);
  compared_.resize(scores_.size(), 0);
  const auto requests = static_cast<double>(requests_.size());
  std::optional<size_t> chosen;
  double least = 0;
  const double margin = (options_.goal == BudgetGoal::kObjectives ? kMissMargin : kMargin) *
                        std::sqrt(static_cast<double>(options_.window) / requests);
  for (size_t i = 0; i < scores_.size(); ++i) {
    if (scores_[i].left < kNotReplayed) {
      const double standing = StandingOf(scores_[i], best, options_.goal);
      standing_[i] += requests / (requests + compared_[i]) * (standing - standing_[i]);
      compared_[i] += requests;
    }
    compared_[i] *= 1 - kLast;
    if (scores_[i].left > best.left + kBehind) continue;
    const double wanted = standing_[i] * (budgets_[i] == budget_ ? 1 - margin : 1);
    if (chosen && wanted >= least) continue;
    chosen = i;
    least = wanted;
  }
  budget_ = budgets_[*chosen];
}

}  // namespace bfio::worker
