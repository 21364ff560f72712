#include "router/core/scheduler/decision_maker.h"

#include "router/core/policy/place_in_order.h"
#include "router/core/scheduler/prefill_forecast.h"

namespace bfio::core {
namespace {

// Maximum number of steps that the replay catches up at once, where the policy is not called at every step or
// slots were short for a while. Beyond that, only a part of the steps and of the requests is replayed.
constexpr int64_t kMostReplaySteps = 64;
// Steps between two measurements of the residents' mean age.
constexpr int64_t kAgeSteps = 64;

}  // namespace

std::optional<DecisionMaker::Answer> DecisionMaker::Decide(const PlanSteps& steps, GroupKind kind,
                                                           int64_t reported_step, Plan& plan) {
  decision_.Clear();
  BuildViews(steps);
  slots_short_ = false;
  const std::optional<Answer> answer = DecideByRule(steps, kind, reported_step, plan);
  ReplayRules(steps, kind, static_cast<int64_t>(plan.placements.size() + decision_.assignments.size()));
  return answer;
}

std::optional<DecisionMaker::Answer> DecisionMaker::DecideByRule(const PlanSteps& steps, GroupKind kind,
                                                                 int64_t reported_step, Plan& plan) {
  if (!pool_->AnyPlaceable()) {
    hold_.SetHolder(std::nullopt);
    return DecideLevelOnly(steps, kind, reported_step, plan);
  }
  if (kind != GroupKind::kBarrier && free_slots_ == 0)
    return DecideLevelOnly(steps, kind, reported_step, plan);
  share_ = pool_->TakeShare(free_slots_, slots_elsewhere_);
  auto seen = static_cast<int64_t>(Window().size());
  FindHeld();
  KvOutlook kv;
  if (admission_.active()) kv = ReadKv(steps);
  PlaceHeld(steps, kv, plan);
  // The window shrinks by the requests placed here, because admission has not tested the requests behind it.
  seen -= PlaceAhead(steps, kv, plan);
  if (pool_->placeable() == 0) return DecideLevelOnly(steps, kind, reported_step, plan);
  pool_->FillTenants(Window(), free_, steps.clock);
  Snapshot snapshot;
  snapshot.step = steps.clock;
  snapshot.waiting = Window().subspan(0, static_cast<size_t>(seen));
  snapshot.outlook = BuildOutlook(steps);
  hold_.Close(snapshot.step, snapshot.waiting, free_);
  if (admission_.chooses()) snapshot.waiting = ShowChosen(steps, snapshot.waiting);
  free_.LimitSlotsToMemory(snapshot.waiting);
  views_.assign(free_.views().begin(), free_.views().end());
  snapshot.workers = views_;
  snapshot.pool_size = pool_->placeable();
  if (policy_->uses_first_come_waits()) snapshot.first_come = pool_->FirstComeWaits(snapshot.step);
  snapshot.kv = kv;
  snapshot.prefill = ReadPrompts(steps, kind, reported_step);
  if (policy_->uses_prefixes()) {
    accounts_->ReadPrefixes(prefixes_);
    snapshot.prefixes = &prefixes_;
  }
  FollowRule(steps, snapshot);
  ++totals_->policy_calls;
  policy_->Decide(snapshot, decision_);
  DiscardViolations(snapshot);
  if (admission_.chooses()) {
    for (Assignment& a : decision_.assignments)
      a.waiting_index = chosen_[static_cast<size_t>(a.waiting_index)];
  }
  slots_short_ = seen > free_slots_;
  plan.level_s = decision_.level_s;
  std::optional<Answer> answer;
  answer.emplace().stopped_early = decision_.stopped_early;
  if (!chooser_.candidates().empty()) answer->rule = snapshot.rule;
  return answer;
}

const PrefillView* DecisionMaker::ReadPrompts(const PlanSteps& steps, GroupKind kind, int64_t reported_step) {
  if (kind == GroupKind::kIndependent || !policy_->meters_prompts()) return nullptr;
  if (!ForecastPrefill(*accounts_, steps, reported_step, prefill_)) return nullptr;
  prefill_.releases_only = kind == GroupKind::kCoupled && !accounts_->AllMetered();
  return &prefill_;
}

std::optional<DecisionMaker::Answer> DecisionMaker::DecideLevelOnly(const PlanSteps& steps, GroupKind kind,
                                                                    int64_t reported_step, Plan& plan) {
  if (!steps.level || !accounts_->AnyPrompt()) return std::nullopt;
  Snapshot snapshot;
  snapshot.step = steps.clock;
  snapshot.prefill = ReadPrompts(steps, kind, reported_step);
  if (snapshot.prefill == nullptr) return std::nullopt;
  snapshot.workers = views_;
  ++totals_->policy_calls;
  policy_->Decide(snapshot, decision_);
  plan.level_s = decision_.level_s;
  return Answer{decision_.stopped_early};
}

void DecisionMaker::BuildViews(const PlanSteps& steps) {
  views_.resize(accounts_->workers().size());
  free_slots_ = 0;
  for (size_t g = 0; g < views_.size(); ++g) {
    const GroupAccounts::Worker& w = accounts_->workers()[g];
    WorkerView& view = views_[g];
    view.active = w.placed();
    const int64_t target = steps.targets[g];
    view.load_tokens = std::max<int64_t>(0, w.base + w.inflight_base + view.active * target);
    view.free_slots = w.free_slots();
    free_slots_ += view.free_slots;
    view.free_kv_tokens = w.kv_tokens() - w.reserved_kv;
    if (!admission_.active()) view.free_kv_tokens = std::max<int64_t>(0, view.free_kv_tokens);
    view.total_kv_tokens = w.kv_tokens();
    view.max_sequence_tokens = w.spec.longest();
    view.accepts_new = w.spec.accepts_new;
    view.time_per_token = w.spec.time_per_token;
    view.time_offset = w.spec.time_offset;
    view.service_time = w.spec.service_time;
    // A prompt's cost arises in one step, its request stays for a mean output: spread over that, it compares
    // with load.
    const double stays = std::max(1.0, accounts_->traffic().output_tokens.value);
    view.prefill_weight = w.prefill ? 0 : w.spec.prefill_time / stays;
  }
}

KvOutlook DecisionMaker::ReadKv(const PlanSteps& steps) {
  kv_workers_.clear();
  prompt_steps_.resize(accounts_->workers().size());
  kv_changes_.resize(accounts_->workers().size());
  const bool books = admission_.keeps_books(pool_->lookahead());
  for (WorkerIndex g = 0; g < accounts_->num_workers(); ++g) {
    const GroupAccounts::Worker& w = accounts_->worker(g);
    if (books) {
      accounts_->TakeChanges(g, kv_changes_[g]);
    } else {
      accounts_->PromptSteps(g, prompt_steps_[g]);
    }
    kv_workers_.push_back({accounts_->ResidentsOf(g),
                           {w.last_step, steps.targets[g]},
                           w.kv_tokens(),
                           views_[g].load_tokens,
                           w.drift,
                           views_[g].free_slots > 0,
                           prompt_steps_[g],
                           &kv_changes_[g]});
  }
  const auto steps_of_prompt = [this](int64_t tokens) { return accounts_->StepsOfPrompt(tokens); };
  const absl::Span<WaitingView> window = Window();
  if (held_.empty()) return admission_.MakeOutlook(pool_->lookahead(), kv_workers_, window, steps_of_prompt);
  looked_at_.assign(window.begin(), window.end());
  for (const Held& held : held_) looked_at_.push_back(held.view);
  const KvOutlook kv =
      admission_.MakeOutlook(pool_->lookahead(), kv_workers_, absl::MakeSpan(looked_at_), steps_of_prompt);
  for (size_t i = 0; i < window.size(); ++i) window[i].kv_need = looked_at_[i].kv_need;
  for (size_t i = 0; i < held_.size(); ++i) held_[i].view.kv_need = looked_at_[window.size() + i].kv_need;
  return kv;
}

absl::Span<const WaitingView> DecisionMaker::ShowChosen(const PlanSteps& steps,
                                                        absl::Span<const WaitingView> waiting) {
  admission_.Choose(steps.clock, free_, waiting, chosen_);
  chosen_views_.clear();
  for (const int32_t i : chosen_) chosen_views_.push_back(waiting[static_cast<size_t>(i)]);
  return chosen_views_;
}

Outlook DecisionMaker::BuildOutlook(const PlanSteps& steps) {
  const int32_t horizon = std::min(policy_->horizon(), kMaxHorizonSteps);
  Lookahead& lookahead = pool_->lookahead();
  if (horizon <= 0 || !lookahead.predicts()) {
    pool_->ClearCurves();
    return {};
  }
  pool_->CurvesAreSet();
  outlook_.Begin(horizon, accounts_->num_workers());
  for (WorkerIndex g = 0; g < accounts_->num_workers(); ++g) {
    const GroupAccounts::Worker& w = accounts_->worker(g);
    outlook_.AddWorker(lookahead, g, accounts_->ResidentsOf(g), {w.last_step, steps.targets[g]},
                       LoadScale(g));
  }
  outlook_.AddWaiting(lookahead, Window());
  return outlook_.View();
}

double DecisionMaker::LoadScale(WorkerIndex worker) const {
  const auto drift = static_cast<double>(accounts_->worker(worker).drift),
             load = static_cast<double>(views_[worker].load_tokens), known = load - drift;
  return drift == 0 || known <= 0 ? 1 : load / known;
}

void DecisionMaker::SetRules() {
  const absl::Span<const PlacementRule> rules = policy_->placement_rules();
  std::vector<PlacementRule> possible(rules.begin(), rules.end());
  if (!pool_->lookahead().predicts()) std::erase(possible, PlacementRule::kHorizon);
  chooser_.SetRules(possible);
}

void DecisionMaker::FollowRule(const PlanSteps& steps, Snapshot& snapshot) {
  snapshot.rule = chooser_.rule();
  if (snapshot.rule != PlacementRule::kHorizon ||
      std::cmp_greater(snapshot.waiting.size(), free_.free_slots())) {
    return;
  }
  Lookahead& lookahead = pool_->lookahead();
  far_.Begin(accounts_->num_workers());
  for (WorkerIndex g = 0; g < accounts_->num_workers(); ++g) {
    const GroupAccounts::Worker& w = accounts_->worker(g);
    // Changes with the residents, unless a request was replaced by one with the same prompt and start; then
    // the row is stale for at most FarOutlookBuilder::kRefreshSteps.
    const int64_t version = w.base + w.inflight_base + (int64_t{w.placed()} << 48);
    far_.AddWorker(lookahead,
                   {accounts_->ResidentsOf(g), {w.last_step, steps.targets[g]}, version, LoadScale(g)});
  }
  far_.AddWaiting(lookahead, snapshot.waiting);
  snapshot.far = far_.View();
}

void DecisionMaker::ReplayRules(const PlanSteps& steps, GroupKind kind, int64_t placed) {
  if (!chooser_.chooses() || kind == GroupKind::kIndependent) return;
  placed_since_ += placed;
  // For a coupled group only decisions with placements are certain to be in the decision log.
  const bool skips = slots_short_ || (kind == GroupKind::kCoupled && placed == 0);
  if (skips || steps.step == replayed_step_) return;
  // Steps count from 1 again in a new epoch.
  const int64_t passed = std::max<int64_t>(1, steps.step - replayed_step_);
  const double per_step = static_cast<double>(std::exchange(placed_since_, 0)) / static_cast<double>(passed);
  replayed_step_ = steps.step;
  if (steps.step < aged_step_ || steps.step >= aged_step_ + kAgeSteps) {
    aged_step_ = steps.step;
    mean_age_ = MeanAge(steps);
  }
  for (int64_t i = std::min(passed, kMostReplaySteps); i > 0; --i) {
    chooser_.Step(pool_->lookahead(), accounts_->ended(), views_, per_step, mean_age_);
  }
}

double DecisionMaker::MeanAge(const PlanSteps& steps) const {
  double ages = 0, residents = 0;
  for (WorkerIndex g = 0; g < accounts_->num_workers(); ++g) {
    for (const Resident& resident : accounts_->ResidentsOf(g)) {
      ages += static_cast<double>(
          ProgressOf(resident, {accounts_->worker(g).last_step, steps.targets[g]}).plan_age);
      residents += 1;
    }
  }
  return residents > 0 ? ages / residents : 0;
}

void DecisionMaker::FindHeld() {
  held_.clear();
  for (WorkerIndex g = 0; g < accounts_->num_workers(); ++g) {
    if (views_[g].free_slots <= 0) continue;
    looked_at_.clear();
    pool_->AppendWaitingFor(g, views_[g].free_slots, looked_at_);
    for (const WaitingView& view : looked_at_) held_.push_back({view, g});
  }
  std::stable_sort(held_.begin(), held_.end(),
                   [](const Held& a, const Held& b) { return Precedes(a.view, b.view); });
}

void DecisionMaker::PlaceHeld(const PlanSteps& steps, const KvOutlook& kv, Plan& plan) {
  closed_ = kNoWorker;
  if (held_.empty()) return;
  free_.Reset(views_, kv);
  const absl::Span<const WaitingView> waiting = Window();
  const int64_t slots = free_.free_slots() + slots_elsewhere_;
  fitting_.clear();
  for (size_t i = 0; i < waiting.size() && std::cmp_less(fitting_.size(), slots); ++i) {
    if (free_.FitsSomewhere(waiting[i])) fitting_.push_back(i);
  }
  waits_.assign(views_.size(), 0);
  bool placed = false;
  for (const Held& held : held_) {
    const int64_t left = free_.free_slots() + slots_elsewhere_;
    const bool deferred =
        left == 0 || (std::cmp_greater_equal(fitting_.size(), left) &&
                      !Precedes(held.view, waiting[fitting_[static_cast<size_t>(left) - 1]]));
    if (waits_[held.worker] || deferred) {
      waits_[held.worker] = 1;
    } else if (free_.Fits(held.view, held.worker)) {
      PlaceOne(held, steps, plan);
      placed = true;
    } else {
      waits_[held.worker] = 1;
      const bool waited = steps.clock - held.view.enqueued_step >= options_.hold_after_steps;
      if (closed_ == kNoWorker && waited && free_[held.worker].free_slots > 0 &&
          free_[held.worker].CouldHold(held.view.kv_reserve_tokens)) {
        closed_ = held.worker;
      }
    }
  }
  if (placed) BuildViews(steps);
}

void DecisionMaker::PlaceOne(const Held& held, const PlanSteps& steps, Plan& plan) {
  const WaitingView& view = held.view;
  free_.Take(view, held.worker);
  if (view.runs_alone) free_.LimitSlots(held.worker, 0);
  if (admission_.active()) admission_.Take(view.kv_need, held.worker);
  accounts_->Place(pool_->SpecForRank(view.id), view.enqueued_step, held.worker, steps);
  plan.placements.push_back({view.id, held.worker, steps.clock - view.enqueued_step});
  pool_->TakeForRank(view.id);
}

void DecisionMaker::ResetFree(const KvOutlook& kv) {
  free_.Reset(views_, kv);
  if (closed_ != kNoWorker) free_.LimitSlots(closed_, 0);
}

int64_t DecisionMaker::PlaceAhead(const PlanSteps& steps, const KvOutlook& kv, Plan& plan) {
  ResetFree(kv);
  const absl::Span<const WaitingView> waiting = Window();
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (!waiting[i].runs_alone) continue;
    const WorkerIndex worker = Emptiest(waiting[i]);
    if (worker == kNoWorker) continue;
    free_.Take(waiting[i], worker);
    free_.LimitSlots(worker, 0);
    decision_.assignments.push_back({static_cast<int32_t>(i), worker});
  }
  if (const auto served = hold_.Serve(waiting, free_)) decision_.assignments.push_back(*served);
  const auto placed = static_cast<int64_t>(decision_.assignments.size());
  if (placed == 0) return 0;
  if (admission_.active()) {
    for (const Assignment& a : decision_.assignments)
      admission_.Take(waiting[a.waiting_index].kv_need, a.worker);
  }
  PlaceAll(steps, plan);
  decision_.Clear();
  BuildViews(steps);
  ResetFree(kv);
  return placed;
}

