#include "router/core/scheduler/decision_maker.h"

#include <cstddef>
#include <limits>

#include "router/core/policy/place_in_order.h"

namespace bfio::core {

// The prompt tokens that ranks will still have to compute when a plan's step begins. The steps before a
// plan's own step are planned already. In each of them a rank computes prompts up to the level of that step's
// plan, as a worker does. Completions in these steps are not known, and none are assumed. Pure. Threads: any,
// no state.

// False when a rank computes prompts whole, or has not reported the cost of its batches. Fills `view` except
// for the ranks' free slots. O(prompts on ranks * steps in between).
bool ForecastPrefill(const GroupAccounts& accounts, const PlanSteps& steps, PrefillView& view);

namespace {

// A rank at the beginning of a step, and the requests in flight to it.
class Forecast {
 public:
  Forecast(const GroupAccounts& accounts, WorkerIndex index, PrefillRank& rank)
      : accounts_(accounts), worker_(accounts.worker(index)), rank_(rank) {
    rank.cost = *worker_.spec.cost;
    rank.prompts.clear();
    prompts_ = accounts.PromptsOn(index);
    const int64_t step = worker_.last_step + 1;
    int64_t pending = 0, context = worker_.base + worker_.active * step;
    for (const GroupAccounts::PromptOn& prompt : prompts_) {
      if (prompt.inflight) continue;
      ++pending;
      context -= prompt.tokens;
    }
    rank.decodes = std::max<int64_t>(0, worker_.active - pending);
    rank.decode_context = static_cast<double>(std::max<int64_t>(0, context));
  }

  // Advances to the beginning of step `target`, when the pool's clock is at `clock`.
  void Advance(int64_t target, int64_t clock, double step_s) {
    for (int64_t step = worker_.last_step + 1;; ++step) {
      while (next_ < prompts_.size() && prompts_[next_].first_step <= step) {
        rank_.prompts.push_back({prompts_[next_].left, prompts_[next_].tokens - prompts_[next_].left});
        ++next_;
      }
      if (step >= target) break;
      Compute(step);
    }
    // The prompts at the front have been computed.
    const size_t first = next_ - rank_.prompts.size();
    rank_.due_s.clear();
    for (size_t i = first; i < next_; ++i) {
      rank_.due_s.push_back(DueIn(prompts_[i].ttft_objective_s, clock - prompts_[i].enqueued_step, step_s));
    }
    const int64_t steps = rank_.prompts.empty() ? 0 : target - prompts_[first].planned_for;
    rank_.first_bound_for_s = static_cast<double>(std::max<int64_t>(0, steps)) * step_s;
  }

 private:
  void Compute(int64_t step) {
    const int64_t budget = worker_.prefill->token_budget;
    int64_t tokens = std::max(budget - rank_.decodes, kMinPrefillRows);
    if (const std::optional<double> level_s = accounts_.LevelAt(step)) {
      tokens = std::min(
          tokens, TokensWithin({rank_.cost, rank_.decodes, rank_.decode_context, rank_.prompts}, *level_s));
    }
    rank_.decode_context += static_cast<double>(rank_.decodes);
    ComputePrompts(tokens, rank_.prompts, [this](const PromptLeft& prompt) {
      ++rank_.decodes;
      rank_.decode_context += static_cast<double>(prompt.done + 1);
    });
  }

