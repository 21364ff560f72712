#include "router/engine_link/engine_rank.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "common/base/retry_delay.h"
#include "router/requests/not_tried.h"

namespace bfio::router {
namespace {

// Each load brings some thousand.
constexpr size_t kMostCacheChanges = size_t{1} << 16;

}  // namespace

// --- calls ---

template <typename Which>
void EngineRank::Drop(absl::Time now, Which which) {
  const bool hung = Hangs(now);
  std::erase_if(calls_, [&](const auto& entry) {
    if (!which(entry.first, entry.second)) return false;
    OnLeft(entry.second);
    refused_ -= int64_t{entry.second.refused.has_value()};
    return calls_changed_ = true;
  });
  OnCallsChanged();
  if (!hung && Hangs(now)) worked_at_ = now;
}

void EngineRank::Cancel(absl::Span<const core::RequestId> ids, absl::Time now, Output& out) {
  if (ids.empty()) return;
  const absl::flat_hash_set<core::RequestId> dropped(ids.begin(), ids.end());
  Drop(now, [&](CallNumber number, const Call& call) {
    if (!dropped.contains(call.id)) return false;
    out.cancel.push_back(number);
    return true;
  });
}

EngineRank::Call* EngineRank::Find(CallNumber number) {
  const auto it = calls_.find(number);
  return it == calls_.end() ? nullptr : &it->second;
}

// --- the router ---

void EngineRank::OnEpoch(const EpochOffer& offer, absl::Time now, Output& out) {
  // This report belongs to the old epoch, which the group still accepts. It makes the requests below equal
  // the reported ones.
  if (open()) EndStep(now, out);
  Cancel(offer.cancellations, now, out);
  EpochReady ready;
  ready.epoch = offer.epoch;
  for (const auto& [number, call] : calls_) {
    ready.active.push_back(
        {call.id, call.prompt_tokens + call.generated, static_cast<uint32_t>(call.generated)});
  }
  epoch_ = offer.epoch;
  longest_quiet_ = std::max(kLongestQuiet, kQuietStepTimeouts * offer.step_timeout);
  step_ = plans_ = applied_plan_ = level_step_ = 0;
  level_s_.reset();
  owed_ = false;
  rejected_.clear();
  preempted_.clear();
  handed_over_.clear();
  last_report_at_ = now;
  out.ready.push_back(std::move(ready));
}

void EngineRank::OnPlan(const PlanPart& plan, std::vector<Placement> placements, absl::Time now,
                        Output& out) {
  if (plan.epoch != epoch_) return;
  const bool hung = Hangs(now);
  ++plans_;
  applied_plan_ = std::max(applied_plan_, plan.apply_step);
  level_s_ = plan.level_s;
  level_step_ = step_;
  owed_ = true;
  Cancel(plan.cancellations, now, out);
  // A rank that was idle begins a step now.
  if (calls_.empty()) last_report_at_ = now;
  if (InEngine() == 0 && (!CountsTokens() || worked_at_ == absl::InfinitePast())) worked_at_ = now;
  for (Placement& placement : placements) {
    if (!placement.call.ok()) {
      Reject(placement.id, placement.call.status());
      continue;
    }
    if (std::ssize(calls_) >= MostCalls()) {
      Reject(
          placement.id,
          NotTried(absl::ResourceExhaustedError(
              on_trial_ ? "the rank did not respond, and gets a single request until it shows that it works"
                        : "the rank runs other requests")));
      continue;
    }
    const CallNumber number = next_call_++;
    Call call;
    call.id = placement.id;
    call.prompt_tokens = placement.call->prompt_tokens();
    call.max_new_tokens = placement.call->max_new_tokens;
    call.refusals = placement.call->refusals;
    call.from_hand_off = placement.call->hand_off != nullptr;
    Begin(call, *placement.call, now);
    calls_changed_ = true;
    calls_.emplace(number, std::move(call));
    out.start.push_back({number, *std::move(placement.call)});
  }
  OnCallsChanged();
  // Events that waited for the epoch's first plan, and those that no later event would report soon.
  if (plans_ == 1 || calls_.empty() || !rejected_.empty() || (AcknowledgesPlans() && !hung))
    EndStep(now, out);
}

// --- the engine ---

void EngineRank::OnFinished(CallNumber number, EngineEnd end, absl::Time now, Output& out) {
  Call* const call = Find(number);
  if (call == nullptr) return;
  if (end.finish == EngineFinish::kError) {
    // Its prompt's KV is gone, and the router has it computed again. A client's hand-off must not be sent
    // twice.
    if (call->from_hand_off && call->generated == 0 && call->tokens.empty())
      return OnFailed(number, absl::UnavailableError("the engine could not fetch the prompt's KV"), now, out);
    return OnFailed(number, absl::InternalError("the engine ended the request with an error"), now, out);
  }
  // This router did not request the abort, because it drops a call when it cancels it.
  if (end.finish == EngineFinish::kAbort)
    return OnFailed(number, absl::UnavailableError("the engine aborted the request"), now, out);
  if (!CountsTokens() || call->max_new_tokens == 1) Worked(now);
  if (end.hand_off != nullptr) {
    handed_over_.push_back({preempted_.size(), std::move(end.hand_off)});
    preempted_.push_back(call->id);
    Drop(now, [&](CallNumber one, const Call&) { return one == number; });
    if (open()) EndStep(now, out);
    return;
  }
  call->finished = end.finish == EngineFinish::kStop ? FinishReason::kStop : FinishReason::kLength;
  if (end.message != nullptr) call->messages.push_back(std::move(end.message));
  OnEnd(*call, now, out);
}

void EngineRank::OnFailed(CallNumber number, const absl::Status& status, absl::Time now, Output& out) {
  Call* const call = Find(number);
  if (call == nullptr) return;
  const core::RequestId id = call->id;
  // Tokens that came before the failure are delivered first; the request can only be placed again after them.
  if ((!call->tokens.empty() || !call->messages.empty()) && open()) EndStep(now, out);
  const bool begun = call->generated > 0;
  // The request may continue elsewhere, from its last token.
  // What fails while KV is transferred may be the other engine's fault.
  const bool transfers = call->from_hand_off && !begun && call->tokens.empty();
  const bool again = absl::IsResourceExhausted(status) || absl::IsUnavailable(status) ||
                     (absl::IsInternal(status) && transfers);
  if (again && !begun) {
    // Kept for a while.
    if (call->refused) return;
    const bool hung = Hangs(now);
    call->refused = absl::ResourceExhaustedError(status.message());
    if (IsWrongHandOff(status)) {
      call->refused = WrongHandOff(*std::move(call->refused));
      // Others get few prompts of a server that answers wrongly, and soon.
      on_trial_ = true;
    }
    const absl::Duration delay =
        std::min(kShortestRefusal * (1 << std::clamp(call->refusals, 0, 8)), kLongestRefusal);
    const absl::Duration asked = GetRetryDelay(status).value_or(absl::ZeroDuration());
    call->refused_until = now + std::max(delay, std::min(asked, kLongestRetryInfo));
    call->tokens.clear();
    call->messages.clear();
    ++refused_;
    calls_changed_ = true;
    OnLeft(*call);
    call->awaited = call->computed = false;
    OnCallsChanged();
    if (!hung && Hangs(now)) worked_at_ = now;
    return;
  }
  Drop(now, [&](CallNumber one, const Call&) { return one == number; });
  if (again) {
    preempted_.push_back(id);
  } else {
    Reject(id, status);
  }
  if (open()) EndStep(now, out);
}

// --- whether it works ---

absl::Duration EngineRank::LongestQuiet() const {
  absl::Duration quiet = longest_quiet_;
  for (const auto& [number, call] : calls_) {
    if (!call.refused) quiet = std::max(quiet, absl::Seconds(call.prompt_tokens) / kSlowestPrefill);
  }
  return quiet;
}

void EngineRank::TakeLoad(std::optional<EngineLoad> load, absl::Time now) {
  ReportedLoad::Own own{.requests = InEngine()};
  for (const auto& [number, call] : calls_) {
    if (call.generated == 0 || call.finished) continue;
    ++own.decoding;
    own.decoding_tokens += call.prompt_tokens + call.generated;
  }
  if (load) {
    cache_lost_ppm_ = std::min<int64_t>(1'000'000, cache_lost_ppm_ + load->cache_lost_ppm);
    const std::vector<core::PrefixChange> changes = std::exchange(load->cache_changes, {});
    // What was before counts no longer, also where no report goes for long.
    if (load->cache_lost_ppm == 1'000'000 || cache_changes_.size() > kMostCacheChanges) {
      cache_lost_ppm_ = 1'000'000;
      cache_changes_.clear();
    }
    cache_changes_.insert(cache_changes_.end(), changes.begin(), changes.end());
  }
  const std::optional<EngineLoad> before = load_.last();
  load_.Take(load, own, now);
  const bool changed = std::exchange(calls_changed_, false);
  if (!load_.works()) return;
  if (!changed || !CountsTokens() || load->generated != before->generated) worked_at_ = now;
  // Other clients' requests that come and go change the use of the KV cache, too.
  if ((!changed && !calls_.empty() && load->requests == before->requests) ||
      load->generated != before->generated) {
    on_trial_ = false;
  }
}

// --- reports ---

StepReport EngineRank::BeginReport(int64_t step) {
  StepReport report;
  report.epoch = epoch_;
  report.step = step_ = step;
  report.applied_plan = applied_plan_;
  report.active_requests = static_cast<uint32_t>(calls_.size());
  report.load_tokens = load_.others_tokens();
  report.engine_load = told_load_ = load_.last();
  report.shared_kv_tokens = load_.shared();
  report.cache_lost_ppm = std::exchange(cache_lost_ppm_, 0);
  report.cache_changes = std::exchange(cache_changes_, {});
  return report;
}

void EngineRank::SendReport(StepReport report, absl::Time now, Output& out) {
  Drop(now, [](CallNumber, const Call& call) { return call.finished.has_value(); });
  report.rejected = std::exchange(rejected_, {});
  report.preempted = std::exchange(preempted_, {});
  report.handed_over = std::exchange(handed_over_, {});
  report.group_idle = calls_.empty();
  report.local = std::max(absl::ZeroDuration(), now - last_report_at_);
  const BarrierCost* const cost = options_.barrier == nullptr ? nullptr : &options_.barrier->cost;
  if (cost != nullptr && std::exchange(told_cost_, cost->version()) != cost->version()) {
    report.batch_cost = cost->cost();
    report.predicted_ratio = cost->predicted_ratio();
  }
  last_report_at_ = now;
  owed_ = false;
  out.reports.push_back(std::move(report));
}

void EngineRank::OnTimer(absl::Time now, Output& out) {
  if (now < next_deadline()) return;
  Drop(now, [&](CallNumber, const Call& call) {
    if (!call.refused || now < call.refused_until) return false;
    Reject(call.id, *call.refused);
    return true;
  });
  EndStep(now, out);
}

absl::Time EngineRank::next_deadline() const {
  if (!open()) return absl::InfiniteFuture();
  absl::Time next = StepDeadline();
  if (refused_ == 0) return next;
  for (const auto& [number, call] : calls_)
    if (call.refused) next = std::min(next, call.refused_until);
  return next;
}

}  // namespace bfio::router
