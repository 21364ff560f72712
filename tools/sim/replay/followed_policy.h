// A policy that decides, compares its decision with the recorded one, and then returns the recorded one.
//
// Purpose: a replay calls the policy of the recording, or another one, at every decision. Where the decisions
// differ, the recorded assignments and level are carried out, so that later decisions start from the recorded
// state. Threads: as Policy.
#ifndef BFIO_TOOLS_SIM_REPLAY_FOLLOWED_POLICY_H_
#define BFIO_TOOLS_SIM_REPLAY_FOLLOWED_POLICY_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/events.h"

namespace bfio::sim {

// One decision of a replay: the recorded plan and the decision of the replayed policy.
struct FollowedDecision {
  // The recorded plan; null: the router made none. Borrowed until the decision.
  const core::Plan* recorded = nullptr;
  // Whether the policy was called.
  bool asked = false;
  // Whether the assignments are the same; whether they are also in the same order, with the same level.
  bool same_set = true;
  bool identical = true;
  // The policy's assignments, without those that the scheduler would discard.
  std::vector<std::pair<core::RequestId, core::WorkerIndex>> said;
  // Idle work G max_g T_g - sum_g T_g of the plans' own step, in tokens of a reference worker
  // (WorkerView::Time); set only when it is measured.
  double recorded_idle = 0;
  double said_idle = 0;
};

class FollowedPolicy final : public core::Policy {
 public:
  // `meters_prompts`: of the recorded policy, because it determines when a policy is called. `decision`
  // receives the decision under way, of any group; it outlives this object.
  FollowedPolicy(std::unique_ptr<core::Policy> policy, bool meters_prompts, bool measure,
                 FollowedDecision* decision)
      : policy_(std::move(policy)), meters_prompts_(meters_prompts), measure_(measure), at_hand_(*decision) {}

  absl::string_view name() const override { return policy_->name(); }
  int32_t horizon() const override { return policy_->horizon(); }
  absl::Span<const core::PlacementRule> placement_rules() const override {
    return policy_->placement_rules();
  }
  bool uses_first_come_waits() const override { return policy_->uses_first_come_waits(); }
  bool uses_prefixes() const override { return policy_->uses_prefixes(); }
  bool meters_prompts() const override {
    return meters_prompts_ || (at_hand_.recorded != nullptr && at_hand_.recorded->level_s);
  }
  void Decide(const core::Snapshot& snapshot, core::Decision& decision) override;

 private:
  // The assignments of `plan` that the scheduler would carry out.
  std::vector<core::Assignment> Lawful(const core::Snapshot& snapshot,
                                       const std::vector<core::Assignment>& plan);
  // The recorded assignments as indices of the snapshot, without requests that the snapshot does not contain.
  std::vector<core::Assignment> Recorded(const core::Snapshot& snapshot) const;

  const std::unique_ptr<core::Policy> policy_;
  const bool meters_prompts_;
  const bool measure_;
  FollowedDecision& at_hand_;
  core::FreeCapacity free_;
  std::vector<char> taken_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_REPLAY_FOLLOWED_POLICY_H_
