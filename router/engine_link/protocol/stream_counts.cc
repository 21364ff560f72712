#include "router/engine_link/protocol/stream_counts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bfio::router {
namespace {

absl::Status Differs(uint32_t count, int64_t tokens) {
  return absl::DataLossError(
      absl::StrCat("the engine reports ", count, " tokens, but ", tokens,
                   " were received: a message is missing, duplicated or out of order"));
}

}  // namespace

absl::Status StreamCounts::OnChunk(absl::Span<const uint32_t> ids, uint32_t count) {
  received_ += std::ssize(ids);
  if (received_ > options_.max_new_tokens) {
    return absl::DataLossError(absl::StrCat("the engine sent more tokens than requested: ", received_,
                                            " of at most ", options_.max_new_tokens));
  }
  // Negative ones of an engine are above 2^31 here. It would be part of the prompt of another engine.
  constexpr uint32_t kMostIds = uint32_t{1} << 31;
  const uint32_t below = options_.vocabulary == 0 ? kMostIds : options_.vocabulary;
  for (const uint32_t id : ids) {
    if (id >= below)
      return absl::DataLossError(
          absl::StrCat("the engine sent the token id ", id, "; the model's are below ", below));
  }
  const int64_t counted = options_.cumulative ? received_ : std::ssize(ids);
  if (count != 0 && count != counted) return Differs(count, counted);
  last_.assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status StreamCounts::OnComplete(absl::Span<const uint32_t> ids, uint32_t count, uint32_t prompt_tokens,
                                      EngineFinish finish) {
  if (!ids.empty() && !std::equal(ids.begin(), ids.end(), last_.begin(), last_.end())) {
    return absl::DataLossError(
        "the last tokens received differ from the last tokens that the engine reports: a message is "
        "missing, duplicated or out of order");
  }
  const bool of_last = !options_.cumulative && count == std::ssize(ids);
  if (count != 0 && !of_last && count != received_) return Differs(count, received_);
  const int64_t prompt = prompt_tokens > 0 ? prompt_tokens : options_.prompt_tokens;
  if (finish == EngineFinish::kLength && options_.context_tokens > 0 && received_ < options_.max_new_tokens &&
      prompt + received_ < options_.context_tokens) {
    return absl::DataLossError(
        absl::StrCat("the engine reports that the output reached its length limit after ", received_, " of ",
                     options_.max_new_tokens, " tokens: some are missing"));
  }
  return absl::OkStatus();
}

}  // namespace bfio::router
