#include "router/worker_link/wire.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/out_of_range.h"
#include "common/base/peer_text.h"
#include "common/net/wire_time.h"
#include "router/group/group_key.h"
#include "router/worker_link/held_request.h"

namespace bfio::router {
namespace {

// Upper limits of lengths on the worker link, so that sums of them cannot overflow.
constexpr uint64_t kMaxKvTokens = uint64_t{1} << 40;
constexpr uint64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr size_t kMaxGroupBytes = kMaxGroupNameBytes;
constexpr size_t kMaxBarrierBytes = 64;
constexpr size_t kModelDigits = 64;
constexpr size_t kMaxDeviceBytes = 128;
constexpr size_t kMaxOfferBytes = 4096;
// Upper limit of a knee, in rows of a batch.
constexpr uint32_t kMaxKneeTokens = 1 << 20;
// A megawatt for a century.
constexpr double kMaxJoules = 4e15;

absl::Duration NsToDuration(uint64_t ns) {
  return absl::Nanoseconds(static_cast<int64_t>(std::min(ns, kMaxInt64)));
}

// The negated comparison also catches NaN.
bool IsAmount(double value, double most) {
  return value >= 0 && value <= most;
}

// False when the value is present but out of range.
bool ConvertFitted(bool present, const v1::FittedValue& from, std::optional<FittedValue>& to) {
  if (!present) return true;
  to = FittedValue{from.value(), from.standard_error()};
  return IsAmount(from.value(), OnlineStepFit::kMaxSeconds) &&
         IsAmount(from.standard_error(), OnlineStepFit::kMaxSeconds);
}

bool IsModel(const std::string& text) {
  return text.empty() ||
         (text.size() == kModelDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos);
}

template <typename Active>
std::vector<HeldActive> ToActive(const Active& from) {
  std::vector<HeldActive> active;
  active.reserve(static_cast<size_t>(from.size()));
  for (const v1::ActiveRequest& one : from) {
    active.push_back({one.handle(), static_cast<int64_t>(one.kv_tokens()), one.generated_tokens()});
  }
  return active;
}

// No list of requests is longer than a worker has slots: what it costs to handle one is bounded by what the
// router may have given to that worker.
absl::Status CheckList(absl::string_view list, int size, int32_t slots) {
  if (size <= slots) return absl::OkStatus();
  return OutOfRange(absl::StrCat("the number of ", list), size, absl::StrCat("at most slots, ", slots));
}

absl::Status CheckTokenCounts(const v1::StepReport& report) {
  if (report.token_counts_size() != 0 && report.token_counts_size() != report.handles_size()) {
    return absl::InvalidArgumentError("token_counts and handles differ in length");
  }
  int64_t tokens = report.handles_size();
  if (report.token_counts_size() != 0) {
    tokens = 0;
    for (const uint32_t count : report.token_counts()) tokens += count;
  }
  if (tokens != report.token_ids_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the report counts ", tokens, " tokens and carries ", report.token_ids_size()));
  }
  if (report.completion_hints_size() != 0 && report.completion_hints_size() != report.handles_size()) {
    return absl::InvalidArgumentError("completion_hints and handles differ in length");
  }
  return absl::OkStatus();
}

absl::Status CheckRanges(const v1::StepReport& report) {
  if (report.step() > kMaxInt64 || report.applied_plan() > kMaxInt64 || report.load_tokens() > kMaxKvTokens ||
      report.prefill_tokens() > kMaxKvTokens) {
    return absl::InvalidArgumentError("step, applied_plan, load_tokens or prefill_tokens is out of range");
  }
  for (const v1::PendingPrompt& prompt : report.pending_prompts()) {
    if (prompt.tokens() == 0)
      return absl::InvalidArgumentError("a pending prompt has no tokens left to compute");
  }
  return absl::OkStatus();
}

// Checks that a request leaves a step in only one way.
absl::Status CheckEnds(const v1::StepReport& report) {
  if (report.rejected().empty() && report.preempted().empty()) return absl::OkStatus();
  // Sets keep the checks linear: a report may be as large as a message.
  absl::flat_hash_set<core::RequestId> gone;
  for (const v1::Finished& finished : report.finished()) gone.insert(finished.handle());
  for (const v1::Rejection& rejection : report.rejected()) {
    if (rejection.code() < 1 || rejection.code() > 16) {
      return absl::InvalidArgumentError(absl::StrCat("a rejection carries code ", rejection.code()));
    }
    if (gone.contains(rejection.handle())) {
      return absl::InvalidArgumentError("a request is both rejected and finished");
    }
  }
  for (const v1::Rejection& rejection : report.rejected()) gone.insert(rejection.handle());
  for (const core::RequestId id : report.preempted()) {
    if (gone.contains(id)) {
      return absl::InvalidArgumentError("a request is both preempted and finished or rejected");
    }
  }
  return absl::OkStatus();
}

void ConvertTokens(const v1::StepReport& from, StepReport& to) {
  to.tokens.reserve(static_cast<size_t>(from.handles_size()));
  for (int i = 0; i < from.handles_size(); ++i) {
    to.tokens.push_back({from.handles(i), from.token_counts_size() == 0 ? 1 : from.token_counts(i)});
  }
  to.token_ids.assign(from.token_ids().begin(), from.token_ids().end());
  for (int i = 0; i < from.completion_hints_size(); ++i) {
    // A hint that is not a probability is dropped.
    const double hint = from.completion_hints(i);
    if (hint >= 0 && hint <= 1) to.hints.push_back({from.handles(i), hint});
  }
}

absl::Status ConvertLogprobs(const v1::StepReport& from, StepReport& to) {
  for (const v1::RequestLogprobs& one : from.logprobs()) {
    if (one.index() >= to.tokens.size() || (!to.logprobs.empty() && to.logprobs.back().index >= one.index()))
      return absl::InvalidArgumentError("the indices of log-probabilities do not ascend within handles");
    StepReport::RequestLogprobs& converted = to.logprobs.emplace_back();
    converted.index = one.index();
    if (absl::Status status = Append(one.logprobs(), converted.logprobs); !status.ok()) return status;
    if (converted.logprobs.tokens.size() != to.tokens[one.index()].count)
      return absl::InvalidArgumentError("a request's log-probabilities and tokens differ in number");
  }
  return absl::OkStatus();
}

void ConvertEnds(const v1::StepReport& from, StepReport& to) {
  for (const v1::Finished& finished : from.finished()) {
    to.finished.push_back({finished.handle(), finished.reason() == v1::FINISH_REASON_STOP
                                                  ? FinishReason::kStop
                                                  : FinishReason::kLength});
  }
  for (const v1::Rejection& rejection : from.rejected()) {
    to.rejected.push_back({rejection.handle(), absl::Status(static_cast<absl::StatusCode>(rejection.code()),
                                                            PeerText(rejection.message()))});
  }
  to.preempted.assign(from.preempted().begin(), from.preempted().end());
}

}  // namespace

absl::StatusOr<WorkerHello> ToHello(const v1::Hello& hello) {
  if (hello.worker_id().empty() || hello.worker_id().size() > 256) {
    return OutOfRange("worker_id's length", hello.worker_id().size(), "within 1..256 bytes");
  }
  if (hello.group().size() > kMaxGroupBytes) {
    return OutOfRange("group's length", hello.group().size(),
                      absl::StrCat("at most ", kMaxGroupBytes, " bytes"));
  }
  if (hello.barrier().size() > kMaxBarrierBytes) {
    return OutOfRange("barrier's length", hello.barrier().size(),
                      absl::StrCat("at most ", kMaxBarrierBytes, " bytes"));
  }
  if (!IsModel(hello.model())) {
    return absl::InvalidArgumentError(
        absl::StrCat("model must be ", kModelDigits, " lower-case hexadecimal digits, or empty"));
  }
  if (hello.slots() < 1 || hello.slots() > kMostSlots) {
    return OutOfRange("slots", hello.slots(), absl::StrCat("within 1..", kMostSlots));
  }
  if (absl::Status status = CheckList("active", hello.active_size(), static_cast<int32_t>(hello.slots()));
      !status.ok()) {
    return status;
  }
  if (hello.kv_tokens() < 1 || hello.kv_tokens() > kMaxKvTokens) {
    return OutOfRange("kv_tokens", hello.kv_tokens(), absl::StrCat("within 1..", kMaxKvTokens));
  }
  if (hello.max_sequence_tokens() < 1) {
    return OutOfRange("max_sequence_tokens", hello.max_sequence_tokens(), "at least 1");
  }
  if (!(hello.service_s() == 0 || (hello.service_s() >= 1e-9 && hello.service_s() <= 1e9))) {
    return absl::InvalidArgumentError(
        absl::StrCat("service_s is ", hello.service_s(), "; it must be 0 or within 1e-9..1e9"));
  }
  // Refused rather than truncated, because they are compared and passed on.
  if (hello.communicator_offer().size() > kMaxOfferBytes) {
    return OutOfRange("communicator_offer's length", hello.communicator_offer().size(),
                      absl::StrCat("at most ", kMaxOfferBytes, " bytes"));
  }
  WorkerHello converted;
  converted.worker_id = hello.worker_id();
  converted.group = hello.group();
  converted.model = hello.model();
  converted.slots = static_cast<int32_t>(hello.slots());
  converted.kv_tokens = static_cast<int64_t>(hello.kv_tokens());
  converted.max_sequence_tokens = static_cast<int64_t>(std::min(hello.max_sequence_tokens(), kMaxInt64));
  converted.engine = PeerText(hello.engine());
  converted.barrier = hello.barrier();
  converted.communicator_offer = hello.communicator_offer();
  converted.version = PeerText(hello.version());
  converted.active = ToActive(hello.active());
  converted.router_instance = hello.router_instance();
  converted.service_s = hello.service_s();
  converted.steps_alone = hello.steps_alone();
  converted.logprobs = hello.logprobs();
  converted.worker_instance = hello.worker_instance();
  converted.stream = hello.stream();
  return converted;
}

absl::StatusOr<EpochReady> ToEpochReady(const v1::EpochReady& ready, int32_t slots) {
  if (absl::Status status = CheckList("active", ready.active_size(), slots); !status.ok()) return status;
  EpochReady converted;
  converted.epoch = ready.epoch();
  converted.error = PeerText(ready.error());
  if (ready.communicator_offer().size() <= kMaxOfferBytes)
    converted.communicator_offer = ready.communicator_offer();
  converted.active = ToActive(ready.active());
  converted.missing_ranks.assign(ready.missing_ranks().begin(), ready.missing_ranks().end());
  return converted;
}

absl::StatusOr<StepReport> ToStepReport(const v1::StepReport& report, int32_t slots) {
  for (const auto& [list, size] : {std::pair("handles", report.handles_size()),
                                   {"finished", report.finished_size()},
                                   {"rejected", report.rejected_size()},
                                   {"preempted", report.preempted_size()},
                                   {"pending_prompts", report.pending_prompts_size()}}) {
    if (absl::Status status = CheckList(list, size, slots); !status.ok()) return status;
  }
  if (absl::Status status = CheckTokenCounts(report); !status.ok()) return status;
  if (absl::Status status = CheckRanges(report); !status.ok()) return status;
  if (absl::Status status = CheckEnds(report); !status.ok()) return status;
  StepReport converted;
  converted.epoch = report.epoch();
  converted.step = static_cast<int64_t>(report.step());
  converted.applied_plan = static_cast<int64_t>(report.applied_plan());
  converted.load_tokens = static_cast<int64_t>(report.load_tokens());
  converted.active_requests = report.active_requests();
  ConvertTokens(report, converted);
  if (absl::Status status = ConvertLogprobs(report, converted); !status.ok()) return status;
  ConvertEnds(report, converted);
  converted.local = NsToDuration(report.local_ns());
  converted.barrier_wait = NsToDuration(report.barrier_wait_ns());
  if (report.has_gap_ns()) converted.gap = NsToDuration(report.gap_ns());
  converted.group_max_local = NsToDuration(report.group_max_local_ns());
  converted.group_idle = report.group_idle();
  converted.barrier_error = PeerText(report.barrier_error());
  converted.missing_ranks.assign(report.missing_ranks().begin(), report.missing_ranks().end());
  if (report.has_cost()) converted.cost = ToCost(report.cost());
  if (report.has_energy()) converted.energy = ToEnergy(report.energy());
  converted.prefill_tokens = static_cast<int64_t>(report.prefill_tokens());
  if (const auto cost = ToBatchCost(report.cost().batch())) converted.batch_cost = {*cost, {}};
  if (report.has_batch()) converted.batch = ToBatch(report.batch());
  if (report.has_token_budget()) {
    core::PrefillReport& prefill = converted.prefill.emplace();
    prefill.token_budget = report.token_budget();
    prefill.prompts.reserve(static_cast<size_t>(report.pending_prompts_size()));
    for (const v1::PendingPrompt& prompt : report.pending_prompts())
      prefill.prompts.push_back({prompt.handle(), prompt.tokens()});
  }
  return converted;
}

std::optional<StepCostEstimate> ToCost(const v1::StepCost& cost) {
  StepCostEstimate out;
  const bool good = ConvertFitted(cost.has_c_s(), cost.c_s(), out.c) &&
                    ConvertFitted(cost.has_tl_s_per_token(), cost.tl_s_per_token(), out.tl);
  if (!good) return std::nullopt;
  return out;
}

std::optional<BatchCost> ToBatchCost(const v1::BatchCost& cost) {
  const bool good = IsAmount(cost.c_s(), OnlineStepFit::kMaxSeconds) &&
                    IsAmount(cost.a_s_per_token(), OnlineStepFit::kMaxSeconds) && cost.a_s_per_token() > 0 &&
                    IsAmount(cost.k1_s_per_pair(), OnlineStepFit::kMaxSeconds) &&
                    IsAmount(cost.k2_s_per_token(), OnlineStepFit::kMaxSeconds) &&
                    cost.b0_tokens() <= kMaxKneeTokens;
  if (!good) return std::nullopt;
  return BatchCost{.c_s = cost.c_s(),
                   .a_s_per_token = cost.a_s_per_token(),
                   .b0_tokens = cost.b0_tokens(),
                   .k1_s_per_pair = cost.k1_s_per_pair(),
                   .k2_s_per_token = cost.k2_s_per_token()};
}

std::optional<BatchLoad> ToBatch(const v1::Batch& batch) {
  constexpr double kMost = 1e18;
  const bool good = batch.tokens() <= kMaxKvTokens && IsAmount(batch.prefill_pairs(), kMost) &&
                    IsAmount(batch.decode_context(), kMost);
  if (!good) return std::nullopt;
  return BatchLoad{.tokens = static_cast<int64_t>(batch.tokens()),
                   .prefill_pairs = batch.prefill_pairs(),
                   .decode_context = batch.decode_context()};
}

std::optional<EnergyReading> ToEnergy(const v1::Energy& energy) {
  const auto all = {energy.busy_j(),    energy.barrier_j(), energy.parked_j(), energy.busy_s(),
                    energy.barrier_s(), energy.parked_s(),  energy.watts(),    energy.idle_watts()};
  const bool good = !energy.device().empty() && energy.device().size() <= kMaxDeviceBytes &&
                    std::all_of(all.begin(), all.end(), [](double v) { return IsAmount(v, kMaxJoules); });
  if (!good) return std::nullopt;
  EnergyReading reading;
  reading.device = energy.device();
  reading.busy_j = energy.busy_j();
  reading.barrier_j = energy.barrier_j();
  reading.parked_j = energy.parked_j();
  reading.busy_s = energy.busy_s();
  reading.barrier_s = energy.barrier_s();
  reading.parked_s = energy.parked_s();
  reading.watts = energy.watts();
  if (energy.has_idle_watts()) reading.idle_watts = energy.idle_watts();
  return reading;
}

namespace {

uint32_t ToMs(absl::Duration duration) {
  return static_cast<uint32_t>(absl::ToInt64Milliseconds(duration));
}

// Appends `first`, then `second`.
void AppendAll(const std::vector<uint32_t>& first, const std::vector<uint32_t>& second,
               google::protobuf::RepeatedField<uint32_t>& out) {
  out.Reserve(static_cast<int>(first.size() + second.size()));
  out.Add(first.begin(), first.end());
  out.Add(second.begin(), second.end());
}

}  // namespace

void ToWire(const EpochOffer& epoch, v1::Epoch& out) {
  out.set_epoch(epoch.epoch);
  out.set_rank(epoch.rank);
  out.set_world_size(epoch.world_size);
  out.set_communicator_id(epoch.communicator_id);
  out.set_plan_mode(epoch.plan_mode == core::PlanMode::kPipelined ? v1::PLAN_MODE_PIPELINED
                                                                  : v1::PLAN_MODE_LOCKSTEP);
  out.set_form_timeout_ms(ToMs(epoch.form_timeout));
  out.set_step_timeout_ms(ToMs(epoch.step_timeout));
  out.mutable_cancellations()->Add(epoch.cancellations.begin(), epoch.cancellations.end());
  out.set_router_instance(epoch.router_instance);
  out.set_announce(epoch.announce);
  out.set_retain_ms(ToMs(epoch.retain));
  out.set_uncoupled(epoch.independent);
  out.set_group(epoch.group);
}

void ToWire(const PlanPart& plan, absl::Span<const Assignment> assignments, v1::Plan& out) {
  out.set_epoch(plan.epoch);
  out.set_apply_step(static_cast<uint64_t>(plan.apply_step));
  for (const Assignment& assignment : assignments) ToWire(assignment, *out.add_assignments());
  out.mutable_cancellations()->Add(plan.cancellations.begin(), plan.cancellations.end());
  if (plan.level_s) out.set_level_s(*plan.level_s);
}

void ToWire(const Assignment& assignment, v1::Assignment& out) {
  static const auto* const none = new std::vector<uint32_t>;
  const ClientRequest& request = *assignment.request;
  const std::vector<uint32_t>& history = assignment.history == nullptr ? *none : *assignment.history;
  out.set_handle(assignment.id);
  if (request.has_prompt_ids()) AppendAll(request.prompt, history, *out.mutable_prompt_token_ids());
  out.set_prompt_length(request.prompt_tokens + assignment.first_index);
  out.set_max_new_tokens(request.max_new_tokens - assignment.first_index);
  out.mutable_stop_token_ids()->Add(request.stop_token_ids.begin(), request.stop_token_ids.end());
  out.set_ignore_eos(request.ignore_eos);
  ToWire(request.sampling, assignment.seed, *out.mutable_sampling());
  out.set_first_index(assignment.first_index);
  if (assignment.traceparent != nullptr) out.set_traceparent(*assignment.traceparent);
  out.set_priority(request.priority);
  out.set_kv_on_demand(assignment.kv_on_demand);
  out.set_waited_steps(static_cast<int32_t>(std::clamp<int64_t>(
      assignment.waited_steps, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max())));
  if (request.resumable) {
    out.set_origin(OriginOf(request, assignment.seed));
    if (!request.has_prompt_ids()) {
      out.mutable_earlier_token_ids()->Add(history.begin(), history.end());
    }
    if (assignment.history_logprobs != nullptr)
      ToWire(assignment.history_logprobs->view(), *out.mutable_earlier_logprobs());
  }
}

}  // namespace bfio::router
