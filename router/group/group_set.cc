#include "router/group/group_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace bfio::router {
namespace {

// Group of a worker that was refused before it got one.
constexpr core::GroupIndex kNoGroup = -1;

}  // namespace

GroupSet::GroupSet(const GroupSetOptions& options, core::Cluster* cluster, RequestBook* book)
    : options_(options), cluster_(cluster), book_(book) {
  for (int32_t i = 0; i < options_.groups; ++i) Add(absl::StrCat(i));
}

Group* GroupSet::Add(std::string name, bool hands_over) {
  GroupOptions options = options_.group;
  if (hands_over) {
    options.kind = core::GroupKind::kPrefill;
    options.workers = 1;
  }
  options.index = next_index_++;
  options.name = std::move(name);
  groups_.push_back(Group::Make(options, cluster_, book_));
  return groups_.back().get();
}

// --- which group a worker belongs to ---

Group* GroupSet::Find(core::GroupIndex index) {
  const auto it =
      std::lower_bound(groups_.begin(), groups_.end(), index,
                       [](const auto& group, core::GroupIndex i) { return group->options().index < i; });
  return it == groups_.end() || (*it)->options().index != index ? nullptr : it->get();
}

Group* GroupSet::FindNamed(absl::string_view name) {
  const auto it = std::find_if(groups_.begin(), groups_.end(),
                               [&](const auto& group) { return group->options().name == name; });
  return it == groups_.end() ? nullptr : it->get();
}

Group* GroupSet::GroupOf(MemberId member) {
  const auto it = group_of_.find(member);
  if (it == group_of_.end()) return nullptr;
  Group* group = Find(it->second);
  return group != nullptr && group->Has(member) ? group : nullptr;
}

GroupKey GroupSet::KeyOf(const WorkerHello& hello) const {
  return {options_.group.kind == core::GroupKind::kBarrier ? hello.barrier : "", hello.model,
          hello.hands_over};
}

absl::Status GroupSet::CheckConfigured(const WorkerHello& hello) const {
  const auto begins = [&](const std::string& model) { return absl::StartsWith(hello.model, model); };
  if (options_.models.empty() || std::any_of(options_.models.begin(), options_.models.end(), begins))
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("this router serves the models ",
                                                    absl::StrJoin(options_.models, ","), " (--models), not ",
                                                    hello.model.empty() ? "an unknown one" : hello.model));
}

Group* GroupSet::FindFor(absl::string_view name, const GroupKey& key) {
  Group* const both[] = {FindNamed(name), FindNamed(NameBeside(name, key))};
  // First choice: a group that has members with this key.
  for (Group* group : both) {
    if (group != nullptr && !group->empty() && group->key() == key) return group;
  }
  for (Group* group : both) {
    if (group != nullptr && group->Takes(key)) return group;
  }
  return nullptr;
}

std::string GroupSet::NameFor(const WorkerHello& hello, const GroupKey& key) {
  if (!hello.group.empty()) return BaseName(hello.group, key);
  const auto size = [](const Group* group) { return group == nullptr ? 0 : group->size(); };
  std::optional<int32_t> lacking, fewest;
  for (int32_t i = 0; i < options_.groups; ++i) {
    const Group* group = FindFor(absl::StrCat(i), key);
    // A draining worker returns to its group, where it continues to drain.
    if (group != nullptr && group->RemembersDraining(hello.worker_id)) return absl::StrCat(i);
    if (!lacking && size(group) < options_.group.workers) lacking = i;
    if (!fewest || size(group) < size(FindFor(absl::StrCat(*fewest), key))) fewest = i;
  }
  return absl::StrCat(lacking.value_or(*fewest));
}

absl::StatusOr<Group*> GroupSet::Assign(MemberId member, const WorkerHello& hello, absl::Time now,
                                        Commands& out) {
  for (const auto& group : groups_) {
    if (group->FindWorker(hello.worker_id))
      return absl::AlreadyExistsError(absl::StrCat("worker_id ", hello.worker_id, " is attached already"));
  }
  if (absl::Status status = CheckConfigured(hello); !status.ok()) return status;
  const GroupKey key = KeyOf(hello);
  const std::string name = NameFor(hello, key);
  Group* group = FindFor(name, key);
  if (group == nullptr) {
    const std::string added = FindNamed(name) == nullptr ? name : NameBeside(name, key);
    if (groups_.size() >= kMaxGroups && !MakeWay(now, out)) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot add a group: there are ", groups_.size(),
                                                       " groups already, and none of them is ", added));
    }
    group = Add(added, key.hands_over);
  }
  // Before SetKey, so that a refused worker does not change the group for members that will return to it.
  if (absl::Status status = group->CheckHello(hello, now); !status.ok()) return status;
  group->SetKey(key, models_.NumberOf(key.model));
  if (const Group* named = FindNamed(name); named != nullptr && named != group)
    LogAssignedElsewhere(member, hello, *named, *group, out);
  return group;
}

