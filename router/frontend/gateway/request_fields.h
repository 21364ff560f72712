// The fields of Generate requests that the engines' protocols share. All values of a gateway's request that
// are accepted here are in range. Each protocol checks its own fields; the shared ones are checked and
// converted here. Pure; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/out_of_range.h"
#include "common/base/status_macros.h"
#include "google/protobuf/message.h"
#include "router/requests/check_request.h"
#include "router/requests/limits.h"
#include "router/requests/request.h"

namespace bfio::router::gateway {

// Bounds of a request: its outputs; its texts that end an output, as each is searched with every token.
inline constexpr uint32_t kMaxOutputs = 128;
inline constexpr size_t kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 256;

// Defaults of a request, and properties of the engines.
struct RequestContext {
  RequestLimits limits;
  // The longest prompt + output of a request; 0: unknown.
  int64_t max_sequence_tokens = 0;
  // Why outputs cannot be searched for texts that end them; empty: they can.
  std::string no_stop_texts;
  // The engines use the gateway's protocol: requests pass unchanged.
  bool passes = false;
  // After the loss of its engine, a request that passes may continue with other random draws than before.
  bool may_resample = false;
  // The caller may hand KV over between engines; where callers are not authenticated, it is unknown.
  enum class KvTransfer { kRefused, kUnknown, kTrusted } kv_transfer = KvTransfer::kUnknown;
};

struct ConvertedRequest {
  // The request of the first output.
  ClientRequest request;
  uint32_t outputs = 1;
  // Tokens are sent as they are generated; otherwise at the end.
  bool stream = false;
  // Texts that end an output, and whether special tokens are part of the text.
  std::vector<std::string> stops;
  bool special_text = false;
};

using FieldNames = absl::Span<const absl::string_view>;
// The first of these fields of `message` that has a value other than its default; empty: none.
absl::string_view FieldSetIn(const google::protobuf::Message& message, FieldNames names);
// INVALID_ARGUMENT naming the field of SamplingParams that changes what an engine computes, in all protocols
// or, for those `of_protocol`, in this one.
absl::Status CheckSampling(const google::protobuf::Message& sampling, FieldNames of_protocol);
// INVALID_ARGUMENT, with the field's number, for a set field that this version does not declare: it may
// change the output.
absl::Status CheckNoUnknownFields(std::initializer_list<const google::protobuf::Message*> messages);
// Of a request with its prompt and parameters.
template <typename GenerateRequest>
absl::Status CheckAllKnown(const GenerateRequest& from) {
  return CheckNoUnknownFields({&from, &from.tokenized(), &from.sampling_params()});
}
// INVALID_ARGUMENT naming that of the fields, which hand KV over, that the request has and its caller must
// not use: KV that nobody fetches keeps its memory, and a fetch of none ends vLLM's engine.
absl::Status CheckKvTransfer(const google::protobuf::Message& request, FieldNames names,
                             const RequestContext& context);
// INVALID_ARGUMENT naming the field.
absl::Status NotSupported(absl::string_view field);
absl::Status CheckStops(absl::Span<const std::string> stops, const RequestContext& context);
// INVALID_ARGUMENT for a negative rank. The handler checks whether the rank exists.
absl::Status CheckRank(std::optional<int32_t> rank);

// A field that limits the output, and its name; the name of the field for log-probabilities. Unset: as many
// tokens as fit after the prompt. UNAVAILABLE when that number is unknown.
struct OutputLimit {
  std::optional<uint32_t> tokens;
  absl::string_view name, logprobs = "sampling_params.logprobs";
};
absl::StatusOr<uint32_t> MaxNewTokens(const OutputLimit& limit, size_t prompt_tokens,
                                      const RequestContext& context);
// An error of CheckRequest with the names of these protocols' fields.
absl::Status InFieldsOfGateways(const absl::Status& status, const OutputLimit& limit);

// INVALID_ARGUMENT naming field, value and limit; UNAVAILABLE as of MaxNewTokens.
template <typename GenerateRequest>
absl::StatusOr<ConvertedRequest> ConvertFields(const GenerateRequest& from, std::string tenant,
                                               const OutputLimit& limit, Sampling how,
                                               const RequestContext& context) {
  const auto& sampling = from.sampling_params();
  BFIO_RETURN_IF_ERROR(CheckAllKnown(from));
  ConvertedRequest to;
  to.stops.assign(sampling.stop().begin(), sampling.stop().end());
  BFIO_RETURN_IF_ERROR(CheckStops(to.stops, context));
  std::optional<int32_t> rank;
  if (from.has_data_parallel_rank()) rank = from.data_parallel_rank();
  BFIO_RETURN_IF_ERROR(CheckRank(rank));
  if (sampling.n() > kMaxOutputs)
    return OutOfRange("sampling_params.n", sampling.n(), absl::StrCat("at most ", kMaxOutputs));
  if (from.tokenized().input_ids_size() < 1) {
    return absl::InvalidArgumentError(
        "tokenized.input_ids is empty; the prompt must be token ids, because this engine does not tokenize");
  }
  to.outputs = std::max<uint32_t>(1, sampling.n());
  to.stream = from.stream();
  to.special_text = !sampling.skip_special_tokens();
  ClientRequest& request = to.request;
  request.request_id = from.request_id();
  request.tenant = std::move(tenant);
  request.prompt.assign(from.tokenized().input_ids().begin(), from.tokenized().input_ids().end());
  request.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  request.largest_id = LargestOf(request.prompt);
  BFIO_ASSIGN_OR_RETURN(request.max_new_tokens, MaxNewTokens(limit, request.prompt.size(), context));
  request.max_new_tokens_unset = !limit.tokens.has_value();
  request.priority_unset = true;
  request.stop_token_ids.assign(sampling.stop_token_ids().begin(), sampling.stop_token_ids().end());
  request.ignore_eos = sampling.ignore_eos();
  request.sampling = std::move(how);
  if (rank) request.rank = static_cast<uint32_t>(*rank);
  BFIO_RETURN_IF_ERROR(InFieldsOfGateways(CheckRequest(request, context.limits), limit));
  if (context.limits.name_prefixes) request.prefix = core::NamePrefixBlocks(request.prompt);
  return to;
}

// The number of tokens of a prompt; an estimate for a text. INVALID_ARGUMENT: there is no prompt.
absl::StatusOr<uint32_t> PromptTokens(int64_t ids, absl::string_view text);

// The prompt's blocks.
template <typename TokenizedInput>
core::PrefixBlocks PrefixOf(const TokenizedInput& from) {
  return core::NamePrefixBlocks({from.input_ids().data(), static_cast<size_t>(from.input_ids_size())});
}

// What the prompt's ids say, where they are all of it (Passing::exact_length).
template <typename TokenizedInput>
void TakeIds(const TokenizedInput& from, ClientRequest& to) {
  to.passed.exact_length = true;
  to.largest_id = LargestOf({from.input_ids().data(), static_cast<size_t>(from.input_ids_size())});
}

// For a request that the engines check: reads only what the router needs. `prompt_tokens` is its length.
template <typename GenerateRequest>
absl::StatusOr<ConvertedRequest> PassFields(const GenerateRequest& from, std::string tenant,
                                            const OutputLimit& limit, uint32_t prompt_tokens,
                                            const RequestContext& context) {
  ConvertedRequest to;
  std::optional<int32_t> rank;
  if (from.has_data_parallel_rank()) rank = from.data_parallel_rank();
  BFIO_RETURN_IF_ERROR(CheckRank(rank));
  const uint32_t outputs = from.sampling_params().n();
  if (outputs > kMaxOutputs)
    return OutOfRange("sampling_params.n", outputs, absl::StrCat("at most ", kMaxOutputs));
  to.outputs = std::max<uint32_t>(1, outputs);
  to.stream = from.stream();
  ClientRequest& request = to.request;
  request.request_id = from.request_id();
  request.tenant = std::move(tenant);
  request.prompt_tokens = prompt_tokens;
  BFIO_ASSIGN_OR_RETURN(request.max_new_tokens, MaxNewTokens(limit, prompt_tokens, context));
  request.max_new_tokens_unset = !limit.tokens.has_value();
  request.priority_unset = true;
  if (rank) request.rank = static_cast<uint32_t>(*rank);
  request.passed.on = true;
  BFIO_RETURN_IF_ERROR(InFieldsOfGateways(CheckRequest(request, context.limits), limit));
  return to;
}

}  // namespace bfio::router::gateway
