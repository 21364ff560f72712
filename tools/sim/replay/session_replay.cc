#include "tools/sim/replay/session_replay.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::sim {
namespace {

// Maximum number of elements of a list in a message.
constexpr size_t kShown = 12;
// Maximum number of steps that some ranks have reported and others have not.
constexpr size_t kMaxPartial = 64;

std::string CodeName(int32_t code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

template <typename Pairs>
std::string Show(const Pairs& pairs) {
  std::vector<std::string> parts;
  for (const auto& [id, worker] : pairs) {
    if (parts.size() == kShown) {
      parts.push_back(absl::StrCat(".. ", pairs.size() - kShown, " more"));
      break;
    }
    parts.push_back(absl::StrCat(id, "->", worker));
  }
  return parts.empty() ? "nothing" : absl::StrJoin(parts, " ");
}

std::string ShowIds(const std::vector<core::RequestId>& ids) {
  std::vector<core::RequestId> some(ids.begin(),
                                    ids.begin() + static_cast<int64_t>(std::min(ids.size(), kShown)));
  return absl::StrCat(ids.size(), ids.empty() ? "" : ": ", absl::StrJoin(some, " "));
}

using Pairs = std::vector<std::pair<core::RequestId, core::WorkerIndex>>;

Pairs PlacementsOf(const core::Plan& plan) {
  Pairs pairs;
  for (const core::Placement& p : plan.placements) pairs.emplace_back(p.id, p.worker);
  return pairs;
}

Pairs DropsOf(const core::Plan& plan) {
  Pairs pairs;
  for (const core::Drop& d : plan.drops) pairs.emplace_back(d.id, d.worker);
  return pairs;
}

std::string Show(const std::optional<core::Plan>& plan) {
  if (!plan) return "no plan";
  return absl::StrCat(
      "step ", plan->apply_step, plan->apply_steps.empty() ? "" : "/", absl::StrJoin(plan->apply_steps, "/"),
      ": ", Show(PlacementsOf(*plan)), "; dropped: ", Show(DropsOf(*plan)), "; waited: ",
      absl::StrJoin(plan->placements, " ",
                    [](std::string* out, const core::Placement& p) { absl::StrAppend(out, p.wait_steps); }),
      plan->level_s ? absl::StrCat("; level ", *plan->level_s, " s") : "");
}

bool Same(const std::optional<core::Plan>& a, const std::optional<core::Plan>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  const auto waits = [](const core::Placement& x, const core::Placement& y) {
    return x.wait_steps == y.wait_steps;
  };
  return a->apply_step == b->apply_step && a->apply_steps == b->apply_steps && a->level_s == b->level_s &&
         PlacementsOf(*a) == PlacementsOf(*b) && DropsOf(*a) == DropsOf(*b) &&
         std::equal(a->placements.begin(), a->placements.end(), b->placements.begin(), waits);
}

}  // namespace

bool SessionReplay::Failed() const {
  if (counts_.answers_identical != counts_.answers) return true;
  return exact() && counts_.identical != counts_.decisions;
}

void SessionReplay::Differ(const std::string& what, const std::string& expected, const std::string& got) {
  if (!counts_.first_difference.empty()) return;
  const core::Scheduler* const group = cluster_ == nullptr ? nullptr : cluster_->group(group_);
  counts_.first_difference =
      absl::StrCat(what, " (record ", counts_.records, ", decision ", counts_.decisions, ", group ", group_,
                   " after step ", group == nullptr ? 0 : group->reported_step(), ", epoch ", counts_.epochs,
                   "): expected ", expected, "; got ", got);
}

void SessionReplay::Answer(bool same, const std::string& what, const std::string& expected,
                           const std::string& got) {
  ++counts_.answers;
  if (same) {
    ++counts_.answers_identical;
  } else {
    Differ(what, expected, got);
  }
}

absl::Status SessionReplay::Take(const v1::DecisionRecord& record) {
  ++counts_.records;
  absl::Status status;
  if (record.has_header()) {
    status = TakeHeader(record.header());
  } else if (record.has_state()) {
    status = TakeState(record.state());
  } else if (cluster_ == nullptr || awaiting_state_) {
    status = absl::InvalidArgumentError("an event precedes the state that it belongs to");
  } else {
    status = TakeEvent(record);
  }
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("record ", counts_.records, ": ", status.message()));
}