void GroupSet::LogAssignedElsewhere(MemberId member, const WorkerHello& hello, const Group& named,
                                    const Group& group, Commands& out) const {
  const std::string waits = group.formed_once()
                                ? ""
                                : absl::StrCat("; it serves when it has ", options_.group.workers,
                                               " workers, or more workers than group ", named.options().name);
  const std::string text =
      absl::StrCat("this worker (", Describe(*group.key()), ") is assigned to group ", group.options().name,
                   ", because group ", named.options().name, " has ", Describe(*named.key()), waits);
  out.push_back(LogLine{LogLine::Level::kWarning, absl::StrCat("worker ", hello.worker_id, ": ", text)});
  out.push_back(SendNotice{member, text});
}

bool GroupSet::MakeWay(absl::Time now, Commands& out) {
  const auto it = std::find_if(groups_.begin() + options_.groups, groups_.end(),
                               [](const auto& group) { return group->empty(); });
  if (it == groups_.end()) return false;
  (*it)->GiveUp(now, out);
  retired_steps_ += (*it)->steps().totals();
  retired_distributions_ += (*it)->steps().distributions();
  cluster_->Apply(core::RemoveGroup{(*it)->options().index});
  groups_.erase(it);
  return true;
}

void GroupSet::OnHello(MemberId member, WorkerHello hello, absl::Time now, Commands& out) {
  if (Group* group = GroupOf(member); group != nullptr)
    return group->OnHello(member, std::move(hello), now, out);
  // The router has closed this member, which sent this hello before it received the close.
  if (const auto [it, first] = group_of_.try_emplace(member, kNoGroup); !first) return;
  TakeOver(hello, now, out);
  const absl::StatusOr<Group*> group = Assign(member, hello, now, out);
  if (!group.ok()) {
    out.push_back(
        LogLine{.level = LogLine::Level::kWarning,
                .text = absl::StrCat("worker ", hello.worker_id, " is refused: ", group.status().message()),
                .worker = hello.worker_id});
    out.push_back(CloseMember{member, group.status()});
    return;
  }
  group_of_[member] = (*group)->options().index;
  (*group)->OnHello(member, std::move(hello), now, out);
  OnMembers(now, out);
}

void GroupSet::OnMembers(absl::Time now, Commands& out) {
  std::vector<uint32_t> served;
  for (const auto& group : groups_) {
    if (group->carries_on()) served.push_back(group->model());
  }
  models_.SetServed(served, now);
  FormMajorities(now, out);
}

void GroupSet::FormMajorities(absl::Time now, Commands& out) {
  for (const auto& group : groups_) {
    if (!group->gathering()) continue;
    const std::string name = BaseName(group->options().name, *group->key());
    bool update = false, most = true;
    for (const auto& other : groups_) {
      if (other == group || !other->key() || BaseName(other->options().name, *other->key()) != name) continue;
      update = update || other->formed_once();
      most = most && group->size() > other->size();
    }
    // A model that is set by the router's flags needs no majority.
    if (update && (most || !options_.models.empty())) group->FormWithFewer(now, out);
  }
}

void GroupSet::TakeOver(const WorkerHello& hello, absl::Time now, Commands& out) {
  for (const auto& group : groups_) {
    if (const std::optional<MemberId> before = group->FindSuperseded(hello))
      group->Expel(*before, absl::AbortedError("it has attached over a newer connection"), now, out);
  }
}

// --- events of members ---

void GroupSet::OnAnnouncement(MemberId member, Announcement announcement, absl::Time now, Commands& out) {
  Group* const group = GroupOf(member);
  if (group == nullptr) return;
  int64_t elsewhere = 0;
  for (const auto& other : groups_) elsewhere += other.get() == group ? 0 : other->announced_bytes();
  group->OnAnnouncement(member, std::move(announcement), now, out, elsewhere);
}

void GroupSet::OnEpochReady(MemberId member, EpochReady ready, absl::Time now, Commands& out) {
  Group* group = GroupOf(member);
  if (group == nullptr) return;
  group->OnEpochReady(member, std::move(ready), now, out);
  OnMembers(now, out);
}

void GroupSet::OnReport(MemberId member, const StepReport& report, absl::Time now, Commands& out) {
  Group* group = GroupOf(member);
  if (group == nullptr) return;
  const int32_t members = group->size();
  group->OnReport(member, report, now, out);
  if (group->size() != members) OnMembers(now, out);
}

void GroupSet::OnLeave(MemberId member, absl::string_view reason, absl::Time now, Commands& out) {
  if (Group* group = GroupOf(member); group != nullptr) group->OnLeave(member, reason, now, out);
}

void GroupSet::OnGone(MemberId member, absl::Time now, Commands& out) {
  if (Group* group = GroupOf(member); group != nullptr) group->OnGone(member, now, out);
  group_of_.erase(member);
  OnMembers(now, out);
}

