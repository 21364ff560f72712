// vLLM's kv_transfer_params (JSON), as an engine that has computed a prompt states them, or a gateway that
// has had it computed: what the engine that decodes is to fetch. vLLM 0.32 checks little of it, and ends when
// there is nothing to fetch, or no id names it. Pure. Threads: any.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::router {

struct KvTransfer {
  // KV is to be fetched; otherwise the rest is empty.
  bool fetches = false;
  // What names it (remote_request_id or transfer_id), and the engine that keeps it.
  std::string name, engine;
  // "HOST:PORT" of that engine's transfers; empty: not given.
  std::string source;
};

// Tokens for which an engine may hold blocks beyond the prompt's: the generated one, and drafts.
inline constexpr size_t kKvTokensAhead = 64;

// `most_blocks`: of one list; `least_blocks`: of the longest, where ranks do not divide contexts among them.
// vLLM's engine ends when it fetches more than there are. INVALID_ARGUMENT with what is wrong: it is no
// object, beyond the bounds of common/json, or a field is not what it must be.
absl::StatusOr<KvTransfer> ReadKvTransfer(absl::string_view text, size_t most_blocks,
                                          size_t least_blocks = 1);

}  // namespace bfio::router
