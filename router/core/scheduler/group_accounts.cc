#include "router/core/scheduler/group_accounts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace bfio::core {

// --- membership ---

std::vector<RequestId> GroupAccounts::Open(absl::Span<const EpochMember> members) {
  // Settles the residents, whatever becomes of them; those that stay are added again below.
  for (WorkerIndex g = 0; g < num_workers(); ++g) residents_.SettleAll(g, workers_[g].last_step);
  Opening opening{std::move(residents_), {}};
  residents_ = Residents(&pool_->lookahead(), &pool_->service());
  residents_.Reset(members.size());
  std::vector<Worker> next(members.size());
  for (size_t g = 0; g < members.size(); ++g) {
    const auto index = static_cast<WorkerIndex>(g);
    next[g].spec = members[g].spec;
    Recover(index, members[g].recovered, next[g], opening.kept);
    for (const ResidentRequest& resident : members[g].resident) Keep(index, resident, next[g], opening);
  }
  std::vector<RequestId> displaced;
  for (const auto& [id, placed] : placed_) {
    if (!placed.dropped) displaced.push_back(id);
    if (!Computed(placed, workers_[placed.worker].last_step))
      caches_.Withdrawn(placed.worker, placed.spec.prefix_blocks(), 0);
  }
  std::sort(displaced.begin(), displaced.end());  // the map's order is not deterministic
  placed_ = std::move(opening.kept);
  workers_ = std::move(next);
  OpenCaches();
  levels_.clear();
  return displaced;
}

void GroupAccounts::OpenCaches() {
  std::vector<PrefixCaches::Member> members;
  for (const Worker& worker : workers_)
    members.push_back({worker.spec.member, worker.spec.prefix_cache, worker.spec.kv_tokens});
  caches_.Open(members);
}

void GroupAccounts::Recover(WorkerIndex index, absl::Span<const RequestSpec> recovered, Worker& worker,
                            PlacedMap& kept) {
  for (const RequestSpec& spec : recovered) {
    if (kept.contains(spec.id) || placed_.contains(spec.id) || pool_->Waits(spec.id)) continue;
    Placed placed;
    placed.spec = spec;
    placed.worker = index;
    placed.where = Where::kActive;
    // Its load in step 1 is prefill_tokens.
    placed.first_step = 1;
    placed.enqueued_step = pool_->pool_clock().now();
    placed.index = residents_.Add(index, spec, placed.first_step, false, spec.generated_tokens);
    ++worker.active;
    worker.base += spec.prefill_tokens - placed.first_step;
    worker.Reserve(spec);
    kept.emplace(spec.id, placed);
  }
}

void GroupAccounts::Keep(WorkerIndex index, const ResidentRequest& resident, Worker& worker,
                         Opening& opening) {
  if (const auto other = opening.kept.find(resident.id); other != opening.kept.end()) {
    // A report contained it twice, or two workers hold it.
    if (other->second.worker != index) worker.drops.push_back(resident.id);
    return;
  }
  const auto it = placed_.find(resident.id);
  // Its client has left, or it has been placed again meanwhile, perhaps on another worker.
  if (it == placed_.end() || workers_[it->second.worker].spec.member != worker.spec.member) {
    worker.drops.push_back(resident.id);
    return;
  }
  Placed placed = it->second;
  const int64_t last_step = workers_[placed.worker].last_step;
  const int64_t age = opening.before.Age(placed.worker, placed.index, last_step);
  // The load that it would have had in its old worker's next step becomes its load in step 1. A request whose
  // plan was not acknowledged starts again at s; the first report corrects the account if it had started.
  placed.first_step = placed.where == Where::kActive ? placed.first_step - last_step : 1;
  placed.planned_for = 1;
  placed.where = Where::kActive;
  placed.worker = index;
  placed.index = residents_.Add(placed.worker, placed.spec, placed.first_step, false, age);
  if (placed.dropped) {
    worker.drops.push_back(resident.id);
    residents_.Drop(placed.worker, placed.index);
  }
  ++worker.active;
  worker.base += placed.spec.prefill_tokens - placed.first_step + placed.drift;
  worker.drift += placed.drift;
  worker.Reserve(placed.spec);
  opening.kept.emplace(resident.id, placed);
  placed_.erase(it);
}

// --- requests ---

