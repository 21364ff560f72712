// Replays one recorded session through the core.
//
// Purpose: takes the records of a decision log in order, gives the events to a core::Cluster with the
// recorded policy, and compares every outcome. From the session's beginning all outcomes must be the same,
// because the core is deterministic. A replay that starts at a later segment lacks the history of policy and
// lookahead, so its decisions may differ for a while, but its counts must agree. The recorded decisions are
// followed in any case, so that one difference does not cause others. Threads: one. No I/O.
#ifndef BFIO_TOOLS_SIM_REPLAY_SESSION_REPLAY_H_
#define BFIO_TOOLS_SIM_REPLAY_SESSION_REPLAY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bfio/v1/decision_log.pb.h"
#include "common/stats/histogram.h"
#include "router/core/scheduler/cluster.h"
#include "router/record/codec.h"
#include "tools/sim/replay/followed_policy.h"

namespace bfio::sim {

struct ReplayCounts {
  int64_t records = 0;
  // Times that the policy was called or a plan made, and how many of them gave the recorded result.
  int64_t decisions = 0;
  int64_t identical = 0;
  // Decisions that differ because the router stopped the search by its clock; they are not comparable.
  int64_t cut_short = 0;
  // Number of the last decision that differed; 0: none.
  int64_t last_difference = 0;
  // Other outcomes compared (statuses, results of cancellations, displaced ids, states between segments), and
  // how many agree.
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
  // Seconds since the log's first segment, up to the last plan.
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

  // INVALID_ARGUMENT for a record that no router can have written, or a policy that does not exist in this
  // version. The replay cannot be continued after it.
  absl::Status Take(const v1::DecisionRecord& record);

  const ReplayCounts& counts() const { return counts_; }
  // The replay starts at the first record, no decision was stopped by a clock, and the recorded policy is
  // used.
  bool exact() const { return from_beginning_ && !clock_decided_ && !instead_; }
  bool from_beginning() const { return from_beginning_; }
  // Whether a decision or an answer that should be the same differs.
  bool Failed() const;
  const v1::LoggedHeader& header() const { return header_; }

 private:
  absl::Status TakeHeader(const v1::LoggedHeader& header);
  absl::Status TakeState(const v1::LoggedState& state);
  absl::Status TakeReport(const v1::LoggedReport& report);
  absl::Status TakePlan(const v1::LoggedPlan& plan);
  void Judge(const v1::LoggedPlan& logged, const std::optional<core::Plan>& expected);
  absl::Status TakeEpoch(const v1::LoggedEpoch& epoch);
  absl::Status TakeGroup(const v1::LoggedAddGroup& add);
  absl::Status TakeGroup(const v1::LoggedRemoveGroup& remove);
  void CompareDisplaced(const record::IdField& expected, const std::vector<core::RequestId>& displaced,
                        const char* by);
  absl::Status TakeArrival(const v1::LoggedArrival& arrival, bool front);
  absl::Status TakePolicy(const v1::LoggedPolicy& policy);
  absl::Status TakeEvent(const v1::DecisionRecord& record);
  absl::Status Begin(const core::ClusterState* state);
  void CompareState();

  void Answer(bool same, const std::string& what, const std::string& expected, const std::string& got);
  void Differ(const std::string& what, const std::string& expected, const std::string& got);
  void CountStep(const core::Report& report);

  const std::optional<core::PolicySetting> instead_;
  const Clock clock_;
  v1::LoggedHeader header_;
  bool seen_header_ = false;
  bool from_beginning_ = false;
  bool clock_decided_ = false;
  bool awaiting_state_ = false;
  v1::LoggedState state_;
  double segment_begin_s_ = 0;
  double after_s_ = 0;
  // Shared by the policies of all groups.
  std::unique_ptr<FollowedDecision> decision_ = std::make_unique<FollowedDecision>();
  // The group of the last event.
  core::GroupIndex group_ = 0;
  std::unique_ptr<core::Cluster> cluster_;
  record::OwnedReport report_;
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
