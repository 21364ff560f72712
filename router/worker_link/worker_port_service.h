// A service beside WorkerLink on the port that workers reach: where chains/router plugs in.
//
// Purpose: the router's interface to such a service: its metrics, and its shutdown. The router makes it
// once, registers it, and counts its streams and messages with WorkerLink's. Threads: Stop once, from the
// thread that ends the router, before the server is shut down; the rest from any.
#ifndef BFIO_ROUTER_WORKER_LINK_WORKER_PORT_SERVICE_H_
#define BFIO_ROUTER_WORKER_LINK_WORKER_PORT_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"

namespace bfio::router {

class WorkerPortService : public CallService {
 public:
  // Ends the service's own threads.
  virtual void Stop() = 0;

  virtual FirstMessages::Counts messages() const = 0;
  // Streams now.
  virtual int64_t sessions() const = 0;
  // Of messages that have come and were not dealt with yet, encoded.
  virtual int64_t unconsumed_bytes() const = 0;
  // Of messages to workers that wait to be written, encoded.
  virtual int64_t queued_bytes() const = 0;
};

// What the router has for such a service.
struct WorkerPortSetup {
  // A worker may only have the name that its certificate has.
  bool bind_worker_id = false;
  // Requests per second that come to the router; callable from any thread.
  std::function<double()> demand;
  // Notified of callers; outlives the service. May be null.
  Authenticator* authenticator = nullptr;
};
using MakeWorkerPortService = std::function<std::unique_ptr<WorkerPortService>(WorkerPortSetup)>;

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_PORT_SERVICE_H_