void GroupSet::Expel(MemberId member, const absl::Status& why, absl::Time now, Commands& out) {
  if (Group* group = GroupOf(member); group != nullptr) group->Expel(member, why, now, out);
  OnMembers(now, out);
}

absl::Status GroupSet::Drain(absl::string_view worker_id, absl::Time now, Commands& out) {
  for (const auto& group : groups_) {
    if (group->FindWorker(worker_id)) return group->Drain(worker_id, now, out);
  }
  return absl::NotFoundError(absl::StrCat("no worker ", worker_id));
}

absl::Status GroupSet::Undrain(absl::string_view worker_id, Commands& out) {
  for (const auto& group : groups_) {
    if (group->FindWorker(worker_id)) return group->Undrain(worker_id, out);
  }
  return absl::NotFoundError(absl::StrCat("no worker ", worker_id));
}

// --- time ---

void GroupSet::OnTimer(absl::Time now, Commands& out) {
  for (const auto& group : groups_) group->OnTimer(now, out);
  OnMembers(now, out);
  if (!serving()) return;
  for (const auto& group : groups_) {
    if (now >= group->give_up_at()) group->GiveUp(now, out);
  }
  models_.Expire(options_.group.restart_settle, now);
}

absl::Time GroupSet::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  // Requests that a group gives up can be placed elsewhere only while another group serves.
  const bool gives_up = serving();
  for (const auto& group : groups_) {
    next = std::min(next, group->next_deadline());
    if (gives_up) next = std::min(next, group->give_up_at());
  }
  if (gives_up) next = std::min(next, models_.NextExpiry(options_.group.restart_settle));
  return next;
}

void GroupSet::Settle(absl::Time now, Commands& out) {
  bool left = false;
  for (const auto& group : groups_) {
    const int32_t members = group->size();
    group->Settle(now, out);
    left = left || group->size() != members;
  }
  if (left) OnMembers(now, out);
}

// --- views ---

int32_t GroupSet::CountIf(bool (Group::*state)() const) const {
  return static_cast<int32_t>(
      std::count_if(groups_.begin(), groups_.end(), [&](const auto& group) { return (*group.*state)(); }));
}

bool GroupSet::ready() const {
  return CountIf(&Group::serves_clients) >= options_.groups;
}

bool GroupSet::serving() const {
  return CountIf(&Group::serves_clients) > 0;
}

bool GroupSet::complete() const {
  return CountIf(&Group::complete) >= options_.groups;
}

bool GroupSet::ExpectsAnnouncements() const {
  return CountIf(&Group::ExpectsAnnouncements) > 0;
}

std::vector<GroupCapacity> GroupSet::capacities() const {
  std::vector<GroupCapacity> all;
  for (const auto& group : groups_) {
    if (!group->capacity().sequence_tokens.empty() && !group->hands_over()) all.push_back(group->capacity());
  }
  return all;
}

std::optional<absl::Duration> GroupSet::shortest_step() const {
  std::optional<absl::Duration> shortest;
  for (const auto& group : groups_) {
    const std::optional<absl::Duration> step = group->shortest_step();
    if (step && (!shortest || *step < *shortest)) shortest = step;
  }
  return shortest;
}

uint32_t ModelBook::NumberOf(const std::string& model) {
  if (models_.size() >= kMaxModels && !models_.contains(model))
    std::erase_if(models_, [](const auto& entry) { return !entry.second.served; });
  Model& entry = models_[model];
  if (entry.number == 0) {
    entry.number = ++last_;
    ListKnown();
  }
  return entry.number;
}

bool ModelBook::Expect(const std::string& model, absl::Time now) {
  const bool fresh = !models_.contains(model);
  NumberOf(model);
  Model& entry = models_[model];
  if (!entry.served && !entry.gone) entry.unserved_since = std::min(entry.unserved_since, now);
  return fresh;
}

void ModelBook::SetServed(absl::Span<const uint32_t> served, absl::Time now) {
  bool back = false;
  for (auto& [name, model] : models_) {
    const bool was = model.served;
    model.served = std::find(served.begin(), served.end(), model.number) != served.end();
    if (model.served) {
      model.unserved_since = absl::InfiniteFuture();
      back = back || model.gone;
      model.gone = false;
    } else if (was) {
      model.unserved_since = now;
    }
  }
  if (back) ListKnown();
}

void ModelBook::Expire(absl::Duration patience, absl::Time now) {
  bool any = false;
  for (auto& [name, model] : models_) {
    if (now < model.unserved_since + patience) continue;
    model.unserved_since = absl::InfiniteFuture();
    model.gone = any = true;
  }
  if (any) ListKnown();
}

absl::Time ModelBook::NextExpiry(absl::Duration patience) const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, model] : models_) next = std::min(next, model.unserved_since + patience);
  return next;
}

void ModelBook::ListKnown() {
  known_.clear();
  for (const auto& [name, model] : models_) {
    if (!model.gone) known_[model.number] = name;
  }
}

}  // namespace bfio::router
