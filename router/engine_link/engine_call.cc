#include "router/engine_link/engine_call.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/auth/bearer_tokens.h"
#include "common/json/json_reader.h"

namespace bfio::router {

absl::Status Complete(EngineDescription& description) {
  constexpr int32_t kMostRanks = 1024;
  constexpr size_t kMostNameBytes = 4096;
  if (std::max({description.model.size(), description.kv_connector.size(), description.kv_type.size()}) >
      kMostNameBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("it reports a name of more than ", kMostNameBytes, " bytes"));
  const int32_t ranks = std::max(description.ranks, description.joined_ranks);
  if (description.ranks < 1 || ranks > kMostRanks)
    return absl::InvalidArgumentError(
        absl::StrCat("it reports ", ranks, " ranks; must be within 1..", kMostRanks));
  if (description.slots < 1)
    return absl::InvalidArgumentError(
        "it does not report how many requests it runs at a time (max_num_seqs)");
  if (description.slots > kMostEngineSlots)
    return absl::InvalidArgumentError(absl::StrCat("it reports that it runs more than ", kMostEngineSlots,
                                                   " requests at a time (max_num_seqs)"));
  if (description.max_sequence_tokens < 2)
    return absl::InvalidArgumentError("it does not report the longest sequence (max_context_length)");
  if (description.kv_tokens < 1) description.kv_tokens = description.slots * description.max_sequence_tokens;
  return absl::OkStatus();
}

void FillIn(const EngineDescription& before, EngineDescription& description) {
  const int32_t end = before.first_rank + before.ranks;
  if (description.first_rank >= before.first_rank && description.first_rank + description.ranks <= end) {
    description.first_rank = before.first_rank;
    description.ranks = before.ranks;
  }
  // It says nothing about the server, and concerns only the time before ranks attach.
  description.running = before.running;
  if (description.kv_tokens < 1) description.kv_tokens = before.kv_tokens;
  if (description.slots < 1) description.slots = before.slots;
  if (description.max_sequence_tokens < 2) description.max_sequence_tokens = before.max_sequence_tokens;
}

bool SameServer(const EngineDescription& a, const EngineDescription& b) {
  return a.model == b.model && a.all_ranks == b.all_ranks && a.joined_ranks == b.joined_ranks &&
         a.max_sequence_tokens == b.max_sequence_tokens && a.vocabulary == b.vocabulary &&
         a.hands_over == b.hands_over;
}

bool Pair(const EngineDescription& a, const EngineDescription& b) {
  return a.model == b.model && a.kv_connector == b.kv_connector &&
         (a.kv_type == b.kv_type || a.kv_type.empty() || b.kv_type.empty()) &&
         (a.kv_block_tokens == b.kv_block_tokens || a.kv_block_tokens == 0 || b.kv_block_tokens == 0);
}

std::string ModelDigest(const EngineDescription& description) {
  const Sha256Digest digest = Sha256(absl::StrCat("engine model\n", description.model));
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

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
  call.max_new_tokens = assignment.hands_over ? 1 : request.max_new_tokens - assignment.first_index;
  call.hands_over = assignment.hands_over;
  call.hand_off = assignment.hand_off;
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
