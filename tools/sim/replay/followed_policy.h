// A policy that decides, is compared with what was decided, and then follows that.
//
// Purpose: a replay asks the policy of the recording, or another one, at every decision, and still walks the
// recorded way: where the two part, the recorded assignments and level are carried out, so that the state
// that later decisions see is the recorded one. Threads: as Policy.
#ifndef BFIO_TOOLS_SIM_REPLAY_FOLLOWED_POLICY_H_
#define BFIO_TOOLS_SIM_REPLAY_FOLLOWED_POLICY_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/events.h"
#include "router/core/shadow/plan_value.h"

namespace bfio::sim {

// One decision of a replay: what was recorded, and what the policy said.
struct FollowedDecision {
  // The plan that was recorded; null: none came of it. Borrowed until the decision.
  const core::Plan* recorded = nullptr;
  // The policy was asked.
  bool asked = false;
  // The same assignments; the same in the same order, and the same level.
  bool same_set = true;
  bool identical = true;
  // What the policy said, without what the scheduler would have thrown out.
  std::vector<std::pair<core::RequestId, core::WorkerIndex>> said;
  // Idle work of the plans' own step, tokens (plan_value.h); only where the policy measures it.
  double recorded_idle = 0;
  double said_idle = 0;
};

class FollowedPolicy final : public core::Policy {
 public:
  // `meters_prompts`: of the recorded policy, since it decides when a policy is asked. `decision` is the one
  // at hand, whichever group it is for; it outlives this.
  FollowedPolicy(std::unique_ptr<core::Policy> policy, bool meters_prompts, bool measure,
                 FollowedDecision* decision)
      : policy_(std::move(policy)), meters_prompts_(meters_prompts), measure_(measure), at_hand_(*decision) {}

  absl::string_view name() const override { return policy_->name(); }
  int32_t horizon() const override { return policy_->horizon(); }
  bool uses_first_come_waits() const override { return policy_->uses_first_come_waits(); }
  bool meters_prompts() const override {
    return meters_prompts_ || (at_hand_.recorded != nullptr && at_hand_.recorded->level_s);
  }
  void Decide(const core::Snapshot& snapshot, core::Decision& decision) override;

 private:
  // Those that the scheduler would carry out.
  std::vector<core::Assignment> Lawful(const core::Snapshot& snapshot,
                                       const std::vector<core::Assignment>& plan);
  // The recorded assignments as indices of the snapshot; what it does not show is left out.
  std::vector<core::Assignment> Recorded(const core::Snapshot& snapshot) const;

  const std::unique_ptr<core::Policy> policy_;
  const bool meters_prompts_;
  const bool measure_;
  FollowedDecision& at_hand_;
  core::PlanMeter meter_{1};
  core::FreeCapacity free_;
  std::vector<char> taken_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_REPLAY_FOLLOWED_POLICY_H_
