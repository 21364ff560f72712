#include "tools/sim/replay/followed_policy.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace bfio::sim {
namespace {

double IdleWork(const core::Snapshot& snapshot, const std::vector<core::Assignment>& plan) {
  std::vector<int64_t> prompts(snapshot.workers.size());
  for (const core::Assignment& a : plan)
    prompts[a.worker] += snapshot.waiting[a.waiting_index].prefill_tokens;
  double longest = 0, sum = 0;
  for (size_t g = 0; g < prompts.size(); ++g) {
    const double time = snapshot.workers[g].Time(prompts[g]);
    longest = std::max(longest, time);
    sum += time;
  }
  return static_cast<double>(prompts.size()) * longest - sum;
}

}  // namespace

void FollowedPolicy::Decide(const core::Snapshot& snapshot, core::Decision& decision) {
  // A policy that does not decide on levels is not called when no request waits.
  if (!snapshot.waiting.empty() || policy_->meters_prompts()) policy_->Decide(snapshot, decision);
  // The recorded plan is followed even if the search stopped early here.
  decision.stopped_early = false;
  std::vector<core::Assignment>& plan = decision.assignments;
  at_hand_.asked = true;
  const std::vector<core::Assignment> said = Lawful(snapshot, plan);
  for (const core::Assignment& a : said)
    at_hand_.said.emplace_back(snapshot.waiting[a.waiting_index].id, a.worker);
  std::vector<std::pair<core::RequestId, core::WorkerIndex>> recorded;
  for (const core::Placement& p :
       at_hand_.recorded == nullptr ? std::vector<core::Placement>() : at_hand_.recorded->placements)
    recorded.emplace_back(p.id, p.worker);
  // Skips requests that the scheduler places before it calls the policy (DecisionMaker::PlaceAhead); they are
  // not in the snapshot.
  const auto shown = [&](core::RequestId id) {
    return std::any_of(snapshot.waiting.begin(), snapshot.waiting.end(),
                       [&](const core::WaitingView& request) { return request.id == id; });
  };
  while (!recorded.empty() && !shown(recorded.front().first)) recorded.erase(recorded.begin());
  // Where the decision gave no plan, the log has no level.
  std::optional<double> level_s = decision.level_s;
  if (at_hand_.recorded != nullptr) level_s = at_hand_.recorded->level_s;
  const bool same_level = std::exchange(decision.level_s, level_s) == level_s;
  const bool same_plan = at_hand_.said == recorded;
  at_hand_.identical = same_plan && same_level;
  if (!same_plan) {
    auto sorted = at_hand_.said;
    std::sort(sorted.begin(), sorted.end());
    std::sort(recorded.begin(), recorded.end());
    at_hand_.same_set = sorted == recorded;
  }
  if (same_plan && !measure_) return;
  const std::vector<core::Assignment> follow = Recorded(snapshot);
  if (measure_) {
    at_hand_.said_idle = IdleWork(snapshot, said);
    at_hand_.recorded_idle = IdleWork(snapshot, Lawful(snapshot, follow));
  }
  if (!same_plan) plan = follow;
}

std::vector<core::Assignment> FollowedPolicy::Lawful(const core::Snapshot& snapshot,
                                                     const std::vector<core::Assignment>& plan) {
  // The same rules as DecisionMaker::DiscardViolations.
  free_.Reset(snapshot);
  taken_.assign(snapshot.waiting.size(), 0);
  std::vector<core::Assignment> lawful;
  lawful.reserve(plan.size());
  for (const core::Assignment& a : plan) {
    if (a.waiting_index < 0 || a.waiting_index >= static_cast<int32_t>(taken_.size())) continue;
    if (a.worker < 0 || a.worker >= free_.workers() || taken_[a.waiting_index]) continue;
    const core::WaitingView& request = snapshot.waiting[a.waiting_index];
    if (!free_.Fits(request, a.worker)) continue;
    free_.Take(request, a.worker);
    taken_[a.waiting_index] = 1;
    lawful.push_back(a);
  }
  return lawful;
}

std::vector<core::Assignment> FollowedPolicy::Recorded(const core::Snapshot& snapshot) const {
  std::vector<core::Assignment> follow;
  if (at_hand_.recorded == nullptr || at_hand_.recorded->placements.empty()) return follow;
  absl::flat_hash_map<core::RequestId, int32_t> index;
  for (int32_t i = 0; i < static_cast<int32_t>(snapshot.waiting.size()); ++i)
    index[snapshot.waiting[i].id] = i;
  for (const core::Placement& placement : at_hand_.recorded->placements) {
    const auto it = index.find(placement.id);
    if (it != index.end()) follow.push_back({it->second, placement.worker});
  }
  return follow;
}

}  // namespace bfio::sim
