// What happens on the connections to workers, as the router's state sees it.
//
// Purpose: the line between an edge to workers and the decision thread. The edge checks messages, converts
// them and hands them in; router/app implements WorkerHandler. Threads: gRPC's; per channel one at a time and
// in order.
#ifndef BFIO_ROUTER_WORKER_LINK_WORKER_EVENTS_H_
#define BFIO_ROUTER_WORKER_LINK_WORKER_EVENTS_H_

#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "router/group/worker_channel.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// The worker asks to be drained.
struct Leave {
  std::string reason;
};

// A message that no worker may send: INVALID_ARGUMENT. The worker is to be expelled.
struct ProtocolError {
  absl::Status status;
};

// The connection is over. The last event of its channel.
struct Gone {};

using WorkerEvent =
    std::variant<WorkerHello, Announcement, EpochReady, StepReport, Leave, ProtocolError, Gone>;

class WorkerHandler {
 public:
  virtual ~WorkerHandler() = default;
  // Any thread; never blocks. The channel stops reading while too many of its events wait: call
  // channel->Consumed() once for each event when it has been dealt with or dropped.
  virtual void OnWorkerEvent(std::shared_ptr<WorkerChannel> channel, WorkerEvent event) = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_EVENTS_H_
