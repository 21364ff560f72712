#include "router/engine_link/engine_rank.h"

#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "common/base/retry_delay.h"
#include "common/cost/prompt_work.h"
#include "router/requests/not_tried.h"

namespace bfio::router {
namespace {

// Weight of a step in the means of step time and of requests that ended.
constexpr double kStepWeight = 0.1, kEndedWeight = 1.0 / 64;
// Tokens that arrive within this share of a usual step after the last ones may belong to the same step.
constexpr double kLateShare = 0.5;

FinishReason ReasonOf(EngineFinish finish) {
  return finish == EngineFinish::kStop ? FinishReason::kStop : FinishReason::kLength;
}

}  // namespace

EngineRank::EngineRank(const Options& options)
    : options_(options),
      on_trial_(options.on_trial),
      load_(options.load),
      load_shows_work_(options.load_shows_work) {
  if (!load_) return;
  foreign_ = OthersIn(*load_);
  // The next report is believed at once.
  recent_foreign_.BeginWindow();
  recent_foreign_.BeginWindow();
}

// --- the router ---

void EngineRank::OnEpoch(const EpochOffer& offer, absl::Time now, Output& out) {
  // This report belongs to the old epoch, which the group still accepts. It makes the requests below equal
  // the reported ones.
  if (open()) EndStep(now, out);
  const absl::flat_hash_set<core::RequestId> dropped(offer.cancellations.begin(), offer.cancellations.end());
  EpochReady ready;
  ready.epoch = offer.epoch;
  std::vector<CallNumber> cancelled;
  for (const auto& [number, call] : calls_) {
    if (dropped.contains(call.id)) {
      cancelled.push_back(number);
    } else {
      ready.active.push_back(
          {call.id, call.prompt_tokens + call.generated, static_cast<uint32_t>(call.generated)});
    }
  }
  out.cancel.insert(out.cancel.end(), cancelled.begin(), cancelled.end());
  Drop(cancelled, now);
  epoch_ = offer.epoch;
  longest_quiet_ = std::max(kLongestQuiet, kQuietStepTimeouts * offer.step_timeout);
  step_ = plans_ = applied_plan_ = level_step_ = 0;
  level_s_.reset();
  owed_ = false;
  rejected_.clear();
  preempted_.clear();
  last_report_at_ = now;
  last_tokens_at_ = absl::InfinitePast();
  out.ready.push_back(std::move(ready));
}

void EngineRank::OnPlan(const PlanPart& plan, std::vector<Placement> placements, absl::Time now,
                        Output& out) {
  if (plan.epoch != epoch_) return;
  ++plans_;
  applied_plan_ = std::max(applied_plan_, plan.apply_step);
  level_s_ = plan.level_s;
  level_step_ = step_;
  owed_ = true;
  std::vector<CallNumber> cancelled;
  for (const core::RequestId id : plan.cancellations) {
    const auto it = by_id_.find(id);
    if (it == by_id_.end()) continue;
    cancelled.push_back(it->second);
  }
  out.cancel.insert(out.cancel.end(), cancelled.begin(), cancelled.end());
  Drop(cancelled, now);
  // A rank that was idle begins a step now.
  if (calls_.empty()) last_report_at_ = estimated_at_ = now;
  if (InEngine() == 0) worked_at_ = now;
  for (Placement& placement : placements) {
    if (!placement.call.ok()) {
      Reject(placement.id, placement.call.status());
      continue;
    }
    if (options_.load && std::ssize(calls_) >= options_.slots - foreign_) {
      Reject(placement.id, NotTried(absl::ResourceExhaustedError("the rank runs other requests")));
      continue;
    }
    if (on_trial_ && !calls_.empty()) {
      Reject(placement.id,
             NotTried(absl::ResourceExhaustedError(
                 "the rank did not respond, and gets a single request until it generates tokens again")));
      continue;
    }
    const CallNumber number = next_call_++;
    Call call;
    call.id = placement.id;
    call.prompt_tokens = placement.call->prompt_tokens();
    // The last prompt token is always computed, because it yields the first output token.
    call.prompt_left = placement.call->passed.kv_from_elsewhere ? 1 : call.prompt_tokens;
    call.whole = placement.call->passed.whole;
    call.sent_at = call.heard_at = now;
    call.heard_report = token_reports_;
    call.refusals = placement.call->refusals;
    // The present step has begun without this call.
    call.first_step = token_steps_ + (calls_.empty() ? 1 : 2);
    call.max_new_tokens = placement.call->max_new_tokens;
    Await(call);
    calls_changed_ = true;
    calls_.emplace(number, std::move(call));
    by_id_[placement.id] = number;
    out.start.push_back({number, *std::move(placement.call)});
  }
  TellPrompts();
  // Events that waited for the epoch's first plan, and those that no later event would report soon.
  if (plans_ == 1 || calls_.empty() || !rejected_.empty()) EndStep(now, out);
}

// --- the engine ---

void EngineRank::OnCached(CallNumber number, int64_t tokens) {
  const auto it = calls_.find(number);
  if (it == calls_.end() || it->second.generated > 0 || !it->second.tokens.empty()) return;
  Call& call = it->second;
  call.cached = tokens;
  call.prompt_left = std::max(std::min<int64_t>(1, call.prompt_left), call.prompt_left - tokens);
}

void EngineRank::OnTokens(CallNumber number, absl::Span<const uint32_t> tokens, PassedPtr message,
                          absl::Time now, Output& out) {
  const auto it = calls_.find(number);
  if (it == calls_.end() || (tokens.empty() && message == nullptr)) return;
  worked_at_ = now;
  on_trial_ = false;
  if (!it->second.tokens.empty() && !tokens.empty() && open()) EndStep(now, out);
  Call& call = it->second;
  call.heard_at = now;
  call.tokens.insert(call.tokens.end(), tokens.begin(), tokens.end());
  if (message != nullptr) call.messages.push_back(std::move(message));
  Await(call);
  first_token_at_ = std::min(first_token_at_, now);
  AfterTokens(now, out);
}

void EngineRank::OnFinished(CallNumber number, EngineEnd end, absl::Time now, Output& out) {
  if (end.finish == EngineFinish::kError)
    return OnFailed(number, absl::InternalError("the engine ended the request with an error"), now, out);
  // This router did not request the abort, because it drops a call when it cancels it.
  if (end.finish == EngineFinish::kAbort)
    return OnFailed(number, absl::UnavailableError("the engine aborted the request"), now, out);
  const auto it = calls_.find(number);
  if (it == calls_.end()) return;
  worked_at_ = now;
  on_trial_ = false;
  Call& call = it->second;
  call.finished = ReasonOf(end.finish);
  if (end.message != nullptr) call.messages.push_back(std::move(end.message));
  if (call.whole) {
    call.cached = end.cached_prompt_tokens;
    const bool known = end.whole_tokens != EngineEnd::kUnknown;
    const int64_t tokens = std::clamp<int64_t>(
        known ? end.whole_tokens : std::max<int64_t>({1, call.generated, EstimatedTokens(call, now)}), 0,
        call.max_new_tokens);
    call.whole_tokens = static_cast<uint32_t>(tokens);
    call.tokens.resize(static_cast<size_t>(std::max<int64_t>(0, tokens - call.generated)));
    if (known && tokens > 0 && !AnyDecodes()) TakeStep((now - call.sent_at) / tokens);
  }
  Await(call);
  first_token_at_ = std::min(first_token_at_, now);
  AfterTokens(now, out);
}

void EngineRank::OnFailed(CallNumber number, const absl::Status& status, absl::Time now, Output& out) {
  const auto it = calls_.find(number);
  if (it == calls_.end()) return;
  const core::RequestId id = it->second.id;
  // Tokens that came before the failure are delivered first; the request can only be placed again after them.
  if ((!it->second.tokens.empty() || !it->second.messages.empty()) && open()) EndStep(now, out);
  const bool begun = it->second.generated > 0;
  // The request may continue elsewhere, from its last token.
  const bool again = absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
  if (again && !begun) return Refuse(it->second, status, now);
  Drop({number}, now);
  if (again) {
    preempted_.push_back(id);
  } else {
    Reject(id, status);
  }
  if (open()) EndStep(now, out);
}

void EngineRank::Refuse(Call& call, const absl::Status& why, absl::Time now) {
  if (call.refused) return;
  const bool hung = Hangs(now);
  call.refused = absl::ResourceExhaustedError(why.message());
  const absl::Duration delay =
      std::min(kShortestRefusal * (1 << std::clamp(call.refusals, 0, 8)), kLongestRefusal);
  const absl::Duration asked = GetRetryDelay(why).value_or(absl::ZeroDuration());
  call.refused_until = now + std::max(delay, std::min(asked, kLongestRetryInfo));
  call.computed = false;
  call.tokens.clear();
  call.messages.clear();
  ++refused_;
  calls_changed_ = true;
  Await(call);
  TellPrompts();
  if (!hung && Hangs(now)) worked_at_ = now;
}

bool EngineRank::ReleaseRefused(absl::Time now) {
  std::vector<CallNumber> released;
  for (const auto& [number, call] : calls_) {
    if (!call.refused || now < call.refused_until) continue;
    released.push_back(number);
    Reject(call.id, *call.refused);
  }
  Drop(released, now);
  return !released.empty();
}

absl::Time EngineRank::NextRefused() const {
  absl::Time next = absl::InfiniteFuture();
  if (refused_ == 0) return next;
  for (const auto& [number, call] : calls_) {
    if (call.refused) next = std::min(next, call.refused_until);
  }
  return next;
}

void EngineRank::OnStep(const EngineStep& step, absl::Time now, Output& out) {
  heard_at_ = now;
  token_budget_ = step.token_budget.value_or(token_budget_);
  if (std::exchange(heard_step_, step.step) == step.step) return;
  worked_at_ = now;
  if (step.decodes > 0 || step.prompt_tokens > 0) on_trial_ = false;
  bool tokens_come = step.decodes > 0 && AnyDecodes();
  for (const EngineStep::Prompt& prompt : step.prompts) {
    const auto it = calls_.find(prompt.name.call);
    // The engine's report may arrive after the refusal.
    if (it == calls_.end() || it->second.refused) continue;
    Call& call = it->second;
    call.heard_at = now;
    call.heard_report = token_reports_;
    call.prompt_left = prompt.left;
    call.computed = prompt.left == 0;
    Await(call);
    tokens_come = tokens_come || (call.computed && !call.whole);
  }
  decodes_ = step.decodes;
  decode_context_ = step.decode_context;
  prompt_tokens_ += step.prompt_tokens;
  if (options_.barrier != nullptr) {
    BatchLoad batch;
    batch.tokens = step.decode_tokens + step.prompt_tokens;
    batch.prefill_pairs = step.prefill_pairs;
    batch.decode_context = static_cast<double>(step.decode_context);
    options_.barrier->Add(options_.number, batch, step.took);
  }
  if (!open() || tokens_come) return;
  stepped_ = true;
  EndStep(now, out);
}

std::optional<int64_t> EngineRank::Allotment() const {
  if (!level_s_ || step_ - level_step_ >= kLevelSteps || options_.barrier == nullptr) return std::nullopt;
  const std::optional<GroupCost>& cost = options_.barrier->cost();
  if (!cost) return std::nullopt;
  std::vector<PromptLeft> prompts;
  for (const auto& [number, call] : calls_) {
    if (call.generated == 0 && call.tokens.empty() && !call.computed && !call.refused)
      prompts.push_back({call.prompt_left, call.prompt_tokens - call.prompt_left});
  }
  // Stands for prompts that the engine gets in the meantime; the same level applies to them.
  prompts.push_back({token_budget_, 0});
  return TokensWithin({cost->batch, decodes_, static_cast<double>(decode_context_), prompts}, *level_s_);
}

// --- steps ---

void EngineRank::Await(Call& call) {
  const int64_t generated = call.generated + static_cast<int64_t>(call.tokens.size());
  const bool begun = call.generated > 0 || call.computed;
  // The end of the call follows the last token at once, and belongs to the same step.
  const bool awaited =
      !call.finished && !call.whole && (generated >= call.max_new_tokens || (begun && call.tokens.empty()));
  awaited_ += int64_t{awaited} - int64_t{std::exchange(call.awaited, awaited)};
}

bool EngineRank::AnyDecodes() const {
  return std::any_of(calls_.begin(), calls_.end(),
                     [](const auto& entry) { return entry.second.generated > 0 && !entry.second.whole; });
}

bool EngineRank::AnyWhole() const {
  return std::any_of(calls_.begin(), calls_.end(),
                     [](const auto& entry) { return entry.second.whole && !entry.second.refused; });
}

int64_t EngineRank::LongestPrompt() const {
  return std::max(own_prompt_, options_.prompts == nullptr ? 0 : options_.prompts->longest());
}

void EngineRank::TellPrompts() {
  own_prompt_ = 0;
  for (const auto& [number, call] : calls_) {
    if (call.generated == 0 && call.tokens.empty() && !call.computed && !call.refused)
      own_prompt_ = std::max(own_prompt_, call.prompt_tokens);
  }
  if (options_.prompts != nullptr) options_.prompts->Set(options_.number, own_prompt_);
}

absl::Duration EngineRank::LongestQuiet(const Call& call) const {
  return std::max(longest_quiet_, absl::Seconds(call.prompt_tokens + call.generated) / kSlowestPrefill);
}

bool EngineRank::Lost(const Call& call, absl::Time now) const {
  if (!call.awaited || token_reports_ - call.heard_report < kSilentSteps) return false;
  const absl::Duration quiet = now - std::max(call.heard_at, load_complete_at_);
  return quiet >= (load_ ? 1 : kQuietWithoutLoads) * LongestQuiet(call);
}

absl::Time EngineRank::QuietEnd() const {
  const bool shows_work = (load_ && load_shows_work_) || Follows(last_report_at_);
  const absl::Duration step = usual_step_ > absl::ZeroDuration() ? kSlowerSteps * usual_step_ : kSlowestStep;
  absl::Duration quiet = std::max(longest_quiet_, absl::Seconds(LongestPrompt()) / kSlowestPrefill);
  for (const auto& [number, call] : calls_) {
    if (call.refused) continue;
    absl::Duration needs = absl::Seconds(call.prompt_tokens) / kSlowestPrefill;
    if (call.whole && !shows_work) needs += call.max_new_tokens * step;
    quiet = std::max(quiet, needs);
  }
  return worked_at_ + quiet;
}

void EngineRank::Drop(absl::Span<const CallNumber> numbers, absl::Time now) {
  const bool hung = Hangs(now);
  for (const CallNumber number : numbers) {
    if (calls_.contains(number)) Forget(number);
  }
  TellPrompts();
  if (!hung && Hangs(now)) worked_at_ = now;
}

void EngineRank::TakeStep(absl::Duration took) {
  usual_step_ = usual_step_ == absl::ZeroDuration() ? took : usual_step_ + kStepWeight * (took - usual_step_);
}

void EngineRank::Estimate(bool stepped, absl::Time now) {
  const bool alone = !stepped && !Follows(now) && !AnyDecodes() && usual_step_ > absl::ZeroDuration();
  if (!stepped && !alone) return;
  if (alone && options_.barrier != nullptr) ComputeEstimatedPrompts(now);
  for (auto& [number, call] : calls_) {
    if (!call.whole || call.finished || call.refused) continue;
    const bool computed = Follows(now)                  ? call.computed
                          : options_.barrier == nullptr ? std::exchange(call.seen, true) || alone
                                                        : call.prompt_left <= 1;
    if (computed && alone && call.decodes_since == absl::InfiniteFuture())
      call.decodes_since = options_.barrier == nullptr ? call.sent_at + usual_step_ : now;
    // The last token comes with the end of the call.
    int64_t more = alone ? EstimatedTokens(call, now) - call.generated : int64_t{computed};
    more = std::clamp<int64_t>(more, 0, std::max<int64_t>(0, call.max_new_tokens - 1 - call.generated));
    call.tokens.insert(call.tokens.end(), static_cast<size_t>(more), 0);
  }
}

int64_t EngineRank::EstimatedTokens(const Call& call, absl::Time now) const {
  if (call.decodes_since >= now || usual_step_ <= absl::ZeroDuration()) return 0;
  return absl::ToInt64Nanoseconds(now - call.decodes_since) / absl::ToInt64Nanoseconds(usual_step_);
}

void EngineRank::ComputeEstimatedPrompts(absl::Time now) {
  constexpr int kMostSteps = 1024;
  estimated_at_ = std::max(estimated_at_, now - kMostSteps * usual_step_);
  for (; now - estimated_at_ >= usual_step_; estimated_at_ += usual_step_) TakeBatch(/*reported=*/false);
}

void EngineRank::AfterTokens(absl::Time now, Output& out) {
  if (open() && awaited_ == 0) EndStep(now, out);
}

bool EngineRank::Late(absl::Time now) const {
  if (std::min(first_token_at_, now) - last_tokens_at_ >= kLateShare * usual_step_) return false;
  return std::none_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    return !entry.second.tokens.empty() && entry.second.token_report == token_reports_;
  });
}

