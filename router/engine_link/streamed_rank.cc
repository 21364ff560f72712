#include "router/engine_link/streamed_rank.h"

#include <algorithm>

#include "common/cost/prompt_work.h"

namespace bfio::router {
namespace {

// Weight of a step in the mean of step time.
constexpr double kStepWeight = 0.1;
// Tokens that arrive within this share of a usual step after the last ones may belong to the same step.
constexpr double kLateShare = 0.5;

}  // namespace

// --- events ---

void StreamedRank::OnEpoch(const EpochOffer& offer, absl::Time now, Output& out) {
  EngineRank::OnEpoch(offer, now, out);
  last_tokens_at_ = absl::InfinitePast();
}

void StreamedRank::Begin(Call& call, const EngineCall& from, absl::Time now) {
  // The last prompt token is always computed, because it yields the first output token.
  call.prompt_left = from.kv_from_elsewhere() ? 1 : call.prompt_tokens;
  call.heard_at = now;
  call.heard_report = token_reports_;
  // The present step has begun without this call.
  call.first_step = token_steps_ + (calls_.empty() ? 1 : 2);
  Await(call);
}

void StreamedRank::OnTokens(CallNumber number, EngineTokens from, absl::Time now, Output& out) {
  Call* const call = Find(number);
  if (call == nullptr || (from.ids.empty() && from.message == nullptr)) return;
  // A message without tokens may come before the engine has looked the prompt up in its cache.
  if (!from.ids.empty() && call->generated == 0 && call->tokens.empty()) {
    call->cached = from.cached_prompt_tokens;
    call->prompt_left = std::max(std::min<int64_t>(1, call->prompt_left), call->prompt_left - *call->cached);
  }
  Worked(now);
  if (!call->tokens.empty() && !from.ids.empty() && open()) EndStep(now, out);
  call->heard_at = now;
  call->tokens.insert(call->tokens.end(), from.ids.begin(), from.ids.end());
  if (from.message != nullptr) call->messages.push_back(std::move(from.message));
  Await(*call);
  first_token_at_ = std::min(first_token_at_, now);
  AfterTokens(now, out);
}

void StreamedRank::OnEnd(Call& call, absl::Time now, Output& out) {
  Await(call);
  first_token_at_ = std::min(first_token_at_, now);
  AfterTokens(now, out);
}

void StreamedRank::OnStep(const EngineStep& step, absl::Time now, Output& out) {
  heard_at_ = now;
  token_budget_ = step.token_budget.value_or(token_budget_);
  if (std::exchange(heard_step_, step.step) == step.step) return;
  worked_at_ = now;
  if (step.decodes > 0 || step.prompt_tokens > 0) on_trial_ = false;
  bool tokens_come = step.decodes > 0 && AnyDecodes();
  for (const EngineStep::Prompt& prompt : step.prompts) {
    Call* const call = Find(prompt.name.call);
    // The engine's report may arrive after the refusal.
    if (call == nullptr || call->refused) continue;
    call->heard_at = now;
    call->heard_report = token_reports_;
    call->prompt_left = prompt.left;
    call->computed = prompt.left == 0;
    Await(*call);
    tokens_come = tokens_come || call->computed;
  }
  decodes_ = step.decodes;
  decode_context_ = step.decode_context;
  prompt_tokens_ += step.prompt_tokens;
  if (options_.barrier != nullptr) options_.barrier->cost.Add(options_.number, step.batch(), step.took);
  if (open() && !tokens_come) EndStep(now, out);
}

std::optional<int64_t> StreamedRank::Allotment() const {
  if (!level_s_ || step_ - level_step_ >= kLevelSteps || options_.barrier == nullptr) return std::nullopt;
  const std::optional<GroupCost>& cost = options_.barrier->cost.cost();
  if (!cost) return std::nullopt;
  std::vector<PromptLeft> prompts;
  for (const auto& [number, call] : calls_) {
    if (IsPrompt(call)) prompts.push_back({call.prompt_left, call.prompt_tokens - call.prompt_left});
  }
  // Stands for prompts that the engine gets in the meantime; the same level applies to them.
  prompts.push_back({token_budget_, 0});
  return TokensWithin({cost->batch, decodes_, static_cast<double>(decode_context_), prompts}, *level_s_);
}

void StreamedRank::OnLoad(std::optional<EngineLoad> load, absl::Time now, Output& out) {
  const int64_t others = load_.others();
  // The engine may compute other clients' requests first.
  TakeLoad(std::move(load), now);
  const bool quiet_step = load_.works() && !calls_.empty() && now - last_report_at_ >= kQuietStep;
  if ((load_.others() != others || quiet_step || LoadIsNew()) && open() && !Hangs(now)) EndStep(now, out);
}

// --- what is inferred ---

void StreamedRank::Await(Call& call) {
  const int64_t generated = call.generated + static_cast<int64_t>(call.tokens.size());
  const bool begun = call.generated > 0 || call.computed;
  // The end of the call follows the last token at once, and belongs to the same step.
  const bool awaited = !call.finished && (generated >= call.max_new_tokens || (begun && call.tokens.empty()));
  awaited_ += int64_t{awaited} - int64_t{std::exchange(call.awaited, awaited)};
}

bool StreamedRank::AnyDecodes() const {
  return std::any_of(calls_.begin(), calls_.end(),
                     [](const auto& entry) { return entry.second.generated > 0; });
}

int64_t StreamedRank::LongestPrompt() const {
  return std::max(own_prompt_, options_.barrier == nullptr ? 0 : options_.barrier->prompts.longest());
}

void StreamedRank::OnCallsChanged() {
  own_prompt_ = 0;
  for (const auto& [number, call] : calls_) {
    if (IsPrompt(call)) own_prompt_ = std::max(own_prompt_, call.prompt_tokens);
  }
  if (options_.barrier != nullptr) options_.barrier->prompts.Set(options_.number, own_prompt_);
}

absl::Duration StreamedRank::LongestQuiet() const {
  return std::max(EngineRank::LongestQuiet(), absl::Seconds(LongestPrompt()) / kSlowestPrefill);
}

bool StreamedRank::Lost(const Call& call, absl::Time now) const {
  if (!call.awaited || token_reports_ - call.heard_report < kSilentSteps) return false;
  const absl::Duration quiet = now - std::max(call.heard_at, load_.complete_at());
  const absl::Duration longest =
      std::max(longest_quiet_, absl::Seconds(call.prompt_tokens + call.generated) / kSlowestPrefill);
  return quiet >= (load_.last() ? 1 : kQuietWithoutLoads) * longest;
}

void StreamedRank::AfterTokens(absl::Time now, Output& out) {
  if (open() && awaited_ == 0) EndStep(now, out);
}

bool StreamedRank::Late(absl::Time now) const {
  // No request has had tokens in both, and it is too early for the next step.
  if (std::min(first_token_at_, now) - last_tokens_at_ >= kLateShare * usual_step_) return false;
  return std::none_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    return !entry.second.tokens.empty() && entry.second.token_report == token_reports_;
  });
}

