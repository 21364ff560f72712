#include "router/core/scheduler/cluster.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::core {
namespace {

// Weight of a prompt in the mean of how many requests end while one is computed: the last 64 or so count.
constexpr double kPromptShare = 1.0 / 64;

absl::StatusOr<std::unique_ptr<Policy>> MakeRegisteredPolicy(const PolicySetting& setting) {
  return MakePolicy(setting.name, setting.options);
}

}  // namespace

Cluster::Cluster(const SchedulerOptions& options, const PolicySetting& policy, PolicyFactory factory,
                 std::unique_ptr<Lookahead> lookahead, EventObserver* observer)
    : options_(options),
      setting_(policy),
      factory_(factory ? std::move(factory) : MakeRegisteredPolicy),
      observer_(observer),
      pool_(options, std::move(lookahead)) {}

Outcome Cluster::Apply(const SchedulerEvent& event) {
  if (observer_ != nullptr) observer_->Before(event);
  Outcome outcome = std::visit(
      [this](const auto& what) {
        if constexpr (!requires { Dispatch(what); }) {
          if (Scheduler* const group = Find(what.group)) return Dispatch(what, *group);
          return Outcome{absl::NotFoundError(absl::StrCat("there is no group ", what.group))};
        } else {
          return Dispatch(what);
        }
      },
      event);
  if (observer_ != nullptr) observer_->After(*this, event, outcome);
  return outcome;
}

// --- groups ---

Outcome Cluster::Dispatch(const AddGroup& event) {
  if (event.group <= last_group_) {
    return {absl::InvalidArgumentError(
        absl::StrCat("group ", event.group, " follows group ", last_group_, "; indices must ascend"))};
  }
  absl::StatusOr<std::unique_ptr<Policy>> policy = MakePolicyFor(event.kind, setting_);
  if (!policy.ok()) return {policy.status()};
  last_group_ = event.group;
  groups_[event.group] = MakeScheduler(event.kind, options_, &pool_, *std::move(policy));
  return {};
}

Outcome Cluster::Dispatch(const RemoveGroup& event, Scheduler& group) {
  Outcome outcome;
  outcome.displaced = group.Clear();
  retired_ += group.totals();
  groups_.erase(event.group);
  UpdateClock();
  return outcome;
}

Outcome Cluster::Dispatch(const OpenEpoch& event, Scheduler& group) {
  Outcome outcome;
  // This group must not take over requests that are placed in another group.
  std::vector<EpochMember> members = event.members;
  for (EpochMember& member : members) {
    std::erase_if(member.recovered, [&](const RequestSpec& spec) { return LocationOf(spec.id).has_value(); });
  }
  outcome.displaced = group.OpenEpoch(members, event.model, event.lacks);
  UpdateClock();
  UpdateCost();
  return outcome;
}

Outcome Cluster::Dispatch(const CloseEpoch&, Scheduler& group) {
  group.CloseEpoch();
  UpdateClock();
  return {};
}

Outcome Cluster::Dispatch(const SetAcceptsNew& event, Scheduler& group) {
  if (WorkerSpec* const spec = group.Spec(event.worker)) spec->accepts_new = event.accepts_new;
  return {};
}

Outcome Cluster::Dispatch(const SetTime& event, Scheduler& group) {
  WorkerSpec* const spec = group.Spec(event.worker);
  if (spec == nullptr) return {};
  spec->time_per_token = event.time_per_token;
  spec->time_offset = event.time_offset;
  return {};
}

Outcome Cluster::Dispatch(const SetServiceTime& event, Scheduler& group) {
  if (WorkerSpec* const spec = group.Spec(event.worker)) spec->service_time = event.service_time;
  return {};
}

Outcome Cluster::Dispatch(const SetCost& event, Scheduler& group) {
  if (WorkerSpec* const spec = group.Spec(event.worker)) {
    spec->cost = event.cost;
    spec->terms = event.terms;
  }
  UpdateCost();
  return {};
}

Outcome Cluster::Dispatch(const Report& event, Scheduler& group) {
  const int64_t before = group.placed();
  Outcome outcome{group.OnReport(event.worker, event.report)};
  if (const int64_t ended = before - group.placed(); ended > 0) {
    if (group.kind() == GroupKind::kPrefill) {
      ends_ *= 1 - kPromptShare;
      prompts_ = prompts_ * (1 - kPromptShare) + static_cast<double>(ended);
    } else {
      ends_ += static_cast<double>(ended * PrefillsUnderWay());
    }
  }
  UpdateLead();
  return outcome;
}

