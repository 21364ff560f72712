#include "router/frontend/generate_request.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/out_of_range.h"
#include "common/net/wire_time.h"
#include "router/requests/check_request.h"

namespace bfio::router {
namespace {

// Errors of a prompt that a ClientRequest cannot distinguish from a missing one.
absl::Status CheckPromptForm(const v1::GenerateRequest& request, const RequestLimits& limits) {
  const std::string range = absl::StrCat("within 1..", limits.max_prompt_tokens);
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kTokenIds:
      if (request.token_ids().ids_size() < 1) return OutOfRange("the number of token_ids", 0, range);
      break;
    case v1::GenerateRequest::kPromptLength:
      if (request.prompt_length() < 1) return OutOfRange("prompt_length", 0, range);
      break;
    case v1::GenerateRequest::PROMPT_NOT_SET:
      if (request.has_resume_from_index()) break;
      return absl::InvalidArgumentError("prompt is missing; set token_ids or prompt_length");
  }
  return absl::OkStatus();
}

// Checks that a duration is above zero and at most the given number of hours; unset is valid.
absl::Status CheckWireDuration(absl::string_view field, bool set, const google::protobuf::Duration& duration,
                               int64_t hours) {
  if (!set) return absl::OkStatus();
  const bool proper = duration.seconds() >= 0 && duration.seconds() <= hours * 3600 &&
                      duration.nanos() >= 0 && duration.nanos() < 1'000'000'000;
  const bool above = duration.seconds() > 0 || duration.nanos() > 0;
  if (proper && above && DurationOf(duration) <= absl::Hours(hours)) return absl::OkStatus();
  return OutOfRange(field, absl::StrCat(duration.seconds(), " s and ", duration.nanos(), " ns"),
                    absl::StrCat("above 0 and at most ", hours, " h"));
}

absl::Status CheckDurations(const v1::GenerateRequest& request) {
  absl::Status status =
      CheckWireDuration("ttft_objective", request.has_ttft_objective(), request.ttft_objective(), 1);
  if (!status.ok()) return status;
  return CheckWireDuration("parent_timeout", request.has_parent_timeout(), request.parent_timeout(), 24);
}

Sampling ToSampling(const v1::SamplingParams& from) {
  Sampling sampling;
  if (from.has_temperature()) sampling.temperature = from.temperature();
  if (from.has_top_p()) sampling.top_p = from.top_p();
  if (from.has_top_k()) sampling.top_k = from.top_k();
  if (from.has_seed()) sampling.seed = from.seed();
  if (from.has_logprobs()) sampling.logprobs = from.logprobs();
  return sampling;
}

// REQUIRES: the checks above passed.
ClientRequest Convert(const v1::GenerateRequest& from) {
  ClientRequest request;
  if (from.has_token_ids()) {
    request.prompt.assign(from.token_ids().ids().begin(), from.token_ids().ids().end());
    request.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  } else {
    request.prompt_tokens = from.prompt_length();
  }
  request.max_new_tokens = from.max_new_tokens();
  request.stop_token_ids.assign(from.stop_token_ids().begin(), from.stop_token_ids().end());
  request.ignore_eos = from.ignore_eos();
  request.sampling = ToSampling(from.sampling());
  request.priority = from.priority();
  if (from.has_predicted_output_tokens()) request.predicted_output_tokens = from.predicted_output_tokens();
  if (from.has_ttft_objective()) request.ttft_objective = DurationOf(from.ttft_objective());
  request.resumable = from.resumable();
  request.resume_token = from.resume_token();
  if (from.has_resume_from_index()) request.resume_from = from.resume_from_index();
  request.received.assign(from.received_token_ids().begin(), from.received_token_ids().end());
  request.parent_id = from.parent_id();
  if (from.has_stage()) request.stage = from.stage();
  if (from.has_remaining_tokens()) request.remaining_tokens = from.remaining_tokens();
  if (from.has_parent_timeout()) request.parent_timeout = DurationOf(from.parent_timeout());
  return request;
}

ClientRequest BareResume(ClientRequest request) {
  ClientRequest bare;
  bare.request_id = std::move(request.request_id);
  bare.tenant = std::move(request.tenant);
  bare.resumable = request.resumable;
  bare.resume_token = std::move(request.resume_token);
  bare.resume_from = request.resume_from;
  return bare;
}

}  // namespace

absl::StatusOr<ClientRequest> ToClientRequest(const v1::GenerateRequest& request, std::string request_id,
                                              std::string tenant, const RequestLimits& limits) {
  if (absl::Status status = CheckDurations(request); !status.ok()) return status;
  if (absl::Status status = CheckPromptForm(request, limits); !status.ok()) return status;
  ClientRequest converted = Convert(request);
  converted.request_id = std::move(request_id);
  converted.tenant = std::move(tenant);
  if (absl::Status status = CheckRequest(converted, limits); !status.ok()) return status;
  if (IsBareResume(converted)) return BareResume(std::move(converted));
  if (limits.name_prefixes) converted.prefix = core::NamePrefixBlocks(converted.prompt);
  return converted;
}

}  // namespace bfio::router
