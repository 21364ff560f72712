#include "router/core/choice/rule_chooser.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "router/core/policy/baselines/baselines.h"
#include "router/core/policy/bf_io_auto/bf_io_auto.h"

namespace bfio::core {
namespace {

// Steps between two choices. Few choices suffice, because means over many stays change slowly.
constexpr int64_t kChooseEvery = 64;
static_assert(kChooseEvery % RuleChooser::kWatchEvery == 0);
// Largest age of a request at the start of a replay, steps.
constexpr int64_t kOldest = 32768;

}  // namespace

absl::string_view PlacementRuleName(PlacementRule rule) {
  switch (rule) {
    case PlacementRule::kHeadroom:
      return "headroom";
    case PlacementRule::kHorizon:
      return "horizon";
    case PlacementRule::kCounts:
      return "counts";
  }
  return "unknown";
}

void RuleChooser::SetRules(absl::Span<const PlacementRule> rules) {
  candidates_.clear();
  for (const PlacementRule rule : rules) candidates_.push_back({rule});
  rule_ = rules.empty() ? PlacementRule::kHeadroom : rules.front();
  obeys_ = false;
  Restart();
}

void RuleChooser::Obey(PlacementRule rule) {
  const bool known = std::any_of(candidates_.begin(), candidates_.end(),
                                 [rule](const Candidate& candidate) { return candidate.rule == rule; });
  if (!known) return;
  obeys_ = true;
  switches_ += rule == rule_ ? 0 : 1;
  rule_ = rule;
}

void RuleChooser::Restart() {
  groups_.clear();
  watched_groups_.clear();
  sums_.assign(candidates_.size(), 0);
  watched_sums_.assign(watched_.size(), 0);
  counted_ = owed_ = seen_requests_ = 0;
  steps_ = seen_steps_ = 0;
}

void RuleChooser::Step(Lookahead& lookahead, const EndedRequests& ended, absl::Span<const WorkerView> workers,
                       double placed, double mean_age) {
  if (!chooses()) return;
  if (workers.size() != workers_) {
    workers_ = workers.size();
    Restart();
  }
  ++seen_steps_;
  seen_requests_ += placed;
  empty_.assign(workers.begin(),
                workers.begin() + static_cast<int64_t>(std::min(workers.size(), kMostWorkers)));
  for (WorkerView& view : empty_) {
    view.free_slots += view.active;
    view.free_kv_tokens = view.total_kv_tokens = WorkerView().total_kv_tokens;
    view.load_tokens = view.active = 0;
    view.accepts_new = true;
  }
  const double share = static_cast<double>(empty_.size()) / static_cast<double>(workers.size());
  owed_ += share * placed;
  if (groups_.empty()) {
    owed_ = 0;
    if (ended.size() < kLeastEnded) return;
    BeginReplay(ended);
  }
  ReplayStep(lookahead, ended, mean_age);
  if (steps_ % kChooseEvery == 0) Choose();
}

void RuleChooser::BeginReplay(const EndedRequests& ended) {
  for (const Candidate& candidate : candidates_) {
    groups_.emplace_back(std::make_unique<BfIoAutoPolicy>(), candidate.rule, empty_);
  }
  watched_groups_.emplace_back(Fcfs(), PlacementRule(), empty_);
  watched_groups_.emplace_back(LeastRequests(), PlacementRule(), empty_);
  int64_t longest = 0;
  for (size_t i = 0; i < ended.size(); ++i) longest = std::max(longest, ended[i].output_tokens);
  const double rate = seen_requests_ / static_cast<double>(seen_steps_) * static_cast<double>(empty_.size()) /
                      static_cast<double>(workers_);
  double owed = 0;
  for (int64_t age = std::min(longest, kOldest); age > 0; --age) {
    for (owed += rate; owed >= 1; owed -= 1) {
      const EndedRequest& request = Draw(ended);
      if (request.output_tokens <= age) continue;
      for (ReplayedGroup& group : groups_) group.Begin(request, age);
      for (ReplayedGroup& group : watched_groups_) group.Begin(request, age);
    }
  }
}

void RuleChooser::ReplayStep(Lookahead& lookahead, const EndedRequests& ended, double mean_age) {
  ReplayedStep& step = latest_[static_cast<size_t>(steps_ % kWatchEvery)];
  step.arrivals.clear();
  for (; owed_ >= 1; owed_ -= 1) step.arrivals.push_back(Draw(ended));
  stay_ = std::max({1.0, ended.mean_stay(), 2 * mean_age});
  step.counts = static_cast<double>(++steps_) > kSettleStays * stay_;
  step.keep = 1 - 1 / (1 + kMemoryStays * stay_);
  if (step.counts) counted_ = step.keep * counted_ + 1;
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].SetWorkers(empty_);
    const double time = groups_[i].Step(lookahead, step.arrivals);
    if (step.counts) sums_[i] = step.keep * sums_[i] + time;
  }
  if (steps_ % kWatchEvery == 0) ReplayWatched(lookahead);
}

void RuleChooser::ReplayWatched(Lookahead& lookahead) {
  for (size_t i = 0; i < watched_groups_.size(); ++i) {
    watched_groups_[i].SetWorkers(empty_);
    for (const ReplayedStep& step : latest_) {
      const double time = watched_groups_[i].Step(lookahead, step.arrivals);
      if (step.counts) watched_sums_[i] = step.keep * watched_sums_[i] + time;
    }
  }
}

void RuleChooser::Choose() {
  if (counted_ == 0 || static_cast<double>(steps_) < (kSettleStays + kLeastStays) * stay_) return;
  for (size_t i = 0; i < candidates_.size(); ++i) candidates_[i].time = sums_[i] / counted_;
  for (size_t i = 0; i < watched_.size(); ++i) watched_[i].time = watched_sums_[i] / counted_;
  const auto by_time = [](const Candidate& a, const Candidate& b) { return a.time < b.time; };
  const Candidate& best = *std::min_element(candidates_.begin(), candidates_.end(), by_time);
  const Candidate& now =
      *std::find_if(candidates_.begin(), candidates_.end(),
                    [this](const Candidate& candidate) { return candidate.rule == rule_; });
  if (best.time >= (1 - kHysteresis) * now.time) return;
  rule_ = best.rule;
  ++switches_;
}

double RuleChooser::TimeOf(PlacementRule rule) const {
  for (const Candidate& candidate : candidates_) {
    if (candidate.rule == rule) return candidate.time;
  }
  return 0;
}

std::string DescribeChoice(const RuleChooser& chooser, PlacementRule before) {
  const std::string rule(PlacementRuleName(chooser.rule()));
  if (!chooser.measured()) return rule;
  return absl::StrFormat("%s: its steps are %.1f %% shorter than those of %s over the last %d steps", rule,
                         100 * (1 - 1 / chooser.StepRatio(before)), PlacementRuleName(before),
                         chooser.counted_steps());
}

}  // namespace bfio::core
