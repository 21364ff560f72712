// "vllm://HOST:PORT": an engine's server, its protocol, and the properties that it does not report.
// "vllm+dns://NAME:PORT": one server for each address of the name (of one family).
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
  // vLLM's default of max_num_batched_tokens on most devices (0.32); on the largest devices it is higher.
  static constexpr int64_t kDefaultTokenBudget = 2048;

  // "vllm", "sglang".
  std::string protocol;
  Address server;
  // The host is a name, and each of its addresses is a server (engine_list.h).
  bool by_name = false;
  // The barrier in which its ranks meet at every step, together with those of other servers with the same
  // barrier; empty: each rank steps independently.
  std::string barrier;
  // For barriers: most tokens of a rank's step, prompts and decodes (vLLM: max_num_batched_tokens).
  int64_t token_budget = kDefaultTokenBudget;
  // A request runs on the data-parallel rank that it names (vLLM: always). Otherwise, for SGLang, the router
  // treats all ranks of the server as one.
  bool pinned = false;

  // As in the flag, without the settings: the engine's name in logs and worker ids.
  std::string ToString() const;
  bool operator==(const EngineAddress&) const = default;
};

// Addresses separated by commas, each at most once. An address may have settings: `?barrier=NAME`,
// `&token_budget=N` and, for SGLang, `pinned=1`. They also hold for the addresses before it, back to the last
// one with settings: "vllm://a:1,vllm://b:1?barrier=x". Either all servers have a barrier or none, and all
// use the same protocol. INVALID_ARGUMENT with one line otherwise.
absl::StatusOr<std::vector<EngineAddress>> ParseEngines(const std::string& text);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_ENGINE_ADDRESS_H_
