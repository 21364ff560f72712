// "vllm://HOST:PORT": an engine's server, its protocol, and the properties that it does not report.
// "vllm+dns://NAME:PORT": as many servers as the name has addresses of one family.
//
// Pure. Threads: any.
#ifndef BFIO_ROUTER_ENGINE_LINK_ENGINE_ADDRESS_H_
#define BFIO_ROUTER_ENGINE_LINK_ENGINE_ADDRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/address.h"

namespace bfio::router {

struct EngineAddress {
  // vLLM's max_num_batched_tokens on most devices (0.32); on the largest it is more.
  static constexpr int64_t kDefaultTokenBudget = 2048;

  // "vllm", "sglang".
  std::string protocol;
  Address server;
  // The host is a name, and each of its addresses a server (engine_list.h).
  bool by_name = false;
  // The barrier that its ranks meet in at every step, with those of other servers that name it; empty: each
  // rank steps independently.
  std::string barrier;
  // Tokens of a rank's step at most, prompts and decodes (vLLM: max_num_batched_tokens). Used with a barrier.
  int64_t token_budget = kDefaultTokenBudget;
  // A request runs on the data-parallel rank that it names. Otherwise the server's ranks are one for the
  // router (SGLang; vLLM always does).
  bool pinned = false;

  // As it is written, without the settings: the engine's name in logs and worker ids.
  std::string ToString() const;
  bool operator==(const EngineAddress&) const = default;
};

// Addresses separated by commas, each once, with `?barrier=NAME`, `&token_budget=N` and, of SGLang,
// `pinned=1` behind some. These hold for the servers before it as well, back to the last one that has some:
// "vllm://a:1,vllm://b:1?barrier=x". Either every server has a barrier or none has; and all
// speak one protocol. INVALID_ARGUMENT with one line otherwise.
absl::StatusOr<std::vector<EngineAddress>> ParseEngines(const std::string& text);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_ENGINE_ADDRESS_H_