void GroupAccounts::Cancel(RequestId id) {
  Placed& placed = placed_.at(id);
  if (std::exchange(placed.dropped, true)) return;
  workers_[placed.worker].drops.push_back(id);
  residents_.Drop(placed.worker, placed.index);
}

void GroupAccounts::Place(const RequestSpec& spec, int64_t enqueued_step, WorkerIndex index,
                          const PlanSteps& steps) {
  Worker& worker = workers_[index];
  const int64_t first_step = steps.targets[index];
  Placed& placed = placed_[spec.id];
  placed.spec = spec;
  placed.worker = index;
  placed.where = Where::kInflight;
  placed.first_step = first_step;
  placed.plan = steps.numbers[index];
  placed.enqueued_step = enqueued_step;
  placed.planned_for = first_step;
  placed.index = residents_.Add(index, spec, first_step, true, spec.generated_tokens);
  if (caches_.any()) {
    const absl::Span<const uint64_t> prefix = spec.prefix_blocks();
    placed.cached_tokens = caches_.Find(index, prefix, spec.prefill_tokens);
    caches_.Placed(index, prefix, spec.prefill_tokens);
  }
  const int64_t left = LeftOf(placed);
  traffic_.Placed(left);
  cached_tokens_.Add(static_cast<double>(spec.tokens_to_compute() - left), PromptTraffic::kRequestShare);
  // A tenant is not charged for a prompt that is computed again because a worker was lost or ran out of KV.
  if (PaysPrompt(spec)) pool_->service().ChargePrompt(spec.tenant, spec.tokens_to_compute());
  worker.inflight.push_back({placed.plan, spec.id, false});
  ++worker.inflight_placements;
  worker.inflight_base += spec.prefill_tokens - first_step;
  worker.Reserve(spec);
}

void GroupAccounts::SendDrops(const PlanSteps& steps, Plan& plan) {
  for (size_t g = 0; g < workers_.size(); ++g) {
    for (const RequestId id : workers_[g].drops) {
      plan.drops.push_back({id, static_cast<WorkerIndex>(g)});
      workers_[g].inflight.push_back({steps.numbers[g], id, true});
    }
    workers_[g].drops.clear();
  }
}

// --- views ---

std::optional<WorkerIndex> GroupAccounts::WorkerOf(RequestId id) const {
  const auto it = placed_.find(id);
  if (it == placed_.end()) return std::nullopt;
  return it->second.worker;
}

int64_t GroupAccounts::free_slots() const {
  int64_t slots = 0;
  for (const Worker& worker : workers_) slots += worker.free_slots();
  return slots;
}

bool GroupAccounts::HasDrops() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.drops.empty(); });
}

// --- prompts ---

template <class Use>
void GroupAccounts::ForEachPrompt(WorkerIndex index, Use use) const {
  const Worker& worker = workers_[index];
  if (worker.prefill) {
    for (const PendingPrompt& pending : worker.prefill->prompts) {
      if (const Placed* placed = Find(index, pending.id, Where::kActive)) use(*placed, pending.tokens);
    }
  }
  for (const Worker::Inflight& entry : worker.inflight) {
    const Placed* const placed = entry.drop ? nullptr : Find(index, entry.id, Where::kInflight);
    if (placed != nullptr && placed->plan == entry.apply_step) use(*placed, placed->spec.tokens_to_compute());
  }
}

std::vector<GroupAccounts::PromptOn> GroupAccounts::PromptsOn(WorkerIndex index) const {
  std::vector<PromptOn> prompts;
  ForEachPrompt(index, [&](const Placed& placed, int64_t reported) {
    const bool inflight = placed.where == Where::kInflight;
    prompts.push_back({placed.spec.prefill_tokens, LeftOf(placed, reported),
                       inflight ? placed.first_step : workers_[index].last_step + 1, placed.planned_for,
                       inflight, placed.enqueued_step, placed.spec.ttft_objective_s});
  });
  return prompts;
}

int64_t GroupAccounts::LeftOf(const Placed& placed) const {
  const int64_t whole = placed.spec.tokens_to_compute();
  const int64_t cached = caches_.any() ? caches_.Trusted(placed.worker, placed.cached_tokens) : 0;
  return std::max<int64_t>(1, whole - std::max<int64_t>(0, cached - placed.spec.computed_tokens));
}

