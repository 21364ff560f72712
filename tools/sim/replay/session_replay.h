// Replays one recorded session through the core. Takes the records of a decision log in order, gives the
// events to a core::Cluster with the recorded policy, and compares every outcome. The log begins with its
// session, so all outcomes must be the same, because the core is deterministic. The recorded decisions are
// followed in any case, so that one difference does not cause others. Threads: one. No I/O.
#ifndef BFIO_TOOLS_SIM_REPLAY_SESSION_REPLAY_H_
#define BFIO_TOOLS_SIM_REPLAY_SESSION_REPLAY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/stats/histogram.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/cluster.h"
#include "router/core/scheduler/events.h"
#include "router/record/codec.h"

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

// Decides, compares its decision with the recorded one, and returns the recorded one, so that later decisions
// start from the recorded state. Threads: as Policy.
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
  // The recorded assignments as indices of the snapshot, without requests that the snapshot does not contain.
  std::vector<core::Assignment> Recorded(const core::Snapshot& snapshot) const;

  const std::unique_ptr<core::Policy> policy_;
  const bool meters_prompts_;
  const bool measure_;
  FollowedDecision& at_hand_;
};

struct ReplayCounts {
  int64_t records = 0;
  // Times that the policy was called or a plan made, and how many of them gave the recorded result.
  int64_t decisions = 0;
  int64_t identical = 0;
  // Decisions that differ because the router stopped the search by its clock; they are not comparable.
  int64_t cut_short = 0;
  // Outcomes compared (statuses, results of cancellations, displaced ids, plans), and how many agree.
  int64_t answers = 0;
  int64_t answers_identical = 0;
  // A description of the first difference, with step and record.
  std::string first_difference;

  int64_t groups = 0;
  int64_t epochs = 0;
  // Counts over all groups.
  int64_t steps = 0;
  int64_t reports = 0;
  int64_t accepted = 0;
  int64_t refused = 0;
  int64_t requeued = 0;
  int64_t cancelled = 0;
  int64_t finished = 0;
  int64_t placed = 0;
  // Sums over steps, in tokens: G * max - sum of the loads, and G * max.
  double imbalance_tokens = 0;
  double capacity_tokens = 0;
  // Seconds from the session's start to the last plan.
  double duration_s = 0;
  // Duration of MakePlan, in seconds.
  Histogram recorded_decide_s;
  Histogram replayed_decide_s;
  // With another policy: decisions that it made, those in which it differs from the recording, and idle work
  // of the plans' own steps, in tokens.
  int64_t asked = 0;
  int64_t otherwise = 0;
  double recorded_idle_tokens = 0;
  double other_idle_tokens = 0;
};

class SessionReplay {
 public:
  // Reads a clock, in seconds, for replayed_decide_s.
  using Clock = double (*)();

  // `instead`: a policy to use in place of the recorded ones.
  SessionReplay(std::optional<core::PolicySetting> instead, Clock clock)
      : instead_(std::move(instead)), clock_(clock) {}

  // INVALID_ARGUMENT for a record that no router can have written here, or a policy that does not exist in
  // this version. The replay cannot be continued after it.
  absl::Status Take(const record::Record& record);

  const ReplayCounts& counts() const { return counts_; }
  // No decision was stopped by a clock, and the recorded policy is used.
  bool exact() const { return !clock_decided_ && !instead_; }
  // Whether a decision or an answer that should be the same differs.
  bool Failed() const;
  const record::LogHeader& header() const { return header_; }

 private:
  absl::Status TakeHeader(const record::LogHeader& header);
  absl::Status TakeEvent(const record::LoggedEvent& logged);
  core::Outcome TakePlan(const record::LoggedEvent& logged);
  void Judge(const core::Outcome& recorded);
  void Count(const record::LoggedEvent& logged, const core::Outcome& outcome);
  absl::Status Begin();

  void Answer(const core::Outcome& expected, const core::Outcome& got, absl::string_view what);
  void Differ(absl::string_view what, const std::string& expected, const std::string& got);
  void CountStep(const core::Report& report);

  const std::optional<core::PolicySetting> instead_;
  const Clock clock_;
  record::LogHeader header_;
  bool clock_decided_ = false;
  // Shared by the policies of all groups.
  std::unique_ptr<FollowedDecision> decision_ = std::make_unique<FollowedDecision>();
  // The group of the last event.
  core::GroupIndex group_ = 0;
  std::unique_ptr<core::Cluster> cluster_;
  struct PartialStep {
    int32_t reports = 0;
    int64_t max = 0;
    int64_t sum = 0;
  };
  // By group, and step of its epoch.
  std::map<core::GroupIndex, std::map<int64_t, PartialStep>> partial_;
  ReplayCounts counts_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_REPLAY_SESSION_REPLAY_H_
