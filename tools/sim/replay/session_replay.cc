#include "tools/sim/replay/session_replay.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/place_in_order.h"

namespace bfio::sim {
namespace {

// Maximum length of one of the two outcomes in a message.
constexpr size_t kShown = 300;
// Maximum number of steps that some ranks have reported and others have not.
constexpr size_t kMaxPartial = 64;

std::string Show(const std::string& text) {
  return text.size() <= kShown ? text : absl::StrCat(text.substr(0, kShown), "..");
}

template <class Pairs>
std::string ShowPlacements(const Pairs& pairs) {
  std::string text;
  for (const auto& [id, worker] : pairs) absl::StrAppend(&text, text.empty() ? "" : " ", id, "->", worker);
  return text.empty() ? "nothing" : text;
}

// Of the event's group, or of that of the event before.
core::GroupIndex GroupOf(const core::SchedulerEvent& event, core::GroupIndex before) {
  return std::visit(
      [before](const auto& what) {
        if constexpr (requires { what.group; }) return what.group;
        return before;
      },
      event);
}

// The assignments of `plan` that the scheduler would carry out.
std::vector<core::Assignment> Lawful(const core::Snapshot& snapshot, std::vector<core::Assignment> plan) {
  core::FreeCapacity free;
  free.Reset(snapshot);
  core::RemoveViolations(snapshot.waiting, free, plan);
  return plan;
}

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

bool SessionReplay::Failed() const {
  if (counts_.answers_identical != counts_.answers) return true;
  return exact() && counts_.identical != counts_.decisions;
}

void SessionReplay::Differ(absl::string_view what, const std::string& expected, const std::string& got) {
  if (!counts_.first_difference.empty()) return;
  const core::Scheduler* const group = cluster_->group(group_);
  counts_.first_difference =
      absl::StrCat(what, " (record ", counts_.records, ", decision ", counts_.decisions, ", group ", group_,
                   " after step ", group == nullptr ? 0 : group->reported_step(), ", epoch ", counts_.epochs,
                   "): expected ", Show(expected), "; got ", Show(got));
}

void SessionReplay::Answer(const core::Outcome& expected, const core::Outcome& got, absl::string_view what) {
  ++counts_.answers;
  if (record::OutcomeBytes(expected) == record::OutcomeBytes(got)) {
    ++counts_.answers_identical;
  } else {
    Differ(what, record::ToJson(expected), record::ToJson(got));
  }
}

absl::Status SessionReplay::Take(const record::Record& record) {
  ++counts_.records;
  absl::Status status;
  if (const auto* header = std::get_if<record::LogHeader>(&record)) {
    status = TakeHeader(*header);
  } else if (const auto* logged = std::get_if<record::LoggedEvent>(&record)) {
    status =
        cluster_ != nullptr ? TakeEvent(*logged) : absl::InvalidArgumentError("an event precedes the header");
  }
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("record ", counts_.records, ": ", status.message()));
}

absl::Status SessionReplay::TakeHeader(const record::LogHeader& header) {
  if (cluster_ != nullptr) {
    const bool follows = header.session == header_.session && header.segment == header_.segment + 1;
    header_.segment = header.segment;
    return follows ? absl::OkStatus()
                   : absl::InvalidArgumentError("a segment that does not follow the one before");
  }
  if (header.segment > 0) return absl::InvalidArgumentError("the session's first segment is missing");
  header_ = header;
  return Begin();
}

absl::Status SessionReplay::Begin() {
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<core::Lookahead> lookahead, core::MakeLookahead(header_.lookahead));
  const auto factory = [instead = instead_, decision = decision_.get()](
                           const core::PolicySetting& of) -> absl::StatusOr<std::unique_ptr<core::Policy>> {
    const core::PolicySetting& asked = instead ? *instead : of;
    BFIO_ASSIGN_OR_RETURN(std::unique_ptr<core::Policy> made, core::MakePolicy(asked.name, asked.options));
    bool meters_prompts = made->meters_prompts();
    if (instead) {
      BFIO_ASSIGN_OR_RETURN(const std::unique_ptr<core::Policy> recorded,
                            core::MakePolicy(of.name, of.options));
      meters_prompts = recorded->meters_prompts();
    }
    return std::make_unique<FollowedPolicy>(std::move(made), meters_prompts, instead.has_value(), decision);
  };
  BFIO_RETURN_IF_ERROR(factory(header_.policy).status());
  cluster_ = std::make_unique<core::Cluster>(header_.options, header_.policy, factory, std::move(lookahead));
  return absl::OkStatus();
}

