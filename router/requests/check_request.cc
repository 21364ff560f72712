#include "router/requests/check_request.h"

#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/out_of_range.h"
#include "common/base/status_macros.h"

namespace bfio::router {
namespace {

// Bounds of an agent's call.
constexpr uint32_t kMaxStage = uint32_t{1} << 20;
constexpr uint32_t kMaxRemaining = uint32_t{1} << 24;

absl::Status CheckSampling(const Sampling& sampling, const RequestLimits& limits) {
  // The negated comparisons also catch NaN.
  if (sampling.temperature && !(*sampling.temperature >= 0 && *sampling.temperature <= 2))
    return OutOfRange("sampling.temperature", *sampling.temperature, "within 0..2");
  if (sampling.top_p && !(*sampling.top_p > 0 && *sampling.top_p <= 1))
    return OutOfRange("sampling.top_p", *sampling.top_p, "above 0 and at most 1");
  if (sampling.top_k && *sampling.top_k < 1)
    return OutOfRange("sampling.top_k", *sampling.top_k, "at least 1");
  if (sampling.logprobs.value_or(0) > limits.max_logprobs) {
    return OutOfRange("sampling.logprobs", *sampling.logprobs, absl::StrCat("at most ", limits.max_logprobs));
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(const ClientRequest& request, const RequestLimits& limits) {
  if (!request.has_prompt()) return absl::InvalidArgumentError("prompt is missing");
  if (request.prompt_tokens <= limits.max_prompt_tokens) return absl::OkStatus();
  return OutOfRange(request.has_prompt_ids() ? "the number of token_ids" : "prompt_length",
                    request.prompt_tokens, absl::StrCat("within 1..", limits.max_prompt_tokens));
}

absl::Status CheckDuration(absl::string_view field, const std::optional<absl::Duration>& value,
                           int64_t hours) {
  if (!value || (*value > absl::ZeroDuration() && *value <= absl::Hours(hours))) return absl::OkStatus();
  return OutOfRange(field, absl::FormatDuration(*value), absl::StrCat("above 0 and at most ", hours, " h"));
}

absl::Status CheckParent(const ClientRequest& request, const RequestLimits& limits) {
  if (request.parent_id.size() > limits.max_id_bytes) {
    return OutOfRange("parent_id's length", request.parent_id.size(),
                      absl::StrCat("at most ", limits.max_id_bytes, " bytes"));
  }
  if (request.parent_id.empty() && (request.stage || request.remaining_tokens || request.parent_timeout)) {
    return absl::InvalidArgumentError("stage, remaining_tokens and parent_timeout need parent_id");
  }
  if (request.stage.value_or(0) > kMaxStage) {
    return OutOfRange("stage", *request.stage, absl::StrCat("at most ", kMaxStage));
  }
  if (request.remaining_tokens.value_or(0) > kMaxRemaining) {
    return OutOfRange("remaining_tokens", *request.remaining_tokens, absl::StrCat("at most ", kMaxRemaining));
  }
  return CheckDuration("parent_timeout", request.parent_timeout, 24);
}

absl::Status CheckResume(const ClientRequest& request, const RequestLimits& limits) {
  if (request.resume_token.size() > limits.max_resume_token_bytes) {
    return OutOfRange("resume_token's length", request.resume_token.size(),
                      absl::StrCat("at most ", limits.max_resume_token_bytes, " bytes"));
  }
  if (request.resume_from.value_or(0) > limits.max_new_tokens) {
    return OutOfRange("resume_from_index", *request.resume_from,
                      absl::StrCat("at most ", limits.max_new_tokens));
  }
  const size_t received = request.received.size();
  if (received == 0) return absl::OkStatus();
  if (!request.resume_from || !request.has_prompt()) {
    return absl::InvalidArgumentError("received_token_ids needs resume_from_index and a prompt");
  }
  if (received < *request.resume_from || received > request.max_new_tokens) {
    return OutOfRange("the number of received_token_ids", received,
                      absl::StrCat("within resume_from_index..max_new_tokens, ", *request.resume_from, "..",
                                   request.max_new_tokens));
  }
  if (request.sampling.logprobs && *request.resume_from < received) {
    return OutOfRange("resume_from_index", *request.resume_from,
                      absl::StrCat("the number of received_token_ids, ", received,
                                   ", because log-probabilities of earlier tokens are no longer kept"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckObjective(absl::string_view field, const std::optional<absl::Duration>& objective) {
  return CheckDuration(field, objective, 1);
}

absl::StatusOr<absl::Duration> TtftObjectiveOf(absl::string_view text) {
  double ms = 0;
  if (!absl::SimpleAtod(text, &ms))
    return absl::InvalidArgumentError(absl::StrCat(kTtftHeader, " is not a number of milliseconds"));
  const absl::Duration objective = absl::Milliseconds(ms);
  BFIO_RETURN_IF_ERROR(CheckObjective(kTtftHeader, objective));
  return objective;
}

absl::Status CheckRequest(const ClientRequest& request, const RequestLimits& limits) {
  if (request.request_id.size() > limits.max_id_bytes) {
    return OutOfRange("request_id's length", request.request_id.size(),
                      absl::StrCat("at most ", limits.max_id_bytes, " bytes"));
  }
  if (request.tenant.size() > limits.max_id_bytes) {
    return OutOfRange("tenant's length", request.tenant.size(),
                      absl::StrCat("at most ", limits.max_id_bytes, " bytes"));
  }
  BFIO_RETURN_IF_ERROR(CheckParent(request, limits));
  BFIO_RETURN_IF_ERROR(CheckObjective("ttft_objective", request.ttft_objective));
  if (IsBareResume(request)) return CheckResume(request, limits);
  BFIO_RETURN_IF_ERROR(CheckPrompt(request, limits));
  if (request.max_new_tokens < 1 || request.max_new_tokens > limits.max_new_tokens) {
    return OutOfRange("max_new_tokens", request.max_new_tokens,
                      absl::StrCat("within 1..", limits.max_new_tokens));
  }
  if (request.stop_token_ids.size() > limits.max_stop_ids) {
    return OutOfRange("the number of stop_token_ids", request.stop_token_ids.size(),
                      absl::StrCat("at most ", limits.max_stop_ids));
  }
  if (std::abs(int64_t{request.priority}) > limits.max_abs_priority) {
    return OutOfRange("priority", request.priority,
                      absl::StrCat("within -", limits.max_abs_priority, "..", limits.max_abs_priority));
  }
  if (request.predicted_output_tokens && *request.predicted_output_tokens < 1) {
    return OutOfRange("predicted_output_tokens", *request.predicted_output_tokens, "at least 1, or unset");
  }
  BFIO_RETURN_IF_ERROR(CheckResume(request, limits));
  if (request.resume_from && *request.resume_from > request.max_new_tokens) {
    return OutOfRange("resume_from_index", *request.resume_from,
                      absl::StrCat("at most max_new_tokens, ", request.max_new_tokens));
  }
  return CheckSampling(request.sampling, limits);
}

}  // namespace bfio::router
