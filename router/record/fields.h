// What the decision log holds of each struct of the core: one description for writing, reading and printing.
// A new member of a struct does not compile here until it has a line. A new line goes to the end of its
// struct: older logs then read as 0, absent or empty. Any other change needs a new kMagic (log_format.h).
// Ranges are what the core can have had; they are checked when a log is read, so that no value of a log
// overflows or has no meaning. Pure.
#pragma once

#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/scheduler_event.h"
#include "router/core/scheduler/scheduler_options.h"
#include "router/record/archive.h"
#include "router/record/codec.h"

namespace bfio::record {

// Limits that exceed all values of a router and are far below the values where sums overflow.
inline constexpr int64_t kMaxRequestTokens = int64_t{1} << 32;
inline constexpr int64_t kMaxTokens = int64_t{1} << 48;
inline constexpr int64_t kMaxStep = int64_t{1} << 48;
inline constexpr int64_t kMaxKvTokens = int64_t{1} << 62;
inline constexpr int64_t kMaxCount = int64_t{1} << 48;
inline constexpr int64_t kMaxSlots = 1 << 20;
inline constexpr int64_t kMaxWorkers = 1 << 16;
inline constexpr int64_t kMaxGroup = 1 << 30;
inline constexpr int64_t kMaxTries = std::numeric_limits<int32_t>::max() - 1;
inline constexpr double kMaxTime = 1e9;
inline constexpr double kLeastTime = 1e-9;

// Numbers of fields that begin a part of a record, so that each part can grow at its end.
inline constexpr int kFirstOption = 16, kFirstOfPolicy = 48, kFirstOfOutcome = 64, kFirstOfTimes = 96;

// The place of a field that earlier versions wrote.
template <class A>
void Unused(A& a) {
  double value = 0;
  a.Real("unused", value, 0.0, kMaxTime);
}

template <class A, class T>
using Of = std::conditional_t<A::kReads, T&, const T&>;

// --- settings ---

template <class A>
void Fields(A& a, Of<A, core::SchedulerOptions> options) {
  auto& [max_waiting, wait, window, admission, hold_after_steps, mode, report_delay_steps] = options;
  auto& [admission_kind, confidence, alpha, admission_steps, length_error] = admission;
  auto& [wait_kind, fixed_tokens, wait_steps] = wait;
  a.Enum("plan_mode", mode, core::PlanMode::kLockstep);
  a.Int("max_waiting", max_waiting, 0, kMaxCount);
  a.Int("window", window, 0, kMaxCount);
  a.Int("report_delay_steps", report_delay_steps, 0, 1 << 20);
  a.Int("hold_after_steps", hold_after_steps, 1, kMaxCount);
  a.Enum("admission", admission_kind, core::KvAdmissionOptions::Kind::kMcSf);
  a.Real("admission_confidence", confidence, 0.0, 1 - 1e-15);
  a.Real("admission_alpha", alpha, 0.0, 1.0);
  a.Int("admission_most_steps", admission_steps, 1, kMaxCount);
  a.Real("admission_length_error", length_error, 0.0, 100.0);
  a.Enum("wait", wait_kind, core::WaitAdmissionOptions::Kind::kNestedWait);
  a.OptionalReal("wait_fixed_tokens", fixed_tokens, 1.0, 1e12);
  a.Int("wait_most_steps", wait_steps, 1, kMaxCount);
}

// Without what does not decide.
template <class A>
void Fields(A& a, Of<A, core::PolicySetting> setting) {
  auto& [name, options] = setting;
  a.Text("policy", name);
  a.Int("seed", options.seed);
  a.Int("horizon", options.horizon, 0, core::kMaxHorizonSteps);
  a.Text("objective", options.objective);
  a.Real("discount", options.discount, 0.0, 1.0);
  a.Real("wait_ratio", options.wait_ratio, core::kLeastWaitRatio, core::kMostWaitRatio);
}

template <class A>
void Fields(A& a, Of<A, LogHeader> header) {
  auto& [session, segment, version, started_unix_us, id_base, options, policy, lookahead] = header;
  a.Int("session", session);
  a.Int("segment", segment);
  a.Text("version", version);
  a.Int("started_unix_us", started_unix_us);
  a.Int("id_base", id_base);
  a.Text("lookahead", lookahead);
  a.From(kFirstOption);
  Fields(a, options);
  a.From(kFirstOfPolicy);
  Fields(a, policy);
}

// --- requests and workers ---

template <class A>
void Fields(A& a, Of<A, core::RequestSpec::HeldRank> rank) {
  auto& [group, worker] = rank;
  a.Int("group", group, 0, kMaxGroup);
  a.Int("worker", worker, 0, kMaxWorkers - 1);
}

template <class A>
void Fields(A& a, Of<A, core::RequestSpec> spec) {
  auto& [id, prefill, computed, max_new, predicted, priority, tenant, generated, seniority, deadline_us,
         ttft_objective_s, waited, refusals, steps_alone, model, needs, held_to, prefix] = spec;
  a.Id("id", id);
  a.Int("prefill_tokens", prefill, 1, kMaxRequestTokens);
  a.Int("computed_tokens", computed, 0, prefill - 1);
  a.Int("max_new_tokens", max_new, 1, kMaxRequestTokens);
  a.OptionalInt("predicted_output_tokens", predicted, 0, kMaxRequestTokens);
  a.Int("priority", priority);
  a.Int("tenant", tenant);
  a.Int("generated_tokens", generated, 0, kMaxRequestTokens);
  a.Int("seniority", seniority, -kMaxStep, kMaxStep);
  int64_t deadline = deadline_us == core::RequestSpec::kNoDeadline ? 0 : deadline_us;
  a.Int("deadline_us", deadline);
  if constexpr (A::kReads) deadline_us = deadline == 0 ? core::RequestSpec::kNoDeadline : deadline;
  a.OptionalReal("ttft_objective_s", ttft_objective_s, 0.0, kMaxTime);
  a.OptionalInt("waited_steps", waited, 0, kMaxStep);
  a.Int("refusals", refusals, 0, kMaxTries);
  a.Int("steps_alone", steps_alone, 0, kMaxTries);
  a.Int("model", model);
  a.OptionalStruct("held_to", held_to);
  if constexpr (A::kReads) {
    std::vector<uint64_t> blocks;
    a.Words("prefix", blocks);
    a.Check("prefix", static_cast<int64_t>(blocks.size()), int64_t{0}, prefill / core::kPrefixBlockTokens);
    prefix = blocks.empty() ? nullptr : std::make_shared<const std::vector<uint64_t>>(std::move(blocks));
  } else {
    const absl::Span<const uint64_t> blocks = spec.prefix_blocks();
    a.Words("prefix", blocks);
  }
  a.Int("needs", needs);
}

// As workers fit it.
template <class A>
void Fields(A& a, Of<A, BatchCost> cost) {
  a.Real("c_s", cost.c_s, 0.0, kMaxTime);
  a.Real("a_s_per_token", cost.a_s_per_token, 1e-30, kMaxTime);
  a.Int("b0_tokens", cost.b0_tokens, 0, kMaxTokens);
  a.Real("k1_s_per_pair", cost.k1_s_per_pair, 0.0, kMaxTime);
  a.Real("k2_s_per_token", cost.k2_s_per_token, 0.0, kMaxTime);
}

template <class A>
void Fields(A& a, Of<A, GroupTerms> terms) {
  auto& [padded, captured_rows, prompt_s, eager_s] = terms;
  a.Int("padded", padded);
  a.Int("captured_rows", captured_rows, 0, kMaxTokens);
  a.Real("prompt_s", prompt_s, 0.0, kMaxTime);
  a.Real("eager_s", eager_s, 0.0, kMaxTime);
}

template <class A>
void Fields(A& a, Of<A, core::WorkerSpec> spec) {
  auto& [slots, kv_tokens, accepts_new, time_per_token, time_offset, service_time, prefix_cache, member, cost,
         max_sequence_tokens, terms] = spec;
  a.Int("slots", slots, 1, kMaxSlots);
  a.Int("kv_tokens", kv_tokens, 1, kMaxKvTokens);
  a.Int("accepts_new", accepts_new);
  a.Real("time_per_token", time_per_token, kLeastTime, kMaxTime);
  a.Real("time_offset", time_offset, -kMaxTime, kMaxTime);
  Unused(a);
  a.Real("service_time", service_time, kLeastTime, kMaxTime);
  a.Int("prefix_cache", prefix_cache);
  a.Int("member", member);
  a.OptionalStruct("cost", cost);
  a.Int("max_sequence_tokens", max_sequence_tokens, 0, kMaxKvTokens);
  Fields(a, terms);
}

template <class A>
void Fields(A& a, Of<A, core::ResidentRequest> resident) {
  auto& [id, kv_tokens] = resident;
  a.Id("id", id);
  a.Int("kv_tokens", kv_tokens);
}

template <class A>
void Fields(A& a, Of<A, core::EpochMember> member) {
  auto& [spec, resident, recovered] = member;
  a.Structs("resident", resident);
  a.Structs("recovered", recovered);
  Fields(a, spec);
}

// --- reports ---

template <class A>
void Fields(A& a, Of<A, core::PendingPrompt> prompt) {
  auto& [id, tokens] = prompt;
  a.Id("id", id);
  a.Int("tokens", tokens, 1, kMaxRequestTokens);
}

template <class A>
void Fields(A& a, Of<A, core::PrefillReport> prefill) {
  auto& [token_budget, prompts, metered] = prefill;
  a.Int("token_budget", token_budget, 0, kMaxTokens);
  a.Structs("prompts", prompts);
  a.Int("metered", metered);
}

template <class A>
void Fields(A& a, Of<A, core::CachedPrompt> cached) {
  auto& [id, tokens] = cached;
  a.Id("id", id);
  a.Int("tokens", tokens, 0, kMaxTokens);
}

template <class A>
void Fields(A& a, Of<A, core::PrefixChange> change) {
  auto& [block, stored] = change;
  a.Int("block", block);
  a.Int("stored", stored);
}

template <class A>
void Fields(A& a, Of<A, core::CompletionHint> hint) {
  auto& [id, probability] = hint;
  a.Id("id", id);
  a.Real("probability", probability, 0.0, 1.0);
}

template <class A>
void Fields(A& a, Of<A, core::StepReport> report) {
  auto& [step, applied_plan, load_tokens, finished, rejected, preempted, hints, group_idle, extra_slots,
         shared_kv_tokens, cache_lost_ppm, prefill, cached, cache_changes] = report;
  a.Int("step", step);
  a.Near("applied_behind", applied_plan, step);
  a.Int("load_tokens", load_tokens, -kMaxTokens, kMaxTokens);
  a.Ids("finished", finished);
  a.Ids("rejected", rejected);
  a.Ids("preempted", preempted);
  a.Int("group_idle", group_idle);
  a.Int("extra_slots", extra_slots, -kMaxSlots, kMaxSlots);
  a.Int("shared_kv_tokens", shared_kv_tokens, 0, kMaxTokens);
  a.Int("cache_lost_ppm", cache_lost_ppm, 0, 1'000'000);
  a.OptionalStruct("prefill", prefill);
  a.Structs("cached", cached);
  const absl::Span<const core::CompletionHint> none;
  if constexpr (A::kReads) {
    a.Structs("hints", hints);
  } else {
    a.Structs("hints", a.hints() ? hints : none);
  }
  a.Structs("cache_changes", cache_changes);
}

// --- events ---

template <class A>
void Fields(A& a, Of<A, core::AddGroup> event) {
  auto& [group, kind] = event;
  a.Int("group", group, 0, kMaxGroup);
  a.Enum("kind", kind, core::GroupKind::kPrefill);
}

template <class A>
void Fields(A& a, Of<A, core::RemoveGroup> event) {
  a.Int("group", event.group);
}

template <class A>
void Fields(A& a, Of<A, core::Enqueue> event) {
  Fields(a, event.request);
}

template <class A>
void Fields(A& a, Of<A, core::Requeue> event) {
  Fields(a, event.request);
}

template <class A>
void Fields(A& a, Of<A, core::Cancel> event) {
  a.Id("id", event.id);
}

template <class A>
void Fields(A& a, Of<A, core::OpenEpoch> event) {
  auto& [group, members, model, lacks] = event;
  a.Int("group", group);
  a.Structs("members", members);
  if constexpr (A::kReads) a.Check("members", static_cast<int64_t>(members.size()), int64_t{0}, kMaxWorkers);
  a.Int("model", model);
  a.Int("lacks", lacks);
}

template <class A>
void Fields(A& a, Of<A, core::CloseEpoch> event) {
  a.Int("group", event.group);
}

template <class A>
void Fields(A& a, Of<A, core::SetAcceptsNew> event) {
  auto& [group, worker, accepts_new] = event;
  a.Int("group", group);
  a.Int("worker", worker);
  a.Int("accepts_new", accepts_new);
}

template <class A>
void Fields(A& a, Of<A, core::SetTime> event) {
  auto& [group, worker, time_per_token, time_offset] = event;
  a.Int("group", group);
  a.Int("worker", worker);
  a.Real("time_per_token", time_per_token, kLeastTime, kMaxTime);
  a.Real("time_offset", time_offset, -kMaxTime, kMaxTime);
  Unused(a);
}

template <class A>
void Fields(A& a, Of<A, core::SetServiceTime> event) {
  auto& [group, worker, service_time] = event;
  a.Int("group", group);
  a.Int("worker", worker);
  a.Real("service_time", service_time, kLeastTime, kMaxTime);
}

template <class A>
void Fields(A& a, Of<A, core::SetCost> event) {
  auto& [group, worker, cost, terms] = event;
  a.Int("group", group);
  a.Int("worker", worker);
  Fields(a, cost);
  Fields(a, terms);
}

template <class A>
void Fields(A& a, Of<A, core::Report> event) {
  auto& [group, worker, report] = event;
  a.Int("group", group);
  a.Int("worker", worker);
  Fields(a, report);
}

// Without the rule, which is part of the outcome.
template <class A>
void Fields(A& a, Of<A, core::MakePlan> event) {
  a.Int("group", event.group);
  a.Int("force", event.force);
}

template <class A>
void Fields(A& a, Of<A, core::SetPolicy> event) {
  Fields(a, event.setting);
}

// --- outcomes ---

template <class A>
void Fields(A& a, Of<A, core::Placement> placement) {
  auto& [id, worker, wait_steps] = placement;
  a.Id("id", id);
  a.Int("worker", worker);
  a.Int("wait_steps", wait_steps);
}

template <class A>
void Fields(A& a, Of<A, core::Drop> drop) {
  auto& [id, worker] = drop;
  a.Id("id", id);
  a.Int("worker", worker);
}

// Without stopped_early, which is part of the outcome.
template <class A>
void Fields(A& a, Of<A, core::Plan> plan) {
  auto& [apply_step, apply_steps, placements, drops, stopped_early, level_s] = plan;
  a.Int("apply_step", apply_step);
  a.Ints("apply_steps", apply_steps);
  a.Structs("placements", placements);
  a.Structs("drops", drops);
  a.OptionalReal("level_s", level_s, -kMaxTime, kMaxTime);
}

template <class A>
void Fields(A& a, Of<A, core::Outcome> outcome) {
  auto& [status, cancel, displaced, plan, policy_called, stopped_early, rule] = outcome;
  auto code = static_cast<int32_t>(status.code());
  a.Int("status", code, 0, static_cast<int64_t>(absl::StatusCode::kUnauthenticated));
  if constexpr (A::kReads) status = absl::Status(static_cast<absl::StatusCode>(code), "");
  a.Enum("cancel", cancel, core::CancelOutcome::kDropped);
  a.Ids("displaced", displaced);
  a.OptionalStruct("plan", plan);
  a.Int("policy_called", policy_called);
  a.Int("stopped_early", stopped_early);
  int32_t number = rule ? static_cast<int32_t>(*rule) + 1 : 0;
  a.Int("placement_rule", number, 0, static_cast<int64_t>(core::PlacementRule::kRefill) + 1);
  if constexpr (A::kReads) {
    rule.reset();
    if (number > 0) rule = static_cast<core::PlacementRule>(number - 1);
  }
}

template <class A>
void Fields(A& a, Of<A, EventTimes> times) {
  auto& [at_us, decide_ns] = times;
  a.Int("at_us", at_us, 0, kMaxCount);
  a.Int("decide_ns", decide_ns, 0, kMaxCount);
}

}  // namespace bfio::record