void EngineRank::EndStep(absl::Time now, Output& out) {
  StepReport report;
  report.epoch = epoch_;
  report.step = ++step_;
  report.applied_plan = applied_plan_;
  report.active_requests = static_cast<uint32_t>(calls_.size());
  report.prefill.emplace();
  const bool follows = Follows(now);
  report.prefill->token_budget = follows ? token_budget_ : options_.token_budget;
  report.prefill->metered = follows && options_.barrier != nullptr;
  report.prefill_tokens = std::exchange(prompt_tokens_, 0);
  // True: the engine has sent tokens, not only whole outputs.
  const bool any_tokens = std::any_of(calls_.begin(), calls_.end(), [](const auto& entry) {
    return !entry.second.tokens.empty() && !entry.second.whole;
  });
  const bool late = any_tokens && Late(now);
  const bool stepped = any_tokens && !late;
  BatchLoad batch;
  if (stepped && options_.barrier != nullptr) batch = TakeBatch(follows);
  if (stepped) ++token_reports_;
  Estimate(stepped || std::exchange(stepped_, false), now);
  std::vector<CallNumber> ended, silent;
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
      report.finished.push_back({call.id, *call.finished, call.whole_tokens});
      ended.push_back(number);
    } else if (call.generated == 0) {
      report.prefill->prompts.push_back({call.id, std::max<int64_t>(1, call.prompt_left)});
    }
  }
  for (const CallNumber number : ended) Forget(number);
  report.rejected = std::exchange(rejected_, {});
  report.preempted = std::exchange(preempted_, {});
  report.group_idle = calls_.empty();
  report.engine_load = told_load_ = load_;
  if (foreign_ > 0) report.load_tokens += foreign_ * load_->tokens / load_->requests;
  report.local = std::max(absl::ZeroDuration(), now - last_report_at_);
  if (stepped) {
    const absl::Time at = std::min(first_token_at_, now);
    std::optional<absl::Duration> took;
    if (last_tokens_at_ != absl::InfinitePast()) {
      took = at - last_tokens_at_;
      TakeStep(*took);
    }
    if (options_.barrier != nullptr) {
      if (took && !follows) options_.barrier->Add(options_.number, batch, *took);
      if (std::exchange(told_cost_, options_.barrier->version()) != options_.barrier->version()) {
        report.batch_cost = options_.barrier->cost();
        report.predicted_ratio = options_.barrier->predicted_ratio();
      }
    }
    last_tokens_at_ = at;
  }
  // The next step of a rank that becomes idle begins when it gets work, not now.
  if (any_tokens && calls_.empty()) last_tokens_at_ = absl::InfinitePast();
  if (options_.watch != nullptr) {
    if (stepped) options_.watch->OnStep(options_.number, AnyDecodes());
    if (calls_.empty()) options_.watch->OnIdle(options_.number);
  }
  // If all outputs come whole, the time of a step is less certain.
  if (!any_tokens && AnyWhole()) last_tokens_at_ = absl::InfinitePast();
  if (any_tokens) ended_per_step_ += kEndedWeight * static_cast<double>(ended.size());
  if (stepped) ended_per_step_ -= kEndedWeight * ended_per_step_;
  report.extra_slots = on_trial_ ? 1 - options_.slots : Credit() - static_cast<int32_t>(foreign_);
  report.shared_kv_tokens = shared_;
  first_token_at_ = absl::InfiniteFuture();
  last_report_at_ = now;
  owed_ = false;
  TellPrompts();
  out.reports.push_back(std::move(report));
  for (const CallNumber number : silent) {
    out.cancel.push_back(number);
    OnFailed(number, absl::UnavailableError("the engine has stopped sending output of the request"), now,
             out);
  }
}