int64_t GroupAccounts::LeftOf(const Placed& placed, int64_t reported) const {
  const int64_t whole = placed.spec.tokens_to_compute();
  const std::optional<PrefillReport>& prefill = workers_[placed.worker].prefill;
  reported = std::min(reported, whole);
  // A metered rank reports the tokens that are left; other ranks report them as if nothing had been cached.
  if (prefill && prefill->metered && reported < whole) return reported;
  return std::max<int64_t>(1, LeftOf(placed) - (whole - reported));
}

void GroupAccounts::ReadPrefixes(PrefixView& view) const {
  view.caches = caches_.any() ? &caches_ : nullptr;
  view.output_tokens = traffic_.output_tokens.value;
  view.hit_share = cached_tokens_.value / std::max(1.0, cached_tokens_.value + traffic_.prompt_tokens.value);
  view.pending.assign(workers_.size(), 0);
  for (WorkerIndex g = 0; g < num_workers(); ++g) {
    ForEachPrompt(
        g, [&](const Placed& placed, int64_t reported) { view.pending[g] += LeftOf(placed, reported); });
  }
}

bool GroupAccounts::AnyPrompt() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.inflight_placements > 0 || (worker.prefill && !worker.prefill->prompts.empty());
  });
}

int64_t GroupAccounts::StepsOfPrompt(int64_t tokens) const {
  if (traffic_.chunk_tokens.value <= 0) return 0;
  return static_cast<int64_t>(std::ceil(static_cast<double>(tokens) / traffic_.chunk_tokens.value)) - 1;
}

void GroupAccounts::PromptSteps(WorkerIndex index, std::vector<int64_t>& steps) const {
  steps.assign(residents_.Of(index).size(), 0);
  if (!workers_[index].prefill) return;
  ForEachPrompt(index,
                [&](const Placed& placed, int64_t tokens) { steps[placed.index] = StepsOfPrompt(tokens); });
}

void GroupAccounts::TakeChanges(WorkerIndex index, KvChanges& changes) {
  changes.Clear();
  residents_.FollowChanges();
  const auto add = [&](RequestId id) {
    const auto it = placed_.find(id);
    if (it == placed_.end() || it->second.worker != index) {
      changes.gone.push_back(id);
    } else {
      changes.changed.push_back({it->second.index, 0});
    }
  };
  if (residents_.ChangedAnew(index)) {
    changes.anew = true;
    for (const Resident& resident : residents_.Of(index)) add(resident.id);
  } else {
    for (const RequestId id : residents_.Changed(index)) add(id);
  }
  residents_.ForgetChanges(index);
  ForEachPrompt(index, [&](const Placed& placed, int64_t tokens) {
    changes.changed.push_back({placed.index, StepsOfPrompt(tokens)});
  });
}

std::optional<double> GroupAccounts::LevelAt(int64_t step) const {
  std::optional<double> level_s;
  for (const PlannedLevel& level : levels_) {
    if (level.step > step) break;
    level_s = level.level_s;
  }
  return level_s;
}

void GroupAccounts::Planned(int64_t step, std::optional<double> level_s, int64_t placed) {
  traffic_.Planned(placed);
  // Level 0: decodes only.
  if (level_s) traffic_.PlannedSeconds(*level_s > 0 ? *level_s : NextStepSeconds(0));
  int64_t reported = step;
  for (const Worker& worker : workers_) reported = std::min(reported, worker.last_step);
  levels_.push_back({step, level_s});
  // The level that is in force in the first unreported step stays.
  size_t done = 0;
  while (done + 1 < levels_.size() && levels_[done + 1].step <= reported + 1) ++done;
  levels_.erase(levels_.begin(), levels_.begin() + static_cast<std::ptrdiff_t>(done));
}

double GroupAccounts::NextStepSeconds(int64_t most_prompt_tokens) const {
  double seconds = 0;
  for (const Worker& worker : workers_) {
    if (!worker.spec.cost || !worker.prefill || worker.active == 0) continue;
    int64_t left = 0;
    for (const PendingPrompt& prompt : worker.prefill->prompts) {
      const auto it = placed_.find(prompt.id);
      left += it == placed_.end() ? prompt.tokens : LeftOf(it->second, prompt.tokens);
    }
    const int64_t pending = worker.prefill->pending_tokens();
    const int64_t decodes = worker.active - std::ssize(worker.prefill->prompts);
    BatchLoad load;
    load.tokens = decodes + std::clamp<int64_t>(worker.prefill->token_budget - decodes, 0,
                                                std::min(left, most_prompt_tokens));
    load.decode_context = static_cast<double>(std::max<int64_t>(0, worker.reported_load - pending));
    seconds = std::max(seconds, worker.spec.cost->Seconds(load));
  }
  return seconds;
}