absl::Status SessionReplay::TakeEvent(const v1::DecisionRecord& record) {
  const core::RequestId base = header_.id_base();
  switch (record.what_case()) {
    case v1::DecisionRecord::kReport:
      return TakeReport(record.report());
    case v1::DecisionRecord::kPlan:
      return TakePlan(record.plan());
    case v1::DecisionRecord::kEnqueue:
      return TakeArrival(record.enqueue(), false);
    case v1::DecisionRecord::kRequeue:
      return TakeArrival(record.requeue(), true);
    case v1::DecisionRecord::kCancel: {
      const core::RequestId id = record::IdIn(record.cancel().id(), base);
      const auto outcome = static_cast<int32_t>(cluster_->Apply(core::Cancel{id}).cancel);
      ++counts_.cancelled;
      Answer(outcome == record.cancel().outcome(), "outcome of a cancellation",
             absl::StrCat(record.cancel().outcome()), absl::StrCat(outcome));
      return absl::OkStatus();
    }
    case v1::DecisionRecord::kAddGroup:
      return TakeGroup(record.add_group());
    case v1::DecisionRecord::kRemoveGroup:
      return TakeGroup(record.remove_group());
    case v1::DecisionRecord::kOpenEpoch:
      return TakeEpoch(record.open_epoch());
    case v1::DecisionRecord::kCloseEpoch:
      cluster_->Apply(core::CloseEpoch{record.close_epoch().group()});
      return absl::OkStatus();
    case v1::DecisionRecord::kAcceptsNew:
      cluster_->Apply(core::SetAcceptsNew{record.accepts_new().group(), record.accepts_new().rank(),
                                          record.accepts_new().accepts_new()});
      return absl::OkStatus();
    case v1::DecisionRecord::kWorkerTime: {
      BFIO_ASSIGN_OR_RETURN(const core::SchedulerEvent time, record::FromLog(record.worker_time()));
      cluster_->Apply(time);
      return absl::OkStatus();
    }
    case v1::DecisionRecord::kSetPolicy:
      return TakePolicy(record.set_policy());
    default:
      return absl::InvalidArgumentError("a record of unknown kind");
  }
}

// --- sessions and segments ---

absl::Status SessionReplay::TakeHeader(const v1::LoggedHeader& header) {
  if (awaiting_state_) return absl::InvalidArgumentError("a header where a state was expected");
  const double begin_s = static_cast<double>(header.started_unix_us()) * 1e-6;
  if (seen_header_) {
    if (header.session() != header_.session() || header.segment() != header_.segment() + 1 ||
        header.id_base() != header_.id_base()) {
      return absl::InvalidArgumentError("a header of another session");
    }
    after_s_ = std::max(counts_.duration_s, begin_s - segment_begin_s_);
    header_ = header;
    awaiting_state_ = true;
    state_.Clear();
    return absl::OkStatus();
  }
  seen_header_ = true;
  header_ = header;
  segment_begin_s_ = begin_s;
  from_beginning_ = header.segment() == 0;
  awaiting_state_ = !from_beginning_;
  return from_beginning_ ? Begin(nullptr) : absl::OkStatus();
}

