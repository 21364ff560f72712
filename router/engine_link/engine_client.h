// An engine's protocol: the router's calls to one engine server.
//
// Purpose: the boundary between the ranks' accounts (engine_link.h) and a wire format. A protocol is a folder
// beside this file; wire types stay in it. Ownership: the link owns a client per server, and replaces one
// whose calls get no answer; calls own what they need to end on their own. Threads: every method may be
// called from any thread and does not block; callbacks come on gRPC's threads, those of one call in order and
// the last one once.
#ifndef BFIO_ROUTER_ENGINE_LINK_ENGINE_CLIENT_H_
#define BFIO_ROUTER_ENGINE_LINK_ENGINE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/engine_link/engine_call.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// An engine's report of a rank, with the engine's own number of it (EngineDescription::first_rank).
struct EngineRankLoad {
  int32_t rank = 0;
  EngineLoad load;
};

// A request that an engine is computing.
class EngineStream {
 public:
  virtual ~EngineStream() = default;
  // Ends it, here and in the engine. The callbacks may still come.
  virtual void Cancel() = 0;
};

// An engine's records of its ranks' loads.
class EngineRecords : public EngineStream {
 public:
  // The newest record of each rank of which one has come since the last call.
  virtual std::vector<EngineRankLoad> Take() = 0;
};

class EngineClient {
 public:
  struct StreamCallbacks {
    // What has come since the last call; never more tokens in all than the call's max_new_tokens.
    absl::AnyInvocable<void(EngineTokens)> on_tokens;
    // The end of the request; an error is the engine's, or the connection's.
    absl::AnyInvocable<void(absl::StatusOr<EngineEnd>) &&> on_end;
  };

  struct RecordCallbacks {
    // There is something to Take; not called again before that.
    absl::AnyInvocable<void()> on_records;
    // The end of the records. UNIMPLEMENTED: the engine sends none.
    absl::AnyInvocable<void(absl::Status) &&> on_end;
  };

  virtual ~EngineClient() = default;

  // Calls that a description takes, one after the other.
  static constexpr int kDescribeCalls = 3;
  // Requests ranks and sizes; DEADLINE_EXCEEDED after `timeout`, however many calls it takes.
  virtual void Describe(absl::Duration timeout,
                        absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&> done) = 0;
  // OK when the engine reports that it is healthy.
  virtual void CheckHealth(absl::Duration timeout, absl::AnyInvocable<void(absl::Status) &&> done) = 0;
  // Its reports of ranks; it may leave some out. UNIMPLEMENTED, DEADLINE_EXCEEDED.
  virtual void GetLoads(absl::Duration timeout,
                        absl::AnyInvocable<void(absl::StatusOr<std::vector<EngineRankLoad>>) &&> done) = 0;
  // Subscribes to its records of ranks, which come as loads change. Some of an engine's ranks may have none.
  virtual std::shared_ptr<EngineRecords> Subscribe(RecordCallbacks callbacks) = 0;
  // `name` is unique among the engine's requests; `rank` is where it runs, counted over the server's; empty:
  // the engine has one.
  virtual std::shared_ptr<EngineStream> Generate(const EngineCall& call, std::optional<int32_t> rank,
                                                 const std::string& name, StreamCallbacks callbacks) = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_ENGINE_CLIENT_H_