  const GroupAccounts& accounts_;
  const GroupAccounts::Worker& worker_;
  PrefillRank& rank_;
  std::vector<GroupAccounts::PromptOn> prompts_;
  // Index of the first of prompts_ that has not reached the rank.
  size_t next_ = 0;
};

void FillTraffic(const PromptTraffic& seen, PrefillView& view) {
  double a = 0, k1 = 0;
  const auto ranks = static_cast<double>(view.ranks.size());
  for (const PrefillRank& rank : view.ranks) {
    a += rank.cost.a_s_per_token / ranks;
    k1 += rank.cost.k1_s_per_pair / ranks;
  }
  view.traffic.step_s = seen.step_s.value;
  view.traffic.arrivals_per_s = seen.step_s.value > 0 ? seen.placed_per_step.value / seen.step_s.value : 0;
  view.traffic.mean_prompt_tokens = seen.prompt_tokens.value;
  view.traffic.mean_prefill_s = a * seen.prompt_tokens.value + k1 * seen.prompt_squares.value / 2;
  view.traffic.mean_output_tokens = seen.output_tokens.value;
}

// What all ranks report.
GroupTerms CommonTerms(const GroupAccounts& accounts) {
  GroupTerms common = accounts.worker(0).spec.terms;
  for (const GroupAccounts::Worker& worker : accounts.workers()) {
    const GroupTerms& terms = worker.spec.terms;
    common.padded = common.padded && terms.padded;
    common.captured_rows = std::max(common.captured_rows, terms.captured_rows);
    common.prompt_s = std::min(common.prompt_s, terms.prompt_s);
    common.eager_s = std::min(common.eager_s, terms.eager_s);
  }
  return common;
}

}  // namespace

bool ForecastPrefill(const GroupAccounts& accounts, const PlanSteps& steps, PrefillView& view) {
  const auto tells = [](const GroupAccounts::Worker& worker) {
    return worker.prefill.has_value() && worker.spec.cost.has_value();
  };
  if (!std::all_of(accounts.workers().begin(), accounts.workers().end(), tells)) return false;
  view.ranks.resize(accounts.workers().size());
  view.token_budget = std::numeric_limits<int64_t>::max();
  for (const GroupAccounts::Worker& worker : accounts.workers())
    view.token_budget = std::min(view.token_budget, worker.prefill->token_budget);
  for (WorkerIndex g = 0; g < accounts.num_workers(); ++g) {
    Forecast(accounts, g, view.ranks[g])
        .Advance(steps.targets[g], steps.clock, accounts.traffic().step_s.value);
  }
  view.terms = CommonTerms(accounts);
  FillTraffic(accounts.traffic(), view);
  view.traffic.lag_steps = static_cast<int32_t>(std::max<int64_t>(0, steps.step - steps.reported - 1));
  return true;
}

namespace {

// Maximum number of steps that the replay catches up at once, where the policy is not called at every step or
// slots were short for a while. Beyond that, only a part of the steps and of the requests is replayed.
constexpr int64_t kMostReplaySteps = 64;
// Steps between two measurements of the residents' mean age.
constexpr int64_t kAgeSteps = 64;

}  // namespace

std::optional<DecisionMaker::Answer> DecisionMaker::Decide(const PlanSteps& steps, Plan& plan) {
  decision_.Clear();
  BuildViews(steps);
  const int64_t slots = accounts_->free_slots();
  const bool places = pool_->AnyPlaceable() && (kind_ == GroupKind::kBarrier || slots > 0);
  int64_t left = 0;
  if (places) {
    const int64_t share = pool_->TakeShare(slots, slots_elsewhere_);
    left = PlaceAhead(steps, FirstInRoom(std::min(share, std::max(options_.window, slots))), plan);
  } else {
    free_.Reset(views_, {});
  }
  const std::optional<Answer> answer = AskPolicy(steps, left, places && pool_->placeable() > 0, plan);
  slots_short_ = left > accounts_->free_slots();
  ReplayRules(steps, static_cast<int64_t>(plan.placements.size() + decision_.assignments.size()));
  return answer;
}

int64_t DecisionMaker::FirstInRoom(int64_t window) {
  window = std::clamp<int64_t>(room_.requests, 0, window);
  if (room_.tokens == Room().tokens) return window;
  int64_t first = 0, tokens = 0;
  for (const WaitingView& view : pool_->Window(window)) {
    if ((tokens += view.prefill_tokens) > room_.tokens) break;
    ++first;
  }
  return first;
}

int64_t DecisionMaker::PlaceAhead(const PlanSteps& steps, int64_t window, Plan& plan) {
  held_.clear();
  pool_->AppendHeld(views_, held_);
  StageInput input{steps.clock,      pool_->Window(window),     held_,
                   slots_elsewhere_, options_.hold_after_steps, pool_->FirstComeWaits(steps.clock)};
  auto left = static_cast<int64_t>(input.waiting.size());
  free_.Reset(views_, admission_.active() ? ReadKv(steps, pool_->Window(left)) : KvOutlook());
  // The order of a decision; the policy gets what these stages leave.
  const struct {
    absl::Span<const WaitingView> StageInput::*places;
    Stage stage;
  } kStages[] = {
      {&StageInput::held, PlaceHeld},
      {&StageInput::waiting, PlaceAlone},
      {&StageInput::waiting, [this](auto&... of) { hold_.Place(of...); }},
  };
  for (const auto& [places, stage] : kStages) {
    stage(input, free_, decision_.assignments);
    if (decision_.assignments.empty()) continue;
    Enter(input.*places, steps, plan);
    if (places == &StageInput::held) {
      for (const Assignment& a : decision_.assignments) pool_->Remove(held_[a.waiting_index].id);
    } else {
      // The window shrinks, because admission has not tested the requests behind it.
      left -= std::ssize(decision_.assignments);
      pool_->Take(decision_.assignments, steps.clock);
      input.waiting = pool_->Window(left);
    }
    decision_.assignments.clear();
  }
  return left;
}

std::optional<DecisionMaker::Answer> DecisionMaker::AskPolicy(const PlanSteps& steps, int64_t window,
                                                              bool placeable, Plan& plan) {
  Snapshot snapshot;
  if (placeable || (steps.level && accounts_->AnyPrompt())) snapshot.prefill = ReadPrompts(steps);
  if (!placeable && snapshot.prefill == nullptr) return std::nullopt;
  snapshot.step = steps.clock;
  if (placeable) {
    const absl::Span<WaitingView> waiting = pool_->Window(window);
    pool_->FillTenants(waiting, free_, steps.clock);
    snapshot.outlook = BuildOutlook(steps, waiting);
    snapshot.waiting = admission_.chooses() ? ShowChosen(steps, waiting) : waiting;
    snapshot.pool_size = pool_->placeable();
    snapshot.first_come = pool_->FirstComeWaits(steps.clock);
    if (policy_->uses_prefixes()) {
      accounts_->ReadPrefixes(prefixes_);
      snapshot.prefixes = &prefixes_;
    }
  }
  snapshot.kv = free_.kv();
  free_.LimitSlotsToMemory(snapshot.waiting);
  views_.assign(free_.views().begin(), free_.views().end());
  snapshot.workers = views_;
  if (placeable) FollowRule(steps, snapshot);
  ++totals_->policy_calls;
  policy_->Decide(snapshot, decision_);
  totals_->policy_violations += RemoveViolations(snapshot.waiting, free_, decision_.assignments);
  if (placeable && admission_.chooses()) {
    for (Assignment& a : decision_.assignments)
      a.waiting_index = chosen_[static_cast<size_t>(a.waiting_index)];
  }
  plan.level_s = decision_.level_s;
  std::optional<Answer> answer;
  answer.emplace().stopped_early = decision_.stopped_early;
  if (placeable && !chooser_.candidates().empty()) answer->rule = snapshot.rule;
  return answer;
}

const PrefillView* DecisionMaker::ReadPrompts(const PlanSteps& steps) {
  if (StepsAlone(kind_) || !policy_->meters_prompts()) return nullptr;
  if (!ForecastPrefill(*accounts_, steps, prefill_)) return nullptr;
  prefill_.releases_only = kind_ == GroupKind::kCoupled && !accounts_->AllMetered();
  return &prefill_;
}

void DecisionMaker::BuildViews(const PlanSteps& steps) {
  views_.resize(accounts_->workers().size());
  for (size_t g = 0; g < views_.size(); ++g) {
    const GroupAccounts::Worker& w = accounts_->workers()[g];
    WorkerView& view = views_[g];
    view.active = w.placed();
    const int64_t target = steps.targets[g];
    view.load_tokens = std::max<int64_t>(0, w.base + w.inflight_base + view.active * target);
    view.free_slots = w.free_slots();
    view.free_kv_tokens = w.kv_tokens() - w.reserved_kv;
    if (!admission_.active()) view.free_kv_tokens = std::max<int64_t>(0, view.free_kv_tokens);
    view.total_kv_tokens = w.kv_tokens();
    view.max_sequence_tokens = w.spec.longest();
    view.accepts_new = w.spec.accepts_new;
    view.time_per_token = w.spec.time_per_token;
    view.time_offset = w.spec.time_offset;
    view.service_time = w.spec.service_time;
  }
}

KvOutlook DecisionMaker::ReadKv(const PlanSteps& steps, absl::Span<WaitingView> window) {
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
  if (held_.empty()) return admission_.MakeOutlook(pool_->lookahead(), kv_workers_, window, steps_of_prompt);
  looked_at_.assign(window.begin(), window.end());
  looked_at_.insert(looked_at_.end(), held_.begin(), held_.end());
  const KvOutlook kv =
      admission_.MakeOutlook(pool_->lookahead(), kv_workers_, absl::MakeSpan(looked_at_), steps_of_prompt);
  for (size_t i = 0; i < window.size(); ++i) window[i].kv_need = looked_at_[i].kv_need;
  for (size_t i = 0; i < held_.size(); ++i) held_[i].kv_need = looked_at_[window.size() + i].kv_need;
  return kv;
}

absl::Span<const WaitingView> DecisionMaker::ShowChosen(const PlanSteps& steps,
                                                        absl::Span<const WaitingView> waiting) {
  admission_.Choose(steps.clock, free_, waiting, chosen_);
  chosen_views_.clear();
  for (const int32_t i : chosen_) chosen_views_.push_back(waiting[static_cast<size_t>(i)]);
  return chosen_views_;
}

Outlook DecisionMaker::BuildOutlook(const PlanSteps& steps, absl::Span<WaitingView> waiting) {
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
  outlook_.AddWaiting(lookahead, waiting);
  return outlook_.View();
}

double DecisionMaker::LoadScale(WorkerIndex worker) const {
  const auto drift = static_cast<double>(accounts_->worker(worker).drift),
             load = static_cast<double>(free_[worker].load_tokens), known = load - drift;
  return drift == 0 || known <= 0 ? 1 : load / known;
}

void DecisionMaker::SetRules() {
  const absl::Span<const PlacementRule> rules = policy_->placement_rules();
  std::vector<PlacementRule> possible(rules.begin(), rules.end());
  if (!pool_->lookahead().predicts()) std::erase_if(possible, LooksAhead);
  // The first rule is followed until the first choice, which groups without a barrier never make.
  if (StepsAlone(kind_)) std::erase(possible, PlacementRule::kRefill);
  chooser_.SetRules(possible);
}

void DecisionMaker::FollowRule(const PlanSteps& steps, Snapshot& snapshot) {
  snapshot.rule = chooser_.rule();
  if (!LooksAhead(snapshot.rule) || std::cmp_greater(snapshot.waiting.size(), free_.free_slots())) return;
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

void DecisionMaker::ReplayRules(const PlanSteps& steps, int64_t placed) {
  if (!chooser_.chooses() || StepsAlone(kind_)) return;
  placed_since_ += placed;
  // For a coupled group only decisions with placements are certain to be in the decision log.
  const bool skips = slots_short_ || (kind_ == GroupKind::kCoupled && placed == 0);
  if (skips || steps.step == replayed_step_) return;
  // Steps count from 1 again in a new epoch.
  const int64_t passed = std::max<int64_t>(1, steps.step - replayed_step_);
  const double per_step = static_cast<double>(std::exchange(placed_since_, 0)) / static_cast<double>(passed);
  replayed_step_ = steps.step;
  if (steps.step < aged_step_ || steps.step >= aged_step_ + kAgeSteps) {
    aged_step_ = steps.step;
    mean_age_ = MeanAge(steps);
  }
  for (int64_t i = std::min(passed, kMostReplaySteps); i > 0; --i)
    chooser_.Step(pool_->lookahead(), accounts_->ended(), views_, per_step, mean_age_);
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

void DecisionMaker::Enter(absl::Span<const WaitingView> requests, const PlanSteps& steps, Plan& plan) {
  for (const Assignment& assignment : decision_.assignments) {
    const WaitingView& request = requests[static_cast<size_t>(assignment.waiting_index)];
    accounts_->Place(pool_->Spec(request.id), request.enqueued_step, assignment.worker, steps);
    plan.placements.push_back({request.id, assignment.worker, steps.clock - request.enqueued_step});
  }
}

void DecisionMaker::PlaceAll(const PlanSteps& steps, Plan& plan) {
  Enter(pool_->views().views(), steps, plan);
  pool_->Take(decision_.assignments, steps.clock);
}

void OutlookBuilder::Begin(int32_t horizon, int32_t workers) {
  horizon_ = horizon;
  load_.resize(columns() * static_cast<size_t>(workers));
  curves_.clear();
}

void OutlookBuilder::AddWorker(Lookahead& lookahead, WorkerIndex worker, absl::Span<const Resident> residents,
                               const PlanTime& time, double load_scale) {
  const absl::Span<double> load =
      absl::MakeSpan(load_).subspan(static_cast<size_t>(worker) * columns(), columns());
  lookahead.Project(residents, time, load);
  if (load_scale == 1) return;
  for (double& tokens : load) tokens *= load_scale;
}

void OutlookBuilder::AddWaiting(Lookahead& lookahead, absl::Span<WaitingView> waiting) {
  rows_.clear();
  uint64_t last_key = 0;
  int32_t last_row = -1;
  for (WaitingView& view : waiting) {
    const uint64_t key = lookahead.CurveKey(view, horizon_);
    if (last_row < 0 || key != last_key) {
      const auto [it, is_new] = rows_.try_emplace(key, static_cast<int32_t>(curves_.size() / columns()));
      if (is_new) {
        curves_.resize(curves_.size() + columns());
        lookahead.Curve(view, absl::MakeSpan(curves_).last(columns()));
      }
      last_key = key;
      last_row = it->second;
    }
    view.curve = last_row;
  }
}

}  // namespace bfio::core
