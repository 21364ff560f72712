// Events of the connections to workers, for the router's state.
//
// Purpose: the boundary between an edge to workers and the decision thread. The edge checks messages,
// converts them and posts them; router/app implements WorkerHandler. Threads: gRPC's; per channel one at a
// time and in order.
#ifndef BFIO_ROUTER_GROUP_WORKER_EVENTS_H_
#define BFIO_ROUTER_GROUP_WORKER_EVENTS_H_

#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "router/group/worker_channel.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// The worker requests to be drained.
struct Leave {
  std::string reason;
};

// A message that no worker may send: INVALID_ARGUMENT. The receiver must expel the worker.
struct ProtocolError {
  absl::Status status;
};

// The connection has ended. The last event of its channel.
struct Gone {};

using WorkerEvent =
    std::variant<WorkerHello, Announcement, EpochReady, StepReport, Leave, ProtocolError, Gone>;

class WorkerHandler {
 public:
  virtual ~WorkerHandler() = default;
  // Any thread; never blocks. The channel stops reading while too many of its events wait, so call
  // channel->Consumed() once for each event after handling or dropping it.
  virtual void OnWorkerEvent(std::shared_ptr<WorkerChannel> channel, WorkerEvent event) = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_WORKER_EVENTS_H_