absl::Status SessionReplay::Begin(const core::ClusterState* state) {
  BFIO_ASSIGN_OR_RETURN(const core::SchedulerOptions options, record::FromLog(header_.options()));
  BFIO_ASSIGN_OR_RETURN(const core::PolicySetting setting, record::FromLog(header_.policy()));
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<core::Lookahead> lookahead, core::MakeLookahead(header_.lookahead()));
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
  BFIO_RETURN_IF_ERROR(factory(setting).status());
  cluster_ = std::make_unique<core::Cluster>(options, setting, factory, std::move(lookahead));
  if (state == nullptr) return absl::OkStatus();
  counts_.groups = static_cast<int64_t>(state->groups.size());
  return cluster_->Restore(*state);
}

absl::Status SessionReplay::TakePolicy(const v1::LoggedPolicy& policy) {
  if (instead_) return absl::OkStatus();
  BFIO_ASSIGN_OR_RETURN(const core::PolicySetting setting, record::FromLog(policy));
  return cluster_->Apply(core::SetPolicy{setting}).status;
}

absl::Status SessionReplay::TakeState(const v1::LoggedState& state) {
  if (!awaiting_state_) return absl::InvalidArgumentError("a state without a header before it");
  state_.MergeFrom(state);
  if (!state.last()) return absl::OkStatus();
  awaiting_state_ = false;
  if (cluster_ != nullptr) {
    CompareState();
  } else {
    BFIO_ASSIGN_OR_RETURN(const core::ClusterState from, record::FromLog(state_, header_.id_base()));
    BFIO_RETURN_IF_ERROR(Begin(&from));
  }
  state_.Clear();
  return absl::OkStatus();
}

void SessionReplay::CompareState() {
  v1::LoggedState own;
  record::ToLog(cluster_->Save(), header_.id_base(),
                [&](const v1::DecisionRecord& part) { own.MergeFrom(part.state()); });
  // Only this counter depends on which policy is used; the rest of the state follows the recording.
  for (int g = 0; instead_ && g < std::min(own.groups_size(), state_.groups_size()); ++g) {
    own.mutable_groups(g)->mutable_totals()->set_policy_violations(
        state_.groups(g).totals().policy_violations());
  }
  // Traffic counts prompt tokens without those found in caches, and a state does not contain the caches.
  for (int g = 0; !from_beginning_ && g < std::min(own.groups_size(), state_.groups_size()); ++g)
    *own.mutable_groups(g)->mutable_traffic() = state_.groups(g).traffic();
  std::string first;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&first);
  const bool same = differencer.Compare(state_, own);
  Answer(same, absl::StrCat("state at the start of segment ", header_.segment()), "the recorded state",
         first.substr(0, first.find('\n')));
}

// --- groups and requests ---

absl::Status SessionReplay::TakeGroup(const v1::LoggedAddGroup& add) {
  BFIO_ASSIGN_OR_RETURN(const core::AddGroup event, record::FromLog(add));
  const auto code = static_cast<int32_t>(cluster_->Apply(event).status.code());
  counts_.groups += code == 0 ? 1 : 0;
  Answer(code == add.status(), absl::StrCat("status of adding group ", add.group()), CodeName(add.status()),
         CodeName(code));
  return absl::OkStatus();
}

absl::Status SessionReplay::TakeGroup(const v1::LoggedRemoveGroup& remove) {
  group_ = remove.group();
  partial_.erase(group_);
  CompareDisplaced(remove.displaced(), cluster_->Apply(core::RemoveGroup{group_}).displaced,
                   "by removing a group");
  return absl::OkStatus();
}

absl::Status SessionReplay::TakeEpoch(const v1::LoggedEpoch& epoch) {
  BFIO_ASSIGN_OR_RETURN(std::vector<core::EpochMember> members, record::FromLog(epoch, header_.id_base()));
  ++counts_.epochs;
  group_ = epoch.group();
  partial_.erase(group_);
  const core::OpenEpoch event{group_, std::move(members), epoch.model()};
  CompareDisplaced(epoch.displaced(), cluster_->Apply(event).displaced, "by a new epoch");
  return absl::OkStatus();
}

