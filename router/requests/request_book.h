// What a group asks about requests while an epoch opens, and tells of them when a worker is lost.
//
// Purpose: a group knows requests by id only; whoever keeps them answers. Implemented by RequestLifecycle.
// Threads: the decision thread's.
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
  // Takes over what a member holds of an earlier router. `active` is what the member runs. Returns the
  // requests that are now this router's and still run there, in the form the scheduler takes them.
  virtual std::vector<core::RequestSpec> Recover(absl::string_view worker_id, std::vector<HeldRequest> held,
                                                 absl::Span<const HeldActive> active) = 0;
  // Tokens that have come from the request's present placement; nothing when nobody waits for the request.
  virtual std::optional<uint32_t> ReceivedSincePlaced(core::RequestId id) const = 0;
  // That worker is lost, without having drained or asked to leave: every request that is placed there is on
  // it as it dies. Called while the scheduler still has them there; what becomes of them follows.
  virtual void OnWorkerDied(core::GroupIndex group, core::WorkerIndex worker) = 0;
  // A count of generated tokens differs from what has been received.
  virtual void CountTokens(uint32_t generated, uint32_t received) = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REQUEST_BOOK_H_
