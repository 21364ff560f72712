// An engine's protocol as the router calls it. The client (protocol_client.h) is the same for all protocols
// and holds messages as google::protobuf::Message; an EngineProtocol makes and reads them. To implement one,
// derive from EngineProtocolOf (below). Pure; any thread.
#pragma once

#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "router/engine_link/engine_call.h"
#include "router/engine_link/engine_client.h"
#include "router/engine_link/engine_list.h"

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
  // prompt here and of the output for the client. `share`: as Passed::share.
  virtual PassedPtr Pass(Message& response, uint32_t before, std::shared_ptr<const void> share) const = 0;
  // Takes RequestHandOff::parameters out of the response that ends a prompt computed for another server.
  virtual std::string TakeHandOff(Message&) const { return {}; }
  // A request with these parameters of a hand-off that the engine refuses. Null: there is none.
  virtual MessagePtr RefusedOf(const std::string&) const { return nullptr; }
  // The request that ends a request. Null: the engine ends it when its call is cancelled.
  virtual MessagePtr AbortOf(const std::string&) const { return nullptr; }

  // Ranks and, where it reports them, slots and KV tokens.
  virtual void DescribeServer(const Message& server, EngineDescription& description) const = 0;
  virtual void DescribeModel(const Message& model, EngineDescription& description) const = 0;
  virtual std::vector<EngineRankReport> Loads(const Message& loads) const = 0;
  virtual absl::Status Health(const Message& health) const = 0;
};

// `protocol` lives forever. `pinned`: as EngineAddress::pinned.
std::unique_ptr<EngineClient> NewProtocolClient(const EngineProtocol& protocol, const EngineAddress& engine,
                                                bool pinned);

// What the engines' protocols have in common: messages with the same fields, under other numbers. `Messages`
// names a protocol's messages. Pure; any thread.
inline EngineFinish EngineFinishOf(const std::string& reason) {
  if (reason == "stop") return EngineFinish::kStop;
  if (reason == "length") return EngineFinish::kLength;
  if (reason == "abort") return EngineFinish::kAbort;
  // Other reasons are the engine's own, such as "repetition", and count as a stop; a text is none.
  constexpr size_t kLongest = 64;
  const bool is_name = !reason.empty() && reason.size() <= kLongest;
  return reason == "error" || !is_name ? EngineFinish::kError : EngineFinish::kStop;
}

template <typename Messages>
class EngineProtocolOf : public EngineProtocol {
 public:
  using Request = typename Messages::GenerateRequest;
  using Response = typename Messages::GenerateResponse;
  using Server = typename Messages::GetServerInfoResponse;
  using Model = typename Messages::GetModelInfoResponse;
  using LoadsResponse = typename Messages::GetLoadsResponse;
  using HealthResponse = typename Messages::HealthCheckResponse;

  explicit EngineProtocolOf(const Traits& traits)
      : EngineProtocol(traits,
                       {Response::default_instance(), Server::default_instance(), Model::default_instance(),
                        LoadsResponse::default_instance(), HealthResponse::default_instance()}) {}

  MessagePtr RequestOf(const EngineCall& call, std::optional<int32_t> rank,
                       const std::string& name) const final {
    const auto* const passed = PassedMessage<Request>::In(call.passed.message.get());
    auto request = std::make_unique<Request>(passed != nullptr ? ToPass(call, *passed) : Translate(call));
    request->set_request_id(name);
    // Also for a client that wants none: its edge folds the messages.
    request->set_stream(true);
    // The client's rank counts over all servers, the engine's over its own.
    request->clear_data_parallel_rank();
    if (rank) request->set_data_parallel_rank(*rank);
    if (call.hands_over || call.hand_off != nullptr) HandOver(call, *request);
    return request;
  }
  EngineOutput Read(const Message& message) const final {
    const auto& response = static_cast<const Response&>(message);
    EngineOutput output;
    const auto fill = [&output](const auto& part, const auto& ids) {
      output.index = part.index();
      output.ids = {ids.data(), static_cast<size_t>(ids.size())};
      output.completion_tokens = part.completion_tokens();
      output.prompt_tokens = part.prompt_tokens();
      output.cached_tokens = part.cached_tokens();
    };
    output.ends = response.has_complete();
    if (output.ends) {
      fill(response.complete(), response.complete().output_ids());
      output.finish = EngineFinishOf(response.complete().finish_reason());
    } else {
      fill(response.chunk(), response.chunk().token_ids());
    }
    return output;
  }
  PassedPtr Pass(Message& message, uint32_t before, std::shared_ptr<const void> share) const final {
    auto& response = static_cast<Response&>(message);
    const auto fewer = [before](uint32_t tokens) { return tokens - std::min(tokens, before); };
    if (before > 0 && response.has_chunk()) {
      auto& chunk = *response.mutable_chunk();
      chunk.set_prompt_tokens(fewer(chunk.prompt_tokens()));
      if (traits.chunks_count_all) chunk.set_completion_tokens(chunk.completion_tokens() + before);
    } else if (before > 0 && response.has_complete()) {
      auto& complete = *response.mutable_complete();
      complete.set_prompt_tokens(fewer(complete.prompt_tokens()));
      // vLLM counts only the last chunk's tokens, which its output_ids repeat; clients add up the counts.
      const bool of_last_chunk =
          !traits.chunks_count_all &&
          complete.completion_tokens() == static_cast<uint32_t>(complete.output_ids_size());
      if (!of_last_chunk) complete.set_completion_tokens(complete.completion_tokens() + before);
    }
    return PassedMessage<Response>::Make(std::move(response), std::move(share));
  }

  void DescribeServer(const Message& server, EngineDescription& description) const final {
    Describe(static_cast<const Server&>(server), description);
  }
  void DescribeModel(const Message& message, EngineDescription& description) const final {
    const auto& model = static_cast<const Model&>(message);
    description.max_sequence_tokens = model.max_context_length();
    description.vocabulary = static_cast<uint32_t>(model.vocab_size());
    description.model = model.served_model_name().empty() ? model.model_path() : model.served_model_name();
  }
  std::vector<EngineRankReport> Loads(const Message& message) const final {
    std::vector<EngineRankReport> reports;
    for (const auto& load : static_cast<const LoadsResponse&>(message).loads()) {
      reports.push_back({.load = {load.dp_rank(),
                                  {int64_t{load.num_running_reqs()} + load.num_waiting_reqs(),
                                   std::max<int64_t>(0, load.num_used_tokens())}},
                         .kv_tokens = load.max_total_num_tokens(),
                         .slots = load.max_running_requests()});
    }
    return reports;
  }
  absl::Status Health(const Message& message) const final {
    const auto& health = static_cast<const HealthResponse&>(message);
    if (health.healthy()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("it reports that it is not healthy: ", health.message()));
  }

 protected:
  // The client's request, except for one output, the bound of its length, and the tokens of earlier
  // placements.
  virtual Request ToPass(const EngineCall& call, Request request) const = 0;
  virtual Request Translate(const EngineCall& call) const = 0;
  virtual void Describe(const Server& server, EngineDescription& description) const = 0;
  // Only for servers that are described as handing over.
  virtual void HandOver(const EngineCall&, Request&) const {}
};

}  // namespace bfio::router
