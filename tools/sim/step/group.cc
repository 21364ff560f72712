#include "tools/sim/step/group.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/sim/step/equal_chunk.h"

namespace bfio::sim {
namespace {

using worker::EngineModel;

class Group {
 public:
  Group(const std::vector<StepArrival>& arrivals, const StepGroupOptions& options,
        const worker::BatchScheduler& scheduler)
      : arrivals_(arrivals), options_(options) {
    worker::EngineModelOptions engine;
    engine.token_budget = options.token_budget;
    engine.cost = options.cost;
    engine.prompt_gives_token = true;
    ranks_.assign(static_cast<size_t>(options.ranks), EngineModel(engine, scheduler));
    run_.lives.resize(arrivals.size());
  }

  StepGroupRun Run() {
    while (true) {
      Place();
      if (options_.plan == PrefillPlan::kEqualised) SetBudgets();
      if (Step()) continue;
      if (next_ == arrivals_.size()) break;
      now_ = std::max(now_, arrivals_[next_].at);
    }
    run_.end_s = now_;
    const double all = rank_s_ + idle_s_;
    run_.idle_fraction = all > 0 ? idle_s_ / all : 0;
    return std::move(run_);
  }

 private:
  static int64_t Decoding(const EngineModel& rank) {
    const auto requests = rank.requests();
    return std::count_if(requests.begin(), requests.end(),
                         [](const worker::BatchRequest& request) { return request.decoding(); });
  }

  // The rank with the smallest value gets the request.
  std::pair<int64_t, int64_t> Weight(const EngineModel& rank) const {
    const int64_t tokens = rank.resident_tokens() + rank.prompt_tokens();
    return {options_.plan == PrefillPlan::kBlind ? 0 : rank.prompt_tokens(), tokens};
  }

  void Place() {
    for (; next_ < arrivals_.size() && arrivals_[next_].at <= now_; ++next_) {
      EngineModel* best = nullptr;
      for (EngineModel& rank : ranks_) {
        if (rank.requests_count() >= options_.slots) continue;
        if (best == nullptr || Weight(rank) < Weight(*best)) best = &rank;
      }
      if (best == nullptr) return;
      const StepArrival& arrival = arrivals_[next_];
      best->Arrive({static_cast<int64_t>(next_), arrival.prefill, arrival.decode, arrival.priority});
    }
  }

  void SetBudgets() {
    pending_.clear();
    for (const EngineModel& rank : ranks_) pending_.push_back(rank.prompt_tokens());
    const std::optional<int64_t> piece = EqualChunk(pending_);
    for (EngineModel& rank : ranks_) {
      rank.set_token_budget(
          std::min(options_.token_budget, Decoding(rank) + piece.value_or(options_.token_budget)));
    }
  }

  // False: no rank has work.
  bool Step() {
    double longest = 0, sum = 0;
    for (EngineModel& rank : ranks_) {
      const double seconds = rank.Start().value_or(0);
      longest = std::max(longest, seconds);
      sum += seconds;
    }
    if (longest <= 0) return false;
    now_ += longest;
    ++run_.steps;
    rank_s_ += sum;
    idle_s_ += longest * options_.ranks - sum;
    for (EngineModel& rank : ranks_) {
      if (!rank.running()) continue;
      run_.tokens += rank.load().tokens;
      rank.End(ended_);
      for (const int64_t id : ended_.prefilled) run_.lives[id].prefilled = now_;
      for (const int64_t id : ended_.completed) run_.lives[id].completed = now_;
    }
    return true;
  }

  const std::vector<StepArrival>& arrivals_;
  const StepGroupOptions& options_;
  std::vector<EngineModel> ranks_;
  // Scratch of SetBudgets.
  std::vector<int64_t> pending_;
  EngineModel::Ended ended_;
  StepGroupRun run_;
  size_t next_ = 0;
  double now_ = 0, rank_s_ = 0, idle_s_ = 0;
};

}  // namespace

absl::StatusOr<StepGroupRun> RunStepGroup(const std::vector<StepArrival>& arrivals,
                                          const StepGroupOptions& options) {
  if (absl::Status status = CheckStepArrivals(arrivals); !status.ok()) return status;
  if (options.ranks < 1 || options.slots < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group of ", options.ranks, " ranks with ", options.slots, " slots"));
  }
  const auto scheduler = worker::BatchScheduler::Create("sarathi");
  if (!scheduler.ok()) return scheduler.status();
  return Group(arrivals, options, *scheduler).Run();
}

}  // namespace bfio::sim