bool GroupAccounts::AllMetered() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.prefill && worker.prefill->metered; });
}

void GroupAccounts::SetLevel(std::optional<double> level_s) {
  levels_.clear();
  if (level_s) levels_.push_back({0, level_s});
}

void GroupAccounts::CountStep(int64_t placed) {
  traffic_.Planned(placed);
  const std::optional<double> level_s = LevelAt(0);
  double seconds = NextStepSeconds(level_s == 0 ? 0 : std::numeric_limits<int64_t>::max());
  if (level_s > 0) seconds = std::min(seconds, *level_s);
  if (seconds > 0) traffic_.PlannedSeconds(seconds);
}

int32_t Residents::Add(WorkerIndex worker, const RequestSpec& spec, int64_t first_step, bool inflight,
                       int64_t age) {
  Resident resident;
  resident.id = spec.id;
  resident.first_step = first_step;
  resident.prefill_tokens = spec.prefill_tokens;
  resident.generated_tokens = spec.generated_tokens;
  resident.max_new_tokens = spec.max_new_tokens;
  resident.expected_tokens = spec.predicted_output_tokens.value_or(spec.max_new_tokens);
  resident.tenant = spec.tenant;
  resident.group = lookahead_->GroupOf(spec.tenant, spec.prefill_tokens - spec.generated_tokens);
  resident.reserves_kv = spec.reserves_kv();
  resident.inflight = inflight;
  Worker& to = workers_[worker];
  to.residents.push_back(resident);
  to.notes.push_back({age, {}});
  Change(worker, spec.id);
  return static_cast<int32_t>(to.residents.size()) - 1;
}

void Residents::Start(WorkerIndex worker, int32_t index, int64_t first_step) {
  Resident& resident = workers_[worker].residents[index];
  resident.first_step = first_step;
  resident.inflight = false;
  Change(worker, resident.id);
}

int64_t Residents::AgeAfter(const Resident& resident, int64_t step) {
  // Never more than it may generate: steps of a rank without a barrier are what it states.
  const int64_t run = resident.inflight ? 0 : step + 1 - resident.first_step;
  return resident.generated_tokens +
         std::clamp<int64_t>(run, 0, std::max<int64_t>(0, resident.max_new_tokens));
}

void Residents::Hint(WorkerIndex worker, int32_t index, int64_t step, double probability) {
  Worker& w = workers_[worker];
  Resident& resident = w.residents[index];
  if (!resident.dropped)
    lookahead_->Hint(resident, w.notes[index].trail, AgeAfter(resident, step), probability);
}

void Residents::Settle(WorkerIndex worker, int32_t index, int64_t step, bool ended) {
  const Resident& resident = workers_[worker].residents[index];
  Note& note = workers_[worker].notes[index];
  const int64_t age = AgeAfter(resident, step);
  if (age <= note.age) return;
  // If max_new_tokens ends a request, its length is only known to be at least that.
  const bool by_itself = ended && age < resident.generated_tokens + resident.max_new_tokens;
  lookahead_->Observe(resident, note.trail, note.age, ended && !by_itself ? age - 1 : age, by_itself);
  service_->ChargeOutput(resident.tenant, age - note.age);
  note.age = age;
}

void Residents::SettleAll(WorkerIndex worker, int64_t step) {
  const int32_t count = static_cast<int32_t>(workers_[worker].residents.size());
  for (int32_t index = 0; index < count; ++index) Settle(worker, index, step);
}

std::optional<RequestId> Residents::Remove(WorkerIndex worker, int32_t index) {
  Worker& w = workers_[worker];
  Change(worker, w.residents[index].id);
  const bool last = static_cast<size_t>(index) + 1 == w.residents.size();
  if (!last) {
    w.residents[index] = w.residents.back();
    w.notes[index] = w.notes.back();
  }
  w.residents.pop_back();
  w.notes.pop_back();
  return last ? std::nullopt : std::optional<RequestId>(w.residents[index].id);
}

}  // namespace bfio::core