WorkerIndex DecisionMaker::Emptiest(const WaitingView& request) const {
  return LeastKey(free_, request, [](const WorkerView& worker) { return worker.active; });
}

void DecisionMaker::DiscardViolations(const Snapshot& snapshot) {
  // A plan that overfills a worker or contains a request twice would corrupt all accounts.
  taken_.assign(static_cast<size_t>(pool_->placeable()), 0);
  const auto bad = [&](const Assignment& a) {
    const auto seen = static_cast<int64_t>(snapshot.waiting.size());
    if (a.waiting_index < 0 || a.waiting_index >= seen || taken_[a.waiting_index]) return true;
    if (a.worker < 0 || a.worker >= accounts_->num_workers()) return true;
    const WaitingView& request = snapshot.waiting[a.waiting_index];
    if (!free_.Fits(request, a.worker)) return true;
    free_.Take(request, a.worker);
    taken_[a.waiting_index] = 1;
    return false;
  };
  std::vector<Assignment>& assignments = decision_.assignments;
  const auto end = std::remove_if(assignments.begin(), assignments.end(), bad);
  totals_->policy_violations += assignments.end() - end;
  assignments.erase(end, assignments.end());
}

void DecisionMaker::PlaceAll(const PlanSteps& steps, Plan& plan) {
  const absl::Span<const WaitingView> waiting = pool_->views().views();
  for (const Assignment& assignment : decision_.assignments) {
    const WaitingView& request = waiting[static_cast<size_t>(assignment.waiting_index)];
    accounts_->Place(pool_->views().Spec(request.id), request.enqueued_step, assignment.worker, steps);
    plan.placements.push_back({request.id, assignment.worker, steps.clock - request.enqueued_step});
  }
  pool_->Take(decision_.assignments, steps.clock);
}

}  // namespace bfio::core