// --- steps ---

void StreamedRank::EndStep(absl::Time now, Output& out) {
  StepReport report = BeginReport(step_ + 1);
  report.prefill.emplace();
  const bool follows = Follows(now);
  report.prefill->token_budget = follows ? token_budget_ : options_.token_budget;
  report.prefill->metered = follows && options_.barrier != nullptr;
  report.prefill_tokens = std::exchange(prompt_tokens_, 0);
  const bool any_tokens = std::any_of(calls_.begin(), calls_.end(),
                                      [](const auto& entry) { return !entry.second.tokens.empty(); });
  const bool stepped = any_tokens && !Late(now);
  BatchLoad batch;
  if (stepped && options_.barrier != nullptr) batch = TakeBatch(follows);
  if (stepped) ++token_reports_;
  std::vector<CallNumber> silent;
  report.tokens.reserve(calls_.size());
  report.token_ids.reserve(calls_.size());
  for (auto& [number, call] : calls_) {
    report.load_tokens += call.prompt_tokens + call.generated;
    const bool told = !call.messages.empty();
    if (told) report.messages.push_back({report.tokens.size(), std::exchange(call.messages, {})});
    if (told || !call.tokens.empty()) {
      report.tokens.push_back({call.id, static_cast<uint32_t>(call.tokens.size())});
      report.token_ids.insert(report.token_ids.end(), call.tokens.begin(), call.tokens.end());
      call.generated += static_cast<int64_t>(call.tokens.size());
      if (!call.tokens.empty()) call.token_report = call.heard_report = token_reports_;
      call.tokens.clear();
      if (call.cached) {
        const int64_t cached = std::min(*std::exchange(call.cached, std::nullopt), call.prompt_tokens);
        report.cached.push_back({call.id, cached});
        report.prefix_cache_queries += call.prompt_tokens;
      }
    }
    Await(call);
    if (stepped && Lost(call, now)) silent.push_back(number);
    if (call.finished) {
      report.finished.push_back({call.id, *call.finished, std::nullopt});
    } else if (call.generated == 0) {
      report.prefill->prompts.push_back({call.id, std::max<int64_t>(1, call.prompt_left)});
    }
  }
  const size_t ended = report.finished.size();
  const bool idle = ended == calls_.size();
  if (stepped) {
    const absl::Time at = std::min(first_token_at_, now);
    std::optional<absl::Duration> took;
    if (last_tokens_at_ != absl::InfinitePast()) {
      took = at - last_tokens_at_;
      usual_step_ =
          usual_step_ == absl::ZeroDuration() ? *took : usual_step_ + kStepWeight * (*took - usual_step_);
    }
    if (options_.barrier != nullptr && took && !follows)
      options_.barrier->cost.Add(options_.number, batch, *took);
    last_tokens_at_ = at;
  }
  // The next step of a rank that becomes idle begins when it gets work, not now.
  if (any_tokens && idle) last_tokens_at_ = absl::InfinitePast();
  if (any_tokens) credit_.Ended(static_cast<int64_t>(ended));
  if (stepped) credit_.Stepped();
  report.extra_slots = on_trial_ ? 1 - options_.slots : Credit() - static_cast<int32_t>(load_.others());
  first_token_at_ = absl::InfiniteFuture();
  SendReport(std::move(report), now, out);
  if (options_.barrier != nullptr) {
    if (stepped) options_.barrier->watch.OnStep(options_.number, AnyDecodes());
    if (idle) options_.barrier->watch.OnIdle(options_.number);
  }
  for (const CallNumber number : silent) {
    out.cancel.push_back(number);
    OnFailed(number, absl::UnavailableError("the engine has stopped sending output of the request"), now,
             out);
  }
}

