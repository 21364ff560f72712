// Checks whether all tokens that the engine has sent for an output have been received. Engines count the
// tokens of their messages. A count that does not fit the tokens received means that a message is missing,
// came twice, or came in another order. What each protocol counts is in Options. A count of 0 in a message
// with tokens is no count. Pure. Threads: one. Tokens. Errors: DATA_LOSS.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "router/engine_link/engine_call.h"

namespace bfio::router {

class StreamCounts {
 public:
  struct Options {
    // A chunk's count covers the whole output so far; otherwise only the chunk.
    bool cumulative = false;
    // Prompt tokens of the request, where known.
    int64_t prompt_tokens = 0;
    int64_t max_new_tokens = 0;
    // An output that ends by its length has max_new_tokens, or prompt and output together have this many; 0:
    // outputs may end by length at other counts.
    int64_t context_tokens = 0;
    // Token ids are below it; 0: unknown.
    uint32_t vocabulary = 0;
  };
  explicit StreamCounts(const Options& options) : options_(options) {}

  absl::Status OnChunk(absl::Span<const uint32_t> ids, uint32_t count);
  // `ids`: the last chunk's tokens again, or none.
  // `count` counts `ids` or the whole output. `prompt_tokens` is the engine's count; 0: none.
  absl::Status OnComplete(absl::Span<const uint32_t> ids, uint32_t count, uint32_t prompt_tokens,
                          EngineFinish finish);

 private:
  const Options options_;
  int64_t received_ = 0;
  std::vector<uint32_t> last_;
};

}  // namespace bfio::router
