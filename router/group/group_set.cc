#include "router/group/group_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::router {
namespace {

// Of a worker that was refused before it got a group.
constexpr core::GroupIndex kNoGroup = -1;

}  // namespace

GroupSet::GroupSet(const GroupSetOptions& options, core::Cluster* cluster, RequestBook* book)
    : options_(options), cluster_(cluster), book_(book) {
  for (int32_t i = 0; i < options_.groups; ++i) Add(absl::StrCat(i));
}

Group* GroupSet::Add(std::string name) {
  GroupOptions options = options_.group;
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

Group* GroupSet::AssignUnnamed(const WorkerHello& hello) {
  Group* fewest = nullptr;
  for (int32_t i = 0; i < options_.groups; ++i) {
    Group* group = groups_[static_cast<size_t>(i)].get();
    // It goes on draining where it was.
    if (group->RemembersDraining(hello.worker_id)) return group;
    if (fewest == nullptr || group->size() < fewest->size()) fewest = group;
  }
  for (int32_t i = 0; i < options_.groups; ++i) {
    Group* group = groups_[static_cast<size_t>(i)].get();
    if (group->size() < options_.group.workers) return group;
  }
  return fewest;
}

absl::StatusOr<Group*> GroupSet::Assign(const WorkerHello& hello, absl::Time now, Commands& out) {
  for (const auto& group : groups_) {
    if (group->FindWorker(hello.worker_id))
      return absl::AlreadyExistsError(absl::StrCat("worker_id ", hello.worker_id, " is attached already"));
  }
  if (hello.group.empty()) return AssignUnnamed(hello);
  if (Group* named = FindNamed(hello.group); named != nullptr) return named;
  if (groups_.size() >= kMaxGroups && !MakeWay(now, out)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", groups_.size(), " groups already, and none is called ", hello.group));
  }
  return Add(hello.group);
}

bool GroupSet::MakeWay(absl::Time now, Commands& out) {
  const auto it = std::find_if(groups_.begin() + options_.groups, groups_.end(),
                               [](const auto& group) { return group->empty(); });
  if (it == groups_.end()) return false;
  (*it)->GiveUp(now, out);
  cluster_->Apply(core::RemoveGroup{(*it)->options().index});
  groups_.erase(it);
  return true;
}

void GroupSet::OnHello(MemberId member, WorkerHello hello, absl::Time now, Commands& out) {
  if (Group* group = GroupOf(member); group != nullptr)
    return group->OnHello(member, std::move(hello), now, out);
  // It was closed, and does not know it yet.
  if (const auto [it, first] = group_of_.try_emplace(member, kNoGroup); !first) return;
  const absl::StatusOr<Group*> group = Assign(hello, now, out);
  if (!group.ok()) {
    out.push_back(LogLine{LogLine::Level::kWarning, absl::StrCat("worker ", hello.worker_id,
                                                                 " is refused: ", group.status().message())});
    out.push_back(CloseMember{member, group.status()});
    return;
  }
  group_of_[member] = (*group)->options().index;
  (*group)->OnHello(member, std::move(hello), now, out);
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
  if (Group* group = GroupOf(member); group != nullptr)
    group->OnEpochReady(member, std::move(ready), now, out);
}

void GroupSet::OnReport(MemberId member, const StepReport& report, absl::Time now, Commands& out) {
  if (Group* group = GroupOf(member); group != nullptr) group->OnReport(member, report, now, out);
}

void GroupSet::OnLeave(MemberId member, absl::string_view reason, absl::Time now, Commands& out) {
  if (Group* group = GroupOf(member); group != nullptr) group->OnLeave(member, reason, now, out);
}

void GroupSet::OnGone(MemberId member, absl::Time now, Commands& out) {
  if (Group* group = GroupOf(member); group != nullptr) group->OnGone(member, now, out);
  group_of_.erase(member);
}

void GroupSet::Expel(MemberId member, const absl::Status& why, absl::Time now, Commands& out) {
  if (Group* group = GroupOf(member); group != nullptr) group->Expel(member, why, now, out);
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
  if (!serving()) return;
  for (const auto& group : groups_) {
    if (now >= group->give_up_at()) group->GiveUp(now, out);
  }
}

absl::Time GroupSet::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  // What a group holds is of use elsewhere only where another serves.
  const bool gives_up = serving();
  for (const auto& group : groups_) {
    next = std::min(next, group->next_deadline());
    if (gives_up) next = std::min(next, group->give_up_at());
  }
  return next;
}

// --- views ---

int32_t GroupSet::CountIf(bool (Group::*state)() const) const {
  return static_cast<int32_t>(
      std::count_if(groups_.begin(), groups_.end(), [&](const auto& group) { return (*group.*state)(); }));
}

bool GroupSet::ready() const {
  return CountIf(&Group::serving) >= options_.groups;
}

bool GroupSet::serving() const {
  return CountIf(&Group::serving) > 0;
}

bool GroupSet::complete() const {
  return CountIf(&Group::complete) >= options_.groups;
}

bool GroupSet::ExpectsAnnouncements() const {
  return CountIf(&Group::ExpectsAnnouncements) > 0;
}

GroupCapacity GroupSet::capacity() const {
  GroupCapacity all;
  for (const auto& group : groups_) {
    const GroupCapacity one = group->capacity();
    if (one.max_sequence_tokens == 0) continue;
    all.kv_tokens += one.kv_tokens;
    all.max_sequence_tokens = all.max_sequence_tokens == 0
                                  ? one.max_sequence_tokens
                                  : std::min(all.max_sequence_tokens, one.max_sequence_tokens);
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

}  // namespace bfio::router
