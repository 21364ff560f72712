// An engine's protocol: the router's calls to one engine server. The boundary between the ranks' accounts
// (engine_link.h) and a wire format; wire types stay in `protocol`. Ownership: the link owns a client per
// server, and replaces one whose calls get no answer; calls own what they need to end on their own. Threads:
// every method may be called from any thread and does not block; callbacks come on gRPC's threads, those of
// one call in order and the last one once.
#pragma once

#include <cstdint>
#include <functional>
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

// An engine's report of a rank, by the engine's own number of the rank (EngineDescription::first_rank).
struct EngineRankLoad {
  int32_t rank = 0;
  EngineLoad load;
};

// A request that an engine is computing. Without more: someone else ends it, or it has not begun.
class EngineStream {
 public:
  virtual ~EngineStream() = default;
  // Ends the request, here and in the engine. Callbacks may still be called.
  virtual void Cancel() {}
};

// An engine's records of its ranks' loads.
class EngineRecords : public EngineStream {
 public:
  // The newest record of each rank that has sent one since the last call.
  virtual std::vector<EngineRankLoad> Take() = 0;
};

class EngineClient {
 public:
  struct StreamCallbacks {
    // The tokens since the last call; in all, never more than the call's max_new_tokens.
    absl::AnyInvocable<void(EngineTokens)> on_tokens;
    // The end of the request; an error is the engine's, or the connection's.
    absl::AnyInvocable<void(absl::StatusOr<EngineEnd>) &&> on_end;
  };

  struct RecordCallbacks {
    // There are records to Take; not called again before they are taken.
    absl::AnyInvocable<void()> on_records;
    // The end of the records. UNIMPLEMENTED: the engine sends none.
    absl::AnyInvocable<void(absl::Status) &&> on_end;
  };

  virtual ~EngineClient() = default;
  // Streams bring the tokens of calls. Otherwise they only end, and calls run on when the router ends.
  virtual bool carries_tokens() const { return true; }
  // All calls share a connection, which may be dead; calls on it may live on without the client.
  virtual bool keeps_connection() const { return true; }
  // Between two health checks, with which loads are requested.
  virtual absl::Duration check_interval() const { return absl::Seconds(1); }

  // Number of calls that a description takes, one after another.
  static constexpr int kDescribeCalls = 3;
  // Requests ranks and sizes; DEADLINE_EXCEEDED after `timeout` for all its calls together.
  virtual void Describe(absl::Duration timeout,
                        absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&> done) = 0;
  // OK when the engine reports that it is healthy.
  virtual void CheckHealth(absl::Duration timeout, absl::AnyInvocable<void(absl::Status) &&> done) = 0;
  // The engine's reports of its ranks; it may omit some. UNIMPLEMENTED, DEADLINE_EXCEEDED.
  virtual void GetLoads(absl::Duration timeout,
                        absl::AnyInvocable<void(absl::StatusOr<std::vector<EngineRankLoad>>) &&> done) = 0;
  // Subscribes to the engine's load records of ranks, sent when loads change. Some ranks may have none.
  virtual std::shared_ptr<EngineRecords> Subscribe(RecordCallbacks callbacks) = 0;
  // Frees the KV of a hand-off that no call has: the engine refuses a call with it.
  virtual void Free(const std::string&) {}
  // `name` is unique among the engine's requests. `rank` is the rank that runs the request, counted over the
  // server's ranks; empty: the engine has only one.
  virtual std::shared_ptr<EngineStream> Generate(const EngineCall& call, std::optional<int32_t> rank,
                                                 const std::string& name, StreamCallbacks callbacks) = 0;
};

}  // namespace bfio::router
