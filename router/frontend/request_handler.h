// The interface of the client protocols to the router's state. The boundary between the clients' edge and the
// router's decision thread. Client protocols submit checked requests, and sinks for their tokens; router/app
// implements it. Threads: every method may be called from any thread and never blocks; `done` runs on the
// decision thread and must not block either.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/core/model/request.h"
#include "router/requests/request.h"
#include "router/requests/token_sink.h"

namespace bfio::router {

// The present load of a rank.
struct RankLoad {
  // Counted over all groups: the ranks of the first group come first.
  uint32_t rank = 0;
  std::string worker_id;
  // Decoding, or being sent to the rank.
  int64_t running_requests = 0;
  // In the pool that all ranks share.
  int64_t waiting_requests = 0;
  // Tokens that waiting requests must have computed before their next token.
  int64_t waiting_tokens = 0;
  // Resident KV, and its capacity.
  int64_t used_tokens = 0;
  int64_t max_tokens = 0;
  // Over the last second.
  double tokens_per_second = 0;
  int64_t slots = 0;
  // It computes prompts for other ranks only.
  bool hands_over = false;
};

struct Loads {
  // By the wall clock.
  absl::Time timestamp;
  std::string version;
  // Number of ranks of all groups that serve.
  uint32_t ranks = 0;
  std::vector<RankLoad> loads;
};

// The present ranks, and which requests they accept.
struct Serving {
  // All groups that are waited for serve, and the router takes requests.
  bool ready = false;
  // The longest prompt + output that most ranks take, in tokens; 0: no group has formed yet.
  int64_t max_sequence_tokens = 0;
  // Ranks serve that compute prompts for others; those that decode compute none.
  bool hands_over = false, computes_none = false;
};

class RequestHandler {
 public:
  virtual ~RequestHandler() = default;

  // Identifies a request and its sink; never used twice.
  virtual core::RequestId NextId() = 0;

  // One of the outputs of a call: a request of its own, and the sink of its tokens.
  struct Output {
    core::RequestId id = 0;
    std::shared_ptr<TokenSink> sink;
  };
  // Submits a checked call with its outputs, all or none, in one step: no cancellation or abort comes between
  // them. `request` is that of the first output (OutputOf). INVALID_ARGUMENT, RESOURCE_EXHAUSTED or
  // UNAVAILABLE when the call is refused at once: the caller must then end the sinks. Otherwise the router
  // ends them. REQUIRES: at least one output; exactly one for a resumable request or a resume.
  virtual absl::Status Submit(ClientRequest request, std::vector<Output> outputs) = 0;
  // The client of that sink is gone, or its deadline has passed.
  virtual void Cancel(uint64_t sink_id, bool timed_out) = 0;

  struct AbortRequest {
    // The caller's.
    std::string tenant;
    std::string request_id;
    std::string resume_token;
  };
  // Ends a request, with all its outputs. `done` is called once, with whether there was such a live request
  // that this caller may end.
  // RESOURCE_EXHAUSTED or UNAVAILABLE when the request is not submitted; `done` is then not called.
  virtual absl::Status Abort(AbortRequest request,
                             absl::AnyInvocable<void(absl::StatusOr<bool>) &&> done) = 0;
  // The load of one rank, or of all. `done` is called once; it gets NOT_FOUND for a rank that does not exist.
  // Errors as for Abort.
  virtual absl::Status GetLoads(std::optional<uint32_t> rank,
                                absl::AnyInvocable<void(absl::StatusOr<Loads>) &&> done) = 0;
  virtual Serving GetServing() const = 0;
};

}  // namespace bfio::router