int32_t EngineRank::Credit() const {
  if (usual_step_ <= absl::ZeroDuration()) return 0;
  const double ended = ended_per_step_ * (1 + absl::FDivDuration(round_trip_, usual_step_));
  if (ended < kLeastEmptyShare * options_.slots) return 0;
  return static_cast<int32_t>(std::min<double>(std::ceil(ended) + 1, options_.slots));
}

BatchLoad EngineRank::TakeBatch(bool reported) {
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

void EngineRank::OnTimer(absl::Time now, Output& out) {
  if (!open()) return;
  const bool due = now >= StepDeadline();
  if (ReleaseRefused(now) || due) EndStep(now, out);
}

absl::Time EngineRank::next_deadline() const {
  return open() ? std::min(StepDeadline(), NextRefused()) : absl::InfiniteFuture();
}

absl::Time EngineRank::StepDeadline() const {
  if (first_token_at_ != absl::InfiniteFuture())
    return first_token_at_ + std::clamp(kGatherShare * usual_step_, kShortestGather, kLongestGather);
  if ((AnyDecodes() && LongestPrompt() == 0) || (calls_.empty() && !owed_)) return absl::InfiniteFuture();
  const bool steps_estimated = AnyWhole() && usual_step_ > absl::ZeroDuration() && !Follows(last_report_at_);
  const absl::Duration least = options_.barrier == nullptr ? kEstimates : kShortestGather;
  const absl::Time next = last_report_at_ + (steps_estimated ? std::max(usual_step_, least) : kQuietStep);
  return InEngine() == 0 || next < QuietEnd() ? next : absl::InfiniteFuture();
}

// --- calls ---

std::vector<CallNumber> EngineRank::Calls() const {
  std::vector<CallNumber> numbers;
  for (const auto& [number, call] : calls_) numbers.push_back(number);
  return numbers;
}

void EngineRank::Forget(CallNumber number) {
  const auto it = calls_.find(number);
  const auto named = by_id_.find(it->second.id);
  if (named != by_id_.end() && named->second == number) by_id_.erase(named);
  awaited_ -= int64_t{it->second.awaited};
  refused_ -= int64_t{it->second.refused.has_value()};
  calls_changed_ = true;
  calls_.erase(it);
}

}  // namespace bfio::router
