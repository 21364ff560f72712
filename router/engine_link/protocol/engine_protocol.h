// An engine's protocol as the router calls it.
//
// Purpose: the client (protocol_client.h) is the same for all protocols and holds messages as
// google::protobuf::Message; an EngineProtocol makes and reads them. To implement one, derive from
// EngineProtocolOf (engine_protocol_of.h). Pure; any thread.
#ifndef BFIO_ROUTER_ENGINE_LINK_PROTOCOL_ENGINE_PROTOCOL_H_
#define BFIO_ROUTER_ENGINE_LINK_PROTOCOL_ENGINE_PROTOCOL_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "router/engine_link/engine_call.h"
#include "router/engine_link/engine_client.h"

namespace bfio::router {

// A response of Generate.
struct EngineOutput {
  bool ends = false;
  uint32_t index = 0;
  // Valid as long as the response.
  absl::Span<const uint32_t> ids;
  uint32_t completion_tokens = 0, prompt_tokens = 0, cached_tokens = 0;
  // Where it ends.
  EngineFinish finish = EngineFinish::kError;
};

// A rank in the response of GetLoads.
struct EngineRankReport {
  EngineRankLoad load;
  int64_t kv_tokens = 0;
  int32_t slots = 0;
};

class EngineProtocol {
 public:
  using Message = google::protobuf::Message;
  using MessagePtr = std::unique_ptr<Message>;

  struct Traits {
    // Of the service, such as "vllm.grpc.engine.VllmEngine".
    const char* name = "";
    // A chunk's completion_tokens count the whole output so far; otherwise the chunk.
    bool chunks_count_all = false;
    // An output that ends by its length has max_tokens, or fills the longest sequence.
    bool fills_context = false;
    // GetLoads reports only the server's own ranks, by their numbers among all.
    bool loads_name_ranks = false;
    // GetLoads, and not GetServerInfo, reports the slots of a rank.
    bool slots_of_loads = false;
    // GetLoads reports for each rank the KV tokens of all ranks of the server together, and its use as a
    // share of them.
    bool kv_of_all_ranks = false;
  };
  // The types of the responses, as empty messages.
  struct Types {
    const Message& output;
    const Message& server;
    const Message& model;
    const Message& loads;
    const Message& health;
  };

  EngineProtocol(const Traits& traits, const Types& types) : traits(traits), types(types) {}
  virtual ~EngineProtocol() = default;

  const Traits traits;
  const Types types;

  // Whether the protocol can express the call.
  virtual absl::Status Check(const EngineCall&) const { return absl::OkStatus(); }
  virtual MessagePtr RequestOf(const EngineCall& call, std::optional<int32_t> rank,
                               const std::string& name) const = 0;
  virtual EngineOutput Read(const Message& response) const = 0;
  // The response, for the client; uses it up. `before`: tokens of earlier placements, which are part of the
  // prompt here and of the output for the client.
  virtual PassedPtr Pass(Message& response, uint32_t before) const = 0;
  // The request that ends a request. Null: the engine ends it when its call is cancelled.
  virtual MessagePtr AbortOf(const std::string&) const { return nullptr; }

  // Ranks and, where it reports them, slots and KV tokens.
  virtual void DescribeServer(const Message& server, EngineDescription& description) const = 0;
  virtual void DescribeModel(const Message& model, EngineDescription& description) const = 0;
  virtual std::vector<EngineRankReport> Loads(const Message& loads) const = 0;
  virtual absl::Status Health(const Message& health) const = 0;
};

// `protocol` lives forever. `pinned`: as in NewSglangClient.
std::unique_ptr<EngineClient> NewProtocolClient(const EngineProtocol& protocol, const std::string& server,
                                                bool pinned);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_PROTOCOL_ENGINE_PROTOCOL_H_