Outcome Cluster::Dispatch(const MakePlan& event, Scheduler& group) {
  Outcome outcome;
  std::optional<DecisionMaker::Answer> answer;
  int64_t slots_elsewhere = 0;
  for (const auto& [index, other] : groups_) {
    const bool alike = (other->kind() == GroupKind::kPrefill) == (group.kind() == GroupKind::kPrefill);
    if (index != event.group && other->open() && alike) slots_elsewhere += other->slots().free;
  }
  pool_.ShowFor(event.group, group.ability());
  const Room room = group.kind() == GroupKind::kPrefill ? RoomForPrefill() : Room();
  outcome.plan = group.MakePlan(event, slots_elsewhere, room, answer);
  pool_.ShowAll();
  outcome.policy_called = answer.has_value();
  outcome.stopped_early = answer && answer->stopped_early;
  if (answer) outcome.rule = answer->rule;
  UpdateLead();
  return outcome;
}

Outcome Cluster::Dispatch(const SetPolicy& event) {
  std::vector<std::unique_ptr<Policy>> made;
  // Also checked without groups.
  if (groups_.empty()) return {factory_(event.setting).status()};
  for (const auto& [index, group] : groups_) {
    absl::StatusOr<std::unique_ptr<Policy>> policy = MakePolicyFor(group->kind(), event.setting);
    if (!policy.ok()) return {policy.status()};
    made.push_back(*std::move(policy));
  }
  setting_ = event.setting;
  auto policy = made.begin();
  for (auto& [index, group] : groups_) group->SetPolicy(std::move(*policy++));
  return {};
}

// --- requests ---

absl::Status Cluster::CheckUnknown(RequestId id) const {
  if (!Knows(id)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("request ", id, " is already known"));
}

Outcome Cluster::Dispatch(const Enqueue& event) {
  const absl::Status unknown = CheckUnknown(event.request.id);
  return {unknown.ok() ? pool_.Enqueue(event.request) : unknown};
}

Outcome Cluster::Dispatch(const Requeue& event) {
  const absl::Status unknown = CheckUnknown(event.request.id);
  if (unknown.ok()) pool_.Requeue(event.request);
  return {unknown};
}

Outcome Cluster::Dispatch(const Cancel& event) {
  Outcome outcome;
  if (pool_.Remove(event.id)) {
    outcome.cancel = CancelOutcome::kDequeued;
  } else if (const auto at = LocationOf(event.id)) {
    Find(at->group)->Drop(event.id);
    outcome.cancel = CancelOutcome::kDropped;
  }
  return outcome;
}

// --- time ---

void Cluster::UpdateClock() {
  int64_t ranks = 0;
  double kv_tokens = 0;
  for (const auto& [index, group] : groups_) {
    if (!group->open() || group->kind() == GroupKind::kPrefill) continue;
    ranks += group->num_workers();
    kv_tokens += group->KvTokens();
  }
  pool_.pool_clock().SetOpenRanks(ranks);
  if (kv_tokens > 0) pool_.wait_admission().OnMemory(kv_tokens);
  UpdateLead();
}

void Cluster::UpdateLead() {
  std::optional<int64_t> lead;
  for (const auto& [index, group] : groups_) {
    if (group->open() && group->kind() != GroupKind::kPrefill)
      lead = std::min(lead.value_or(group->Lead()), group->Lead());
  }
  if (lead) pool_.pool_clock().Lead(*lead);
}

void Cluster::UpdateCost() {
  WaitAdmission& admission = pool_.wait_admission();
  if (!admission.active()) return;
  double fixed_s = 0, per_token_s = 0;
  for (const auto& [index, group] : groups_) {
    if (!group->open()) continue;
    const Scheduler::StepCost cost = group->StepCosts();
    fixed_s += cost.fixed_s;
    per_token_s += cost.per_token_s;
  }
  if (per_token_s > 0) admission.OnCost(fixed_s / per_token_s);
}

// --- disaggregated prefill ---

absl::StatusOr<std::unique_ptr<Policy>> Cluster::MakePolicyFor(GroupKind kind,
                                                               const PolicySetting& setting) const {
  // No barrier, and each rank's work is the prompts that it does not find in its cache.
  return factory_(kind == GroupKind::kPrefill ? PolicySetting{"least_work", setting.options} : setting);
}

int64_t Cluster::PrefillsUnderWay() const {
  int64_t placed = 0;
  for (const auto& [index, group] : groups_)
    placed += group->kind() == GroupKind::kPrefill ? group->placed() : 0;
  return placed;
}

bool Cluster::TakesPrefills() const {
  Scheduler::Slots slots;
  int64_t ranks = 0;
  for (const auto& [index, group] : groups_) {
    if (group->kind() != GroupKind::kPrefill || !group->open()) continue;
    slots.total += group->slots().total;
    slots.in_use += group->slots().in_use;
    ranks += group->num_workers();
  }
  return slots.in_use == slots.total || slots.in_use > ranks ||
         pool_.for_prefill().requests + PrefillsUnderWay() < slots.in_use;
}