absl::Status SessionReplay::TakeEvent(const record::LoggedEvent& logged) {
  group_ = GroupOf(logged.event, group_);
  const bool sets_policy = std::holds_alternative<core::SetPolicy>(logged.event);
  if (sets_policy && instead_) return absl::OkStatus();
  const core::Outcome outcome =
      std::holds_alternative<core::MakePlan>(logged.event) ? TakePlan(logged) : cluster_->Apply(logged.event);
  if (sets_policy) return outcome.status;
  Count(logged, outcome);
  Answer(logged.outcome, outcome, record::EventName(logged.event));
  return absl::OkStatus();
}

void SessionReplay::Count(const record::LoggedEvent& logged, const core::Outcome& outcome) {
  const core::SchedulerEvent& event = logged.event;
  counts_.groups += std::holds_alternative<core::AddGroup>(event) && outcome.status.ok() ? 1 : 0;
  counts_.cancelled += std::holds_alternative<core::Cancel>(event) ? 1 : 0;
  counts_.requeued += std::holds_alternative<core::Requeue>(event) ? 1 : 0;
  if (std::holds_alternative<core::Enqueue>(event))
    ++(logged.outcome.status.ok() ? counts_.accepted : counts_.refused);
  const bool opens = std::holds_alternative<core::OpenEpoch>(event);
  counts_.epochs += opens ? 1 : 0;
  if (opens || std::holds_alternative<core::RemoveGroup>(event)) partial_.erase(group_);
  if (const auto* report = std::get_if<core::Report>(&event)) {
    ++counts_.reports;
    if (outcome.status.ok()) CountStep(*report);
  }
}

void SessionReplay::CountStep(const core::Report& event) {
  const core::StepReport& report = event.report;
  counts_.finished += static_cast<int64_t>(report.finished.size());
  std::map<int64_t, PartialStep>& steps = partial_[event.group];
  PartialStep& partial = steps[report.step];
  partial.max = std::max(partial.max, report.load_tokens);
  partial.sum += report.load_tokens;
  if (++partial.reports == cluster_->group(event.group)->num_workers()) {
    const double most = static_cast<double>(partial.max) * partial.reports;
    ++counts_.steps;
    counts_.capacity_tokens += most;
    counts_.imbalance_tokens += most - static_cast<double>(partial.sum);
    steps.erase(report.step);
  } else if (steps.size() > kMaxPartial) {
    steps.erase(steps.begin());
  }
}

core::Outcome SessionReplay::TakePlan(const record::LoggedEvent& logged) {
  auto event = std::get<core::MakePlan>(logged.event);
  // Another policy makes its own choice among its rules.
  if (!instead_) event.rule = logged.outcome.rule;
  *decision_ = {};
  decision_->recorded = logged.outcome.plan ? &*logged.outcome.plan : nullptr;
  const double before = clock_();
  core::Outcome outcome = cluster_->Apply(event);
  counts_.replayed_decide_s.Add(clock_() - before);
  counts_.recorded_decide_s.Add(static_cast<double>(logged.times.decide_ns) * 1e-9);
  counts_.duration_s = static_cast<double>(logged.times.at_us) * 1e-6;
  counts_.placed += logged.outcome.plan ? static_cast<int64_t>(logged.outcome.plan->placements.size()) : 0;
  ++counts_.decisions;
  Judge(logged.outcome);
  *decision_ = {};
  // As the recorded assignments were followed, the plan must be the recorded one; how it was found may
  // differ.
  outcome.policy_called = logged.outcome.policy_called;
  outcome.stopped_early = logged.outcome.stopped_early;
  outcome.rule = logged.outcome.rule;
  return outcome;
}

void SessionReplay::Judge(const core::Outcome& recorded) {
  if (instead_) {
    if (decision_->asked) {
      ++counts_.asked;
      counts_.otherwise += decision_->same_set ? 0 : 1;
      counts_.recorded_idle_tokens += decision_->recorded_idle;
      counts_.other_idle_tokens += decision_->said_idle;
    }
  } else if (decision_->identical) {
    ++counts_.identical;
  } else if (recorded.stopped_early) {
    ++counts_.cut_short;
    clock_decided_ = true;
  } else {
    std::vector<std::pair<core::RequestId, core::WorkerIndex>> expected;
    for (const core::Placement& p :
         recorded.plan ? recorded.plan->placements : std::vector<core::Placement>())
      expected.emplace_back(p.id, p.worker);
    Differ("decision", ShowPlacements(expected), ShowPlacements(decision_->said));
  }
}

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
  // Skips requests that the scheduler places before it calls the policy (scheduler/stages.h); they are
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
