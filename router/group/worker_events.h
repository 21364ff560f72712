// Events of the connections to workers, for the router's state. The boundary between an edge to workers and
// the decision thread. The edge checks messages, converts them and posts them; router/app implements
// WorkerHandler. Threads: gRPC's; per channel one at a time and in order.
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/group/worker_messages.h"
#include "router/requests/request.h"

namespace bfio::router {

// The connection to one worker, independent of its protocol. The boundary between the router's state and the
// engines. router/worker_link implements it for bfio's workers; the links of other engines implement it as
// well. Ownership: shared by the decision thread's table of members and the connection. Threads: called by
// the decision thread; never blocks.
class WorkerChannel {
 public:
  virtual ~WorkerChannel() = default;

  virtual MemberId id() const = 0;
  // The worker's address, for log lines.
  virtual const std::string& peer() const = 0;

  virtual void SendEpoch(const EpochOffer& epoch) = 0;
  // `assignments`: those of plan.placements that still have a waiting client.
  virtual void SendPlan(const PlanPart& plan, absl::Span<const Assignment> assignments) = 0;
  // A line for the worker's log.
  virtual void SendNotice(absl::string_view text) = 0;
  // Notifies a drained worker that it may exit.
  virtual void SendShutdown(absl::string_view reason) = 0;
  // Ends the connection after what was sent. Messages from it may still arrive.
  virtual void Close(const absl::Status& status) = 0;
  // Breaks the connection when the worker has read nothing for `patience`. True when it did. Must not be
  // called under a lock.
  virtual bool BreakOffIfStuck(absl::Time now, absl::Duration patience) = 0;

  // One event of this channel has been handled; called once for each event that the channel posted. Any
  // thread.
  virtual void Consumed() = 0;
};

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
  // An id for a request that a worker holds from an earlier router; never used twice. Any thread.
  virtual core::RequestId NextId() = 0;
};

}  // namespace bfio::router
