#include "router/frontend/vllm/generate_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/requests/check_request.h"

namespace bfio::router::vllm {
namespace {

absl::Status NotSupported(absl::string_view field) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is not supported by the engines behind this router"));
}

const char* ConstraintName(const pb::SamplingParams& sampling) {
  switch (sampling.constraint_case()) {
    case pb::SamplingParams::kJsonSchema:
      return "json_schema";
    case pb::SamplingParams::kRegex:
      return "regex";
    case pb::SamplingParams::kGrammar:
      return "grammar";
    case pb::SamplingParams::kStructuralTag:
      return "structural_tag";
    case pb::SamplingParams::kJsonObject:
      return "json_object";
    case pb::SamplingParams::kChoice:
      return "choice";
    case pb::SamplingParams::CONSTRAINT_NOT_SET:
      return nullptr;
  }
  return nullptr;
}

// Fields that change what an engine computes. NaN is not 0, and so refused.
absl::Status CheckUnsupportedSampling(const pb::SamplingParams& sampling) {
  const auto refused = [](const char* field) {
    return NotSupported(absl::StrCat("sampling_params.", field));
  };
  if (sampling.min_p() != 0) return refused("min_p");
  if (sampling.frequency_penalty() != 0) return refused("frequency_penalty");
  if (sampling.presence_penalty() != 0) return refused("presence_penalty");
  if (sampling.repetition_penalty() != 0 && sampling.repetition_penalty() != 1)
    return refused("repetition_penalty");
  if (sampling.min_tokens() != 0) return refused("min_tokens");
  if (sampling.has_logprobs()) return refused("logprobs");
  if (sampling.has_prompt_logprobs()) return refused("prompt_logprobs");
  if (!sampling.logit_bias().empty()) return refused("logit_bias");
  if (sampling.has_truncate_prompt_tokens()) return refused("truncate_prompt_tokens");
  if (const char* constraint = ConstraintName(sampling); constraint != nullptr) return refused(constraint);
  return absl::OkStatus();
}

absl::Status CheckUnsupported(const pb::GenerateRequest& request) {
  if (request.input_case() == pb::GenerateRequest::kText)
    return NotSupported("text, a prompt that is not tokenized,");
  if (request.has_mm_inputs()) return NotSupported("mm_inputs");
  if (request.extra_mm_inputs_size() > 0) return NotSupported("extra_mm_inputs");
  if (request.has_media_refs()) return NotSupported("media_refs");
  if (request.has_kv_transfer_params()) return NotSupported("kv_transfer_params");
  if (request.has_kv_transfer_params_json()) return NotSupported("kv_transfer_params_json");
  return CheckUnsupportedSampling(request.sampling_params());
}

absl::Status CheckStops(const pb::SamplingParams& sampling, const RequestContext& context) {
  if (sampling.stop().empty()) return absl::OkStatus();
  if (!context.no_stop_texts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling_params.stop needs the model's tokenizer at the router (--tokenizer): ",
                     context.no_stop_texts));
  }
  if (sampling.stop_size() > kMaxStops) {
    return OutOfRange("the number of sampling_params.stop", sampling.stop_size(),
                      absl::StrCat("at most ", kMaxStops));
  }
  for (const std::string& stop : sampling.stop()) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return OutOfRange("the length of a sampling_params.stop", stop.size(),
                        absl::StrCat("within 1..", kMaxStopBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

// To a gateway all ranks are one engine.
absl::Status CheckRank(const pb::GenerateRequest& request) {
  if (!request.has_data_parallel_rank() || request.data_parallel_rank() == 0) return absl::OkStatus();
  return OutOfRange("data_parallel_rank", request.data_parallel_rank(),
                    "0 or unset: the router reports a data_parallel_size of 1 and chooses the rank itself");
}

// Unset or 0: as many as fit behind the prompt.
absl::StatusOr<uint32_t> MaxNewTokens(const pb::SamplingParams& sampling, size_t prompt_tokens,
                                      const RequestContext& context) {
  if (sampling.has_max_tokens()) return sampling.max_tokens();
  if (context.max_sequence_tokens == 0) {
    return absl::UnavailableError(
        "sampling_params.max_tokens is not set, and no worker has said yet how many it holds");
  }
  const int64_t left = context.max_sequence_tokens - static_cast<int64_t>(prompt_tokens);
  // A prompt that leaves none is refused by the router as too long.
  return static_cast<uint32_t>(std::clamp<int64_t>(left, 1, context.limits.max_new_tokens));
}

Sampling ToSampling(const pb::SamplingParams& from) {
  Sampling sampling;
  sampling.temperature = from.has_temperature() ? from.temperature() : 1.0f;
  if (from.top_p() != 0) sampling.top_p = from.top_p();
  if (from.top_k() != 0) sampling.top_k = from.top_k();
  if (from.has_seed()) sampling.seed = static_cast<uint32_t>(from.seed());
  return sampling;
}

}  // namespace

absl::StatusOr<ConvertedRequest> Convert(const pb::GenerateRequest& from, std::string tenant,
                                         const RequestContext& context) {
  const pb::SamplingParams& sampling = from.sampling_params();
  if (absl::Status status = CheckUnsupported(from); !status.ok()) return status;
  if (absl::Status status = CheckStops(sampling, context); !status.ok()) return status;
  if (absl::Status status = CheckRank(from); !status.ok()) return status;
  if (sampling.n() > kMaxOutputs)
    return OutOfRange("sampling_params.n", sampling.n(), absl::StrCat("at most ", kMaxOutputs));
  if (from.tokenized().input_ids_size() < 1)
    return absl::InvalidArgumentError("tokenized.input_ids is empty; the prompt's token ids are missing");
  ConvertedRequest to;
  to.outputs = std::max<uint32_t>(1, sampling.n());
  to.stream = from.stream();
  to.stops.assign(sampling.stop().begin(), sampling.stop().end());
  to.special_text = !sampling.skip_special_tokens();
  ClientRequest& request = to.request;
  request.request_id = from.request_id();
  request.tenant = std::move(tenant);
  request.prompt.assign(from.tokenized().input_ids().begin(), from.tokenized().input_ids().end());
  request.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  const absl::StatusOr<uint32_t> max_new_tokens = MaxNewTokens(sampling, request.prompt.size(), context);
  if (!max_new_tokens.ok()) return max_new_tokens.status();
  request.max_new_tokens = *max_new_tokens;
  request.stop_token_ids.assign(sampling.stop_token_ids().begin(), sampling.stop_token_ids().end());
  request.ignore_eos = sampling.ignore_eos();
  request.sampling = ToSampling(sampling);
  if (absl::Status status = CheckRequest(request, context.limits); !status.ok()) return status;
  return to;
}

std::string OutputName(const std::string& request_id, uint32_t index) {
  return index == 0 ? request_id : absl::StrCat(request_id, "/", index);
}

ClientRequest OutputRequest(const ClientRequest& first, uint32_t index) {
  ClientRequest request = first;
  request.request_id = OutputName(first.request_id, index);
  if (request.sampling.seed) *request.sampling.seed += index;
  return request;
}

}  // namespace bfio::router::vllm
