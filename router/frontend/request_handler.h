// The interface of the client protocols to the router's state.
//
// Purpose: the boundary between the clients' edge and the router's decision thread. Client protocols submit
// checked requests, and sinks for their tokens; router/app implements it. Threads: every method may be called
// from any thread and never blocks; `done` runs on the decision thread and must not block either.
#ifndef BFIO_ROUTER_FRONTEND_REQUEST_HANDLER_H_
#define BFIO_ROUTER_FRONTEND_REQUEST_HANDLER_H_

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

// What a rank carries now.
struct RankLoad {
  // Counted over all groups: the ranks of the first group come first.
  uint32_t rank = 0;
  // Decoding, or on their way to the rank.
  int64_t running_requests = 0;
  // In the pool that all ranks share.
  int64_t waiting_requests = 0;
  // Their tokens that are to be computed before their next one.
  int64_t waiting_tokens = 0;
  // Resident KV, and its capacity.
  int64_t used_tokens = 0;
  int64_t max_tokens = 0;
  // Over the last second.
  double tokens_per_second = 0;
  int64_t slots = 0;
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
  // The longest prompt + output that every group takes, in tokens; 0: no group has formed yet.
  int64_t max_sequence_tokens = 0;
};

class RequestHandler {
 public:
  virtual ~RequestHandler() = default;

  // Names a request and its sink; never used twice.
  virtual core::RequestId NextId() = 0;

  // One of the outputs of a call: a request of its own, and the sink of its tokens.
  struct Output {
    core::RequestId id = 0;
    std::shared_ptr<TokenSink> sink;
  };
  // Takes a checked call with its outputs, all or none, in one step: no cancellation or abort comes between
  // them. `request` is that of the first (OutputOf). INVALID_ARGUMENT, RESOURCE_EXHAUSTED or UNAVAILABLE when
  // it is refused at once: the sinks are then the caller's to end. Otherwise they are ended by the router.
  // REQUIRES: one output at least; one only for a resumable request or a resume.
  virtual absl::Status Submit(ClientRequest request, std::vector<Output> outputs) = 0;
  // The client of that sink is gone, or its time is up.
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
  // One rank's, or all. `done` is called once; it gets NOT_FOUND for a rank that does not exist. Errors as of
  // Abort.
  virtual absl::Status GetLoads(std::optional<uint32_t> rank,
                                absl::AnyInvocable<void(absl::StatusOr<Loads>) &&> done) = 0;
  virtual Serving GetServing() const = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_REQUEST_HANDLER_H_
