#include "worker/engine/request_check.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace bfio::worker {
namespace {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status CheckSampling(const Sampling& sampling) {
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0) {
    return Invalid("temperature must be at least 0, not ", sampling.temperature);
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return Invalid("top_p must be in (0, 1], not ", sampling.top_p);
  }
  if (sampling.top_k && *sampling.top_k < 1) {
    return Invalid("top_k must be at least 1, not ", *sampling.top_k);
  }
  if (sampling.logprobs && (*sampling.logprobs < 0 || *sampling.logprobs > kMaxLogprobs)) {
    return Invalid("logprobs must be in 0..", kMaxLogprobs, ", not ", *sampling.logprobs);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRequest(const SequenceRequest& request, const EngineLimits& limits) {
  if (request.prompt_length < 1) return Invalid("prompt_length must be at least 1");
  if (request.max_new_tokens < 1) return Invalid("max_new_tokens must be at least 1");
  if (!request.prompt.empty() && static_cast<int64_t>(request.prompt.size()) != request.prompt_length) {
    return Invalid("prompt_length ", request.prompt_length, " differs from the ", request.prompt.size(),
                   " ids given");
  }
  if (request.first_index < 0 || request.first_index >= request.prompt_length) {
    return Invalid("first_index ", request.first_index, " is outside the prompt of ", request.prompt_length);
  }
  const int64_t total = request.prompt_length + request.max_new_tokens;
  if (total > limits.max_sequence_tokens) {
    return Invalid("prompt + output of ", total, " tokens exceeds the limit of ", limits.max_sequence_tokens);
  }
  if (ReservedKvTokens(request) > limits.kv_tokens) {
    return Invalid("prompt + output of ", total, " tokens exceeds the KV capacity of ", limits.kv_tokens);
  }
  return CheckSampling(request.sampling);
}

absl::Status CheckLimits(const EngineLimits& limits) {
  if (limits.slots < 1) return Invalid("slots must be at least 1, not ", limits.slots);
  if (limits.kv_tokens < 1) return Invalid("kv_tokens must be at least 1, not ", limits.kv_tokens);
  if (limits.max_sequence_tokens < 2) return Invalid("max_sequence_tokens must be at least 2");
  return absl::OkStatus();
}

}  // namespace bfio::worker
