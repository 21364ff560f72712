// The interface by which a group reaches requests: recovery when an epoch opens, and lost workers. A group
// refers to requests by id only. Implemented by RequestLifecycle. Threads: the decision thread's.
#ifndef BFIO_ROUTER_REQUESTS_REQUEST_BOOK_H_
#define BFIO_ROUTER_REQUESTS_REQUEST_BOOK_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/core/model/request.h"
#include "router/core/scheduler/events.h"
#include "router/requests/request.h"

namespace bfio::router {

class RequestBook {
 public:
  virtual ~RequestBook() = default;
  // Recovers the requests that a member holds from an earlier router. `active`: what runs on the member.
  // Returns the recovered requests that still run there, in the scheduler's form.
  virtual std::vector<core::RequestSpec> Recover(absl::string_view worker_id, std::vector<HeldRequest> held,
                                                 absl::Span<const HeldActive> active) = 0;
  // Tokens received from the request's present placement; empty for an orphaned request.
  virtual std::optional<uint32_t> ReceivedSincePlaced(core::RequestId id) const = 0;
  // The worker is lost without having drained or requested to leave. Called while the scheduler still has the
  // requests placed there; they are displaced afterwards.
  virtual void OnWorkerDied(core::GroupIndex group, core::WorkerIndex worker) = 0;
  // Counts the difference between a worker's count of generated tokens and the received ones.
  virtual void CountTokens(uint32_t generated, uint32_t received) = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REQUEST_BOOK_H_
