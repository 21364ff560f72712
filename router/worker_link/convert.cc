#include "router/worker_link/convert.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace bfio::router {

absl::Duration DurationOf(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

namespace {

// Lengths on the worker link are bounded so that sums of them cannot overflow.
constexpr uint64_t kMaxKvTokens = uint64_t{1} << 40;
// Of an agent's call.
constexpr uint32_t kMaxStage = uint32_t{1} << 20;
constexpr uint32_t kMaxRemaining = uint32_t{1} << 24;

template <typename Value, typename Limit>
absl::Status OutOfRange(absl::string_view field, const Value& value, const Limit& limit) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; must be ", limit));
}

absl::Status CheckSampling(const v1::SamplingParams& sampling) {
  // The negated comparisons also catch NaN.
  if (sampling.has_temperature() && !(sampling.temperature() >= 0 && sampling.temperature() <= 2)) {
    return OutOfRange("sampling.temperature", sampling.temperature(), "within 0..2");
  }
  if (sampling.has_top_p() && !(sampling.top_p() > 0 && sampling.top_p() <= 1)) {
    return OutOfRange("sampling.top_p", sampling.top_p(), "above 0 and at most 1");
  }
  if (sampling.has_top_k() && sampling.top_k() < 1)
    return OutOfRange("sampling.top_k", sampling.top_k(), "at least 1");
  return absl::OkStatus();
}

absl::Status CheckPrompt(const v1::GenerateRequest& request, const RequestLimits& limits) {
  const std::string range = absl::StrCat("within 1..", limits.max_prompt_tokens);
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kTokenIds:
      if (request.token_ids().ids_size() < 1 ||
          request.token_ids().ids_size() > static_cast<int64_t>(limits.max_prompt_tokens)) {
        return OutOfRange("the number of token_ids", request.token_ids().ids_size(), range);
      }
      return absl::OkStatus();
    case v1::GenerateRequest::kPromptLength:
      if (request.prompt_length() < 1 || request.prompt_length() > limits.max_prompt_tokens) {
        return OutOfRange("prompt_length", request.prompt_length(), range);
      }
      return absl::OkStatus();
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("prompt is missing; set token_ids or prompt_length");
}

// Above zero and at most so many hours; unset is in range.
absl::Status CheckDuration(absl::string_view field, bool set, const google::protobuf::Duration& duration,
                           int64_t hours) {
  if (!set) return absl::OkStatus();
  const bool proper = duration.seconds() >= 0 && duration.seconds() <= hours * 3600 &&
                      duration.nanos() >= 0 && duration.nanos() < 1'000'000'000;
  const bool above = duration.seconds() > 0 || duration.nanos() > 0;
  if (proper && above && DurationOf(duration) <= absl::Hours(hours)) return absl::OkStatus();
  return OutOfRange(field, absl::StrCat(duration.seconds(), " s and ", duration.nanos(), " ns"),
                    absl::StrCat("above 0 and at most ", hours, " h"));
}

absl::Status CheckObjectives(const v1::GenerateRequest& request) {
  absl::Status status =
      CheckDuration("ttft_objective", request.has_ttft_objective(), request.ttft_objective(), 1);
  if (!status.ok()) return status;
  return CheckDuration("tpot_objective", request.has_tpot_objective(), request.tpot_objective(), 1);
}

absl::Status CheckParent(const v1::GenerateRequest& request, const RequestLimits& limits) {
  if (request.parent_id().size() > limits.max_id_bytes) {
    return OutOfRange("parent_id's length", request.parent_id().size(),
                      absl::StrCat("at most ", limits.max_id_bytes, " bytes"));
  }
  if (request.parent_id().empty() &&
      (request.has_stage() || request.has_remaining_tokens() || request.has_parent_timeout())) {
    return absl::InvalidArgumentError("stage, remaining_tokens and parent_timeout need parent_id");
  }
  if (request.stage() > kMaxStage)
    return OutOfRange("stage", request.stage(), absl::StrCat("at most ", kMaxStage));
  if (request.remaining_tokens() > kMaxRemaining) {
    return OutOfRange("remaining_tokens", request.remaining_tokens(),
                      absl::StrCat("at most ", kMaxRemaining));
  }
  return CheckDuration("parent_timeout", request.has_parent_timeout(), request.parent_timeout(), 24);
}

absl::Status CheckResume(const v1::GenerateRequest& request, const RequestLimits& limits) {
  if (request.resume_token().size() > limits.max_resume_token_bytes) {
    return OutOfRange("resume_token's length", request.resume_token().size(),
                      absl::StrCat("at most ", limits.max_resume_token_bytes, " bytes"));
  }
  if (request.has_resume_from_index() && request.resume_from_index() > limits.max_new_tokens) {
    return OutOfRange("resume_from_index", request.resume_from_index(),
                      absl::StrCat("at most ", limits.max_new_tokens));
  }
  const auto received = static_cast<uint32_t>(request.received_token_ids_size());
  if (received == 0) return absl::OkStatus();
  if (!request.has_resume_from_index() || request.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) {
    return absl::InvalidArgumentError("received_token_ids needs resume_from_index and a prompt");
  }
  if (received < request.resume_from_index() || received > request.max_new_tokens()) {
    return OutOfRange("the number of received_token_ids", received,
                      absl::StrCat("within resume_from_index..max_new_tokens, ", request.resume_from_index(),
                                   "..", request.max_new_tokens()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGenerate(const v1::GenerateRequest& request, const RequestLimits& limits) {
  if (request.request_id().size() > limits.max_id_bytes) {
    return OutOfRange("request_id's length", request.request_id().size(),
                      absl::StrCat("at most ", limits.max_id_bytes, " bytes"));
  }
  if (request.tenant().size() > limits.max_id_bytes) {
    return OutOfRange("tenant's length", request.tenant().size(),
                      absl::StrCat("at most ", limits.max_id_bytes, " bytes"));
  }
  if (absl::Status status = CheckParent(request, limits); !status.ok()) return status;
  if (absl::Status status = CheckObjectives(request); !status.ok()) return status;
  if (IsBareResume(request)) return CheckResume(request, limits);
  if (absl::Status status = CheckPrompt(request, limits); !status.ok()) return status;
  if (request.max_new_tokens() < 1 || request.max_new_tokens() > limits.max_new_tokens) {
    return OutOfRange("max_new_tokens", request.max_new_tokens(),
                      absl::StrCat("within 1..", limits.max_new_tokens));
  }
  if (request.stop_token_ids_size() > static_cast<int64_t>(limits.max_stop_ids)) {
    return OutOfRange("the number of stop_token_ids", request.stop_token_ids_size(),
                      absl::StrCat("at most ", limits.max_stop_ids));
  }
  if (std::abs(int64_t{request.priority()}) > limits.max_abs_priority) {
    return OutOfRange("priority", request.priority(),
                      absl::StrCat("within -", limits.max_abs_priority, "..", limits.max_abs_priority));
  }
  if (request.has_predicted_output_tokens() && request.predicted_output_tokens() < 1) {
    return OutOfRange("predicted_output_tokens", request.predicted_output_tokens(), "at least 1, or unset");
  }
  if (absl::Status status = CheckResume(request, limits); !status.ok()) return status;
  if (request.has_resume_from_index() && request.resume_from_index() > request.max_new_tokens()) {
    return OutOfRange("resume_from_index", request.resume_from_index(),
                      absl::StrCat("at most max_new_tokens, ", request.max_new_tokens()));
  }
  return CheckSampling(request.sampling());
}

bool IsBareResume(const v1::GenerateRequest& request) {
  return request.has_resume_from_index() && request.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET;
}

v1::GenerateRequest BareResume(v1::GenerateRequest request) {
  v1::GenerateRequest bare;
  bare.set_request_id(std::move(*request.mutable_request_id()));
  bare.set_tenant(std::move(*request.mutable_tenant()));
  bare.set_resumable(request.resumable());
  bare.set_resume_token(std::move(*request.mutable_resume_token()));
  bare.set_resume_from_index(request.resume_from_index());
  return bare;
}

uint32_t PromptTokens(const v1::GenerateRequest& request) {
  return request.has_token_ids() ? static_cast<uint32_t>(request.token_ids().ids_size())
                                 : request.prompt_length();
}

absl::Status CheckHello(const v1::Hello& hello) {
  if (hello.worker_id().empty() || hello.worker_id().size() > 256) {
    return OutOfRange("worker_id's length", hello.worker_id().size(), "within 1..256 bytes");
  }
  if (hello.slots() < 1 || hello.slots() > 65536)
    return OutOfRange("slots", hello.slots(), "within 1..65536");
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
  return absl::OkStatus();
}

absl::Status ConvertReport(const v1::StepReport& report, ReportView& view) {
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
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (report.step() > kMax || report.applied_plan() > kMax || report.load_tokens() > kMaxKvTokens ||
      report.pending_prefill_tokens() > kMaxKvTokens) {
    return absl::InvalidArgumentError(
        "step, applied_plan, load_tokens or pending_prefill_tokens is out of range");
  }
  view.finished.clear();
  view.rejected.clear();
  for (const v1::Finished& finished : report.finished()) view.finished.push_back(finished.handle());
  for (const v1::Rejection& rejection : report.rejected()) view.rejected.push_back(rejection.handle());
  // Sets: a report may be as large as a message.
  absl::flat_hash_set<core::RequestId> gone;
  if (!view.rejected.empty() || report.preempted_size() > 0)
    gone.insert(view.finished.begin(), view.finished.end());
  for (const v1::Rejection& rejection : report.rejected()) {
    if (rejection.code() < 1 || rejection.code() > 16) {
      return absl::InvalidArgumentError(absl::StrCat("a rejection carries code ", rejection.code()));
    }
    if (gone.contains(rejection.handle())) {
      return absl::InvalidArgumentError("a request is both rejected and finished");
    }
  }
  view.preempted.assign(report.preempted().begin(), report.preempted().end());
  gone.insert(view.rejected.begin(), view.rejected.end());
  for (const core::RequestId id : view.preempted) {
    if (gone.contains(id)) {
      return absl::InvalidArgumentError("a request is both preempted and finished or rejected");
    }
  }
  view.hints.clear();
  for (int i = 0; i < report.completion_hints_size(); ++i) {
    // A guess that is no probability is none; it is not worth a worker's place in the group.
    const double hint = report.completion_hints(i);
    if (hint >= 0 && hint <= 1) view.hints.push_back({report.handles(i), hint});
  }
  view.core.step = static_cast<int64_t>(report.step());
  view.core.applied_plan = static_cast<int64_t>(report.applied_plan());
  view.core.load_tokens = static_cast<int64_t>(report.load_tokens());
  view.core.finished = view.finished;
  view.core.rejected = view.rejected;
  view.core.preempted = view.preempted;
  view.core.hints = view.hints;
  view.core.group_idle = report.group_idle();
  view.core.prefill.reset();
  if (report.has_pending_prefill_tokens() && report.has_token_budget()) {
    view.core.prefill = {static_cast<int64_t>(report.pending_prefill_tokens()), report.token_budget()};
  }
  return absl::OkStatus();
}

absl::StatusOr<core::PolicyOptions> ConvertPolicy(const v1::PolicySetting& setting,
                                                  const core::PolicyOptions& present) {
  core::PolicyOptions options = present;
  if (setting.has_horizon()) {
    if (setting.horizon() > 500) return OutOfRange("policy.horizon", setting.horizon(), "within 0..500");
    options.horizon = static_cast<int32_t>(setting.horizon());
  }
  if (!setting.objective().empty()) options.objective = setting.objective();
  return options;
}

}  // namespace bfio::router