Room Cluster::Promised() const {
  const WaitingPool::Needing computed = pool_.for_decode();
  Room room{computed.requests, computed.tokens};
  for (const auto& [index, group] : groups_) {
    if (!group->open() || group->kind() != GroupKind::kPrefill) continue;
    room.requests += group->placed();
    room.tokens += group->HeldTokens();
  }
  return room;
}

Room Cluster::FreeRoom(int64_t& placed, int64_t& held) const {
  const Room promised = Promised();
  Room room{-promised.requests, -promised.tokens};
  for (const auto& [index, group] : groups_) {
    if (!group->open() || group->kind() == GroupKind::kPrefill) continue;
    room.requests += group->slots().free;
    room.tokens += static_cast<int64_t>(group->KvTokens()) - group->HeldTokens();
    placed += group->placed();
    held += group->HeldTokens();
  }
  return room;
}

Room Cluster::RoomForPrefill() const {
  int64_t placed = 0, held = 0;
  Room room = FreeRoom(placed, held);
  // In the time of two prompts, one under way and one that is computed and waits, seldom more requests end
  // than the mean and two standard deviations (of ends that do not depend on each other): no slot waits for a
  // prompt, and the policy can choose one for each slot.
  const double twice = prompts_ > 0 ? 2 * ends_ / prompts_ : 0;
  const double ends = std::min(twice + 2 * std::sqrt(twice), static_cast<double>(placed));
  room.requests += static_cast<int64_t>(std::ceil(ends));
  if (placed > 0)
    room.tokens += static_cast<int64_t>(ends * static_cast<double>(held) / static_cast<double>(placed));
  return room;
}

bool Cluster::DecodesSooner(const RequestSpec& request) const {
  int64_t placed = 0, held = 0;
  const Room room = FreeRoom(placed, held);
  const WaitingPool::Needing ahead = pool_.for_prefill();
  if (room.requests <= ahead.requests || room.tokens < ahead.tokens + request.prefill_tokens) return false;
  std::optional<GroupCost> fitted;
  std::vector<PromptSite> sites;
  const auto least = [&](bool decodes) {
    sites.clear();
    for (const auto& [index, group] : groups_) {
      if ((group->kind() != GroupKind::kPrefill) != decodes) continue;
      if (decodes && !group->ability().Takes(request)) continue;
      group->AppendPromptSites(request, fitted.value_or(kAssumedCost), sites);
    }
    double seconds = std::numeric_limits<double>::infinity();
    for (PromptSite& site : sites) {
      // Those that wait are computed before, on all ranks.
      site.pending += (decodes ? pool_.tokens_to_compute() - ahead.tokens : ahead.tokens) / std::ssize(sites);
      if (decodes) site.delayed += static_cast<double>(pool_.for_decode().requests);
      seconds = std::min(seconds, AddedSeconds(site));
    }
    return seconds;
  };
  const double here_s = least(true);
  if (sites.empty()) return false;
  fitted = sites.front().cost;
  const double there_s = least(false);
  return !sites.empty() && here_s < there_s;
}

// --- views ---

Scheduler* Cluster::Find(GroupIndex index) const {
  const auto it = groups_.find(index);
  return it == groups_.end() ? nullptr : it->second.get();
}

const Scheduler* Cluster::group(GroupIndex index) const {
  return Find(index);
}

std::vector<GroupIndex> Cluster::groups() const {
  std::vector<GroupIndex> indices;
  for (const auto& [index, group] : groups_) indices.push_back(index);
  return indices;
}

std::vector<GroupIndex> Cluster::DecisionOrder() const {
  struct Candidate {
    GroupIndex group;
    Scheduler::Slots slots;
  };
  std::vector<Candidate> candidates;
  for (const auto& [index, group] : groups_) {
    if (group->open()) candidates.push_back({index, group->slots()});
  }
  // a.free / a.total > b.free / b.total, without rounding.
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.slots.free * b.slots.total > b.slots.free * a.slots.total;
  });
  std::vector<GroupIndex> order;
  for (const Candidate& candidate : candidates) order.push_back(candidate.group);
  return order;
}

std::optional<Cluster::Location> Cluster::LocationOf(RequestId id) const {
  for (const auto& [index, group] : groups_) {
    if (const auto worker = group->WorkerOf(id)) return Location{index, *worker};
  }
  return std::nullopt;
}

int64_t Cluster::placed() const {
  int64_t placed = 0;
  for (const auto& [index, group] : groups_) placed += group->placed();
  return placed;
}

SchedulerTotals Cluster::totals() const {
  SchedulerTotals totals = retired_;
  for (const auto& [index, group] : groups_) totals += group->totals();
  return totals;
}

}  // namespace bfio::core
