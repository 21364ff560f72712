// A worker that takes part in the group's barrier and violates the router's protocol.
//
// Purpose: step loop, engine, barrier and stream are the real ones. Reports are changed before the stream
// sends them, so that a member of the group sends protocol violations to the router. They never contain a
// wrong token for a request that the worker holds and may still generate tokens for, because the router
// cannot check these.
// Threads: two of its own; the methods are called by the owner's thread.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "worker/engine/sim/sim_engine.h"
#include "worker/link/router_link.h"
#include "worker/link/step_loop.h"

namespace bfio::chaos {

enum class Misbehavior {
  kSkipStep,        // a step number that is not the next one
  kStaleEpoch,      // reports of a past epoch between correct ones
  kFutureEpoch,     // reports of a future epoch between correct ones
  kUnknownHandles,  // tokens, ends and refusals of requests that do not exist
  kEndedHandles,    // the same for requests that have ended
  kNegativeLoad,    // negative counts, which are large numbers on the wire
  kOverlong,        // tokens beyond a request's last
  kUnplanned,       // acknowledges a plan that was never sent
  kDuplicate,       // every report twice
  kOutOfOrder,      // two reports swapped
};

class MisbehavingWorker {
 public:
  // Joins at once; misbehaves after some twenty steps.
  MisbehavingWorker(const std::string& router, const std::string& barrier_host, const std::string& id,
                    Misbehavior misbehavior, const worker::SimOptions& engine);
  // Leaves without a message, like a worker that crashes.
  ~MisbehavingWorker();

  // Number of changed reports; 0 before it has joined a group.
  int64_t altered_reports() const;

 private:
  class AlteredLink;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<worker::RouterLink> link_;
  std::unique_ptr<AlteredLink> altered_link_;
  std::unique_ptr<worker::StepLoop> loop_;
  std::thread loop_thread_, link_thread_;
};

}  // namespace bfio::chaos