int32_t StreamedRank::Credit() const {
  if (usual_step_ <= absl::ZeroDuration()) return 0;
  return credit_.Of(options_.slots, absl::FDivDuration(round_trip_, usual_step_));
}

BatchLoad StreamedRank::TakeBatch(bool reported) {
  ++token_steps_;
  BatchLoad batch;
  if (reported) return batch;
  for (const auto& [number, call] : calls_) {
    if (call.generated > 0) batch.AddDecode(call.prompt_tokens + call.generated);
  }
  int64_t budget = options_.token_budget - batch.tokens;
  int32_t slots = options_.slots;
  for (auto& [number, call] : calls_) {
    if (call.refused) continue;
    if (slots-- == 0) break;
    if (call.generated > 0) continue;
    int64_t chunk = call.prompt_left;
    if (call.tokens.empty()) {
      if (token_steps_ < call.first_step) continue;
      // The chunk with the last prompt token would have yielded the first output token.
      chunk = std::clamp<int64_t>(budget, 0, std::max<int64_t>(0, chunk - 1));
    }
    batch.AddPrefill(chunk, call.prompt_tokens - call.prompt_left);
    call.prompt_left -= chunk;
    budget -= chunk;
  }
  return batch;
}

absl::Time StreamedRank::StepDeadline() const {
  // The step's other tokens are gathered for a while after its first.
  if (first_token_at_ != absl::InfiniteFuture())
    return first_token_at_ + std::clamp(kGatherShare * usual_step_, kShortestGather, kLongestGather);
  // Tokens will come by themselves, or nothing is under way.
  if ((AnyDecodes() && LongestPrompt() == 0) || (calls_.empty() && !owed_)) return absl::InfiniteFuture();
  // While prompts are computed, no token shows a step: one is assumed every kQuietStep, until the engine has
  // been quiet for too long.
  const absl::Time next = last_report_at_ + kQuietStep;
  return InEngine() == 0 || next < worked_at_ + LongestQuiet() ? next : absl::InfiniteFuture();
}

}  // namespace bfio::router
