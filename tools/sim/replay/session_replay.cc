#include "tools/sim/replay/session_replay.h"

#include <algorithm>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/annotated.h"
#include "common/base/status_macros.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/place_in_order.h"
#include "tools/sim/rank/shared.h"

namespace bfio::sim {

using Placed = std::vector<std::pair<core::RequestId, core::WorkerIndex>>;

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
  Placed said;
  // Idle work G max_g T_g - sum_g T_g of the plans' own step, in tokens of a reference worker
  // (WorkerView::Time); set only when it is measured.
  double recorded_idle = 0;
  double said_idle = 0;
};

namespace {

// Maximum length of one of the two outcomes in a message.
constexpr size_t kShown = 300;
// Maximum number of steps that some ranks have reported and others have not.
constexpr size_t kMaxPartial = 64;

std::string Show(const std::string& text) {
  return text.size() <= kShown ? text : absl::StrCat(text.substr(0, kShown), "..");
}

Placed PlacedBy(const core::Plan* plan) {
  Placed placed;
  if (plan == nullptr) return placed;
  for (const core::Placement& placement : plan->placements)
    placed.emplace_back(placement.id, placement.worker);
  return placed;
}

std::string Show(const Placed& placed) {
  std::string text;
  for (const auto& [id, worker] : placed) absl::StrAppend(&text, text.empty() ? "" : " ", id, "->", worker);
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
  bool uses_prefixes() const override { return policy_->uses_prefixes(); }
  bool meters_prompts() const override {
    return meters_prompts_ || (at_hand_.recorded != nullptr && at_hand_.recorded->level_s);
  }
  void Decide(const core::Snapshot& snapshot, core::Decision& decision) override {
    // A policy that does not decide on levels is not called when no request waits.
    if (!snapshot.waiting.empty() || policy_->meters_prompts()) policy_->Decide(snapshot, decision);
    // The recorded plan is followed even if the search stopped early here.
    decision.stopped_early = false;
    std::vector<core::Assignment>& plan = decision.assignments;
    at_hand_.asked = true;
    const std::vector<core::Assignment> said = Lawful(snapshot, plan);
    for (const core::Assignment& a : said)
      at_hand_.said.emplace_back(snapshot.waiting[a.waiting_index].id, a.worker);
    Placed recorded = PlacedBy(at_hand_.recorded);
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

 private:
  // The recorded assignments as indices of the snapshot, without requests that the snapshot does not contain.
  std::vector<core::Assignment> Recorded(const core::Snapshot& snapshot) const {
    absl::flat_hash_map<core::RequestId, int32_t> index;
    for (int32_t i = 0; i < std::ssize(snapshot.waiting); ++i) index[snapshot.waiting[i].id] = i;
    std::vector<core::Assignment> follow;
    for (const auto& [id, worker] : PlacedBy(at_hand_.recorded)) {
      if (const auto it = index.find(id); it != index.end()) follow.push_back({it->second, worker});
    }
    return follow;
  }

  const std::unique_ptr<core::Policy> policy_;
  const bool meters_prompts_;
  const bool measure_;
  FollowedDecision& at_hand_;
};

}  // namespace

SessionReplay::SessionReplay(std::optional<core::PolicySetting> instead, Clock clock)
    : instead_(std::move(instead)), clock_(clock), decision_(std::make_shared<FollowedDecision>()) {}

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
  return Annotated(absl::StrCat("record ", counts_.records), status);
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
  counts_.requests_cancelled += std::holds_alternative<core::Cancel>(event) ? 1 : 0;
  counts_.requests_requeued += std::holds_alternative<core::Requeue>(event) ? 1 : 0;
  if (std::holds_alternative<core::Enqueue>(event))
    ++(logged.outcome.status.ok() ? counts_.requests_accepted : counts_.requests_refused);
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
  counts_.requests_finished += static_cast<int64_t>(report.finished.size());
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
  counts_.placements +=
      logged.outcome.plan ? static_cast<int64_t>(logged.outcome.plan->placements.size()) : 0;
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
    const core::Plan* const plan = recorded.plan ? &*recorded.plan : nullptr;
    Differ("decision", Show(PlacedBy(plan)), Show(decision_->said));
  }
}

BFIO_JSON_OF(ReplayCounts, records, decisions, answers, answers_identical, groups, epochs, steps, reports,
             requests_accepted, requests_refused, requests_requeued, requests_cancelled, requests_finished,
             placements, duration_s)

nlohmann::ordered_json ReplayJson(const ReplayedLog& log, const SessionReplay& replay) {
  const ReplayCounts& c = replay.counts();
  const record::LogHeader& header = replay.header();
  const auto microseconds = [](const Histogram& seconds) -> nlohmann::ordered_json {
    return {{"mean", seconds.mean() * 1e6},
            {"p50", seconds.Quantile(0.5) * 1e6},
            {"p99", seconds.Quantile(0.99) * 1e6},
            {"max", seconds.max() * 1e6}};
  };
  nlohmann::ordered_json json = {
      {"log", log.path},
      {"session", header.session},
      {"version", header.version},
      {"segments", log.segments},
      {"earlier_sessions", log.earlier_sessions},
      {"bytes", log.bytes},
      {"ending", log.ending},
      {"policy", header.policy.name},
      {"lookahead", header.lookahead},
      {"plan_mode", header.options.plan_mode == core::PlanMode::kLockstep ? "lockstep" : "pipelined"}};
  json.update(nlohmann::ordered_json(c));
  if (log.what_if.empty()) {
    json["identical"] = c.identical;
    json["cut_short"] = c.cut_short;
  } else {
    json["what_if"] = {{"policy", log.what_if},
                       {"asked", c.asked},
                       {"otherwise", c.otherwise},
                       {"idle_tokens_recorded", c.recorded_idle_tokens},
                       {"idle_tokens_other", c.other_idle_tokens}};
  }
  json["first_difference"] = nullptr;
  if (!c.first_difference.empty()) json["first_difference"] = c.first_difference;
  json["ok"] = !replay.Failed();
  json["avg_imbalance_tokens"] = c.steps == 0 ? 0 : c.imbalance_tokens / static_cast<double>(c.steps);
  json["idle_fraction"] = c.capacity_tokens <= 0 ? 0 : c.imbalance_tokens / c.capacity_tokens;
  json["decide_us_recorded"] = microseconds(c.recorded_decide_s);
  json["decide_us_replayed"] = microseconds(c.replayed_decide_s);
  return json;
}

}  // namespace bfio::sim
