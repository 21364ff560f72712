// Replays one recorded session through the core. Takes the records of a decision log in order, gives the
// events to a core::Cluster with the recorded policy, and compares every outcome. The log begins with its
// session, so all outcomes must be the same, because the core is deterministic. The recorded decisions are
// followed in any case, so that one difference does not cause others. Threads: one. No I/O.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/stats/histogram.h"
#include "nlohmann/json_fwd.hpp"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/cluster.h"
#include "router/core/scheduler/events.h"
#include "router/record/codec.h"

namespace bfio::sim {

struct FollowedDecision;

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

  // Counts over all groups.
  int64_t groups = 0, epochs = 0, steps = 0, reports = 0;
  int64_t requests_accepted = 0, requests_refused = 0, requests_requeued = 0, requests_cancelled = 0,
          requests_finished = 0, placements = 0;
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
  SessionReplay(std::optional<core::PolicySetting> instead, Clock clock);

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
  std::shared_ptr<FollowedDecision> decision_;
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

// Data about the log besides its records.
struct ReplayedLog {
  std::string path;
  size_t segments = 0;
  int64_t earlier_sessions = 0;
  int64_t bytes = 0;
  // "closed"; "no_end": the router was killed, still writes, or its disk failed; "truncated" within a record,
  // up to which it was replayed; "overflow", "too_large": of the disk and of a record, so that the router
  // stopped logging; "damaged", "interrupted": replayed up to there.
  std::string ending;
  // Name of the other policy, if there is one.
  std::string what_if;
};
nlohmann::ordered_json ReplayJson(const ReplayedLog& log, const SessionReplay& replay);

}  // namespace bfio::sim