void SessionReplay::CompareDisplaced(const record::IdField& expected,
                                     const std::vector<core::RequestId>& displaced, const char* by) {
  const std::vector<core::RequestId> ids = record::IdsIn(expected, header_.id_base());
  Answer(displaced == ids, absl::StrCat("requests displaced ", by), ShowIds(ids), ShowIds(displaced));
}

absl::Status SessionReplay::TakeArrival(const v1::LoggedArrival& arrival, bool front) {
  BFIO_ASSIGN_OR_RETURN(const core::RequestSpec spec, record::FromLog(arrival.request(), header_.id_base()));
  const core::SchedulerEvent event =
      front ? core::SchedulerEvent(core::Requeue{spec}) : core::SchedulerEvent(core::Enqueue{spec});
  const auto code = static_cast<int32_t>(cluster_->Apply(event).status.code());
  ++(front ? counts_.requeued : arrival.status() == 0 ? counts_.accepted : counts_.refused);
  Answer(code == arrival.status(),
         absl::StrCat("status of the ", front ? "return" : "arrival", " of request ", spec.id),
         CodeName(arrival.status()), CodeName(code));
  return absl::OkStatus();
}

// --- steps ---

absl::Status SessionReplay::TakeReport(const v1::LoggedReport& report) {
  BFIO_RETURN_IF_ERROR(record::FromLog(report, header_.id_base(), report_));
  ++counts_.reports;
  group_ = report_.event.group;
  const auto code = static_cast<int32_t>(cluster_->Apply(report_.event).status.code());
  Answer(code == report.status(),
         absl::StrCat("status of the report of rank ", report.rank(), ", step ", report.step()),
         CodeName(report.status()), CodeName(code));
  if (code == 0) CountStep(report_.event);
  return absl::OkStatus();
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

absl::Status SessionReplay::TakePlan(const v1::LoggedPlan& logged) {
  std::optional<core::Plan> expected;
  if (!logged.none()) {
    BFIO_ASSIGN_OR_RETURN(expected, record::FromLog(logged, header_.id_base()));
  }
  // Another policy makes its own choice among its rules.
  BFIO_ASSIGN_OR_RETURN(std::optional<core::PlacementRule> rule, record::RuleFromLog(logged));
  if (instead_) rule.reset();
  group_ = logged.group();
  *decision_ = {};
  decision_->recorded = expected ? &*expected : nullptr;
  const double before = clock_();
  const core::Outcome outcome = cluster_->Apply(core::MakePlan{group_, logged.force(), rule});
  counts_.replayed_decide_s.Add(clock_() - before);
  counts_.recorded_decide_s.Add(static_cast<double>(logged.decide_ns()) * 1e-9);
  after_s_ += static_cast<double>(logged.after_us()) * 1e-6;
  counts_.duration_s = after_s_;
  counts_.placed += expected ? static_cast<int64_t>(expected->placements.size()) : 0;
  ++counts_.decisions;
  Judge(logged, expected);
  // As the recorded assignments were followed, the resulting plan must be the recorded one.
  Answer(Same(expected, outcome.plan), "plan", Show(expected), Show(outcome.plan));
  *decision_ = {};
  return absl::OkStatus();
}

void SessionReplay::Judge(const v1::LoggedPlan& logged, const std::optional<core::Plan>& expected) {
  if (instead_) {
    if (decision_->asked) {
      ++counts_.asked;
      counts_.otherwise += decision_->same_set ? 0 : 1;
      counts_.recorded_idle_tokens += decision_->recorded_idle;
      counts_.other_idle_tokens += decision_->said_idle;
    }
  } else if (decision_->identical) {
    ++counts_.identical;
  } else if (logged.stopped_early()) {
    ++counts_.cut_short;
    clock_decided_ = true;
  } else {
    counts_.last_difference = counts_.decisions;
    Differ("decision", Show(expected ? PlacementsOf(*expected) : Pairs()), Show(decision_->said));
  }
}

}  // namespace bfio::sim
