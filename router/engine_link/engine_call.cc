#include "router/engine_link/engine_call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bfio::router {

absl::StatusOr<EngineCall> ToEngineCall(const Assignment& assignment) {
  const ClientRequest& request = *assignment.request;
  if (assignment.first_index > 0 && !request.passed.on && !EngineContinues(request)) {
    return absl::UnavailableError(
        absl::StrCat("the request's engine was lost after ", assignment.first_index,
                     " tokens, and another engine cannot continue an output that is sampled with a seed"));
  }
  if (request.passed.on && request.passed.message == nullptr)
    return absl::UnavailableError(
        "the request was too large to be kept for another engine (--request_memory_mb)");
  EngineCall call;
  call.id = assignment.id;
  if (request.has_prompt_ids() || request.passed.on) {
    call.passed = request.passed;
    if (request.passed.on) call.passed_tokens = request.prompt_tokens;
    call.prompt = request.prompt;
    if (assignment.history != nullptr)
      call.prompt.insert(call.prompt.end(), assignment.history->begin(), assignment.history->end());
  } else {
    call.synthetic_tokens = request.prompt_tokens + assignment.first_index;
  }
  call.max_new_tokens = request.max_new_tokens - assignment.first_index;
  call.stop_token_ids = request.stop_token_ids;
  call.ignore_eos = request.ignore_eos;
  call.sampling = request.sampling;
  call.refusals = assignment.refusals;
  if (assignment.traceparent != nullptr) call.traceparent = *assignment.traceparent;
  return call;
}

std::vector<uint32_t> SyntheticPrompt(uint32_t tokens, uint32_t vocabulary) {
  // Small vocabularies have all ids up to here, and special tokens are usually the first or the last ones.
  constexpr uint32_t kIds = 100;
  const uint32_t ids = vocabulary == 0 ? kIds : std::min(kIds, vocabulary);
  std::vector<uint32_t> prompt(tokens);
  for (uint32_t i = 0; i < tokens; ++i) prompt[i] = (ids / 2 + i * 7) % ids;
  return prompt;
}

}  // namespace bfio::router
