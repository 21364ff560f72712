// A service beside WorkerLink on the workers' port: the interface that chains/router implements.
//
// Purpose: gives the router the service's metrics and its shutdown. The router makes it once, registers it,
// and adds its streams and messages to WorkerLink's. Threads: Stop once, from the thread that ends the
// router, before the server is shut down; the rest from any.
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
  // Number of open streams.
  virtual int64_t sessions() const = 0;
  // Encoded bytes of received messages that have not been handled yet.
  virtual int64_t unconsumed_bytes() const = 0;
  // Encoded bytes of messages to workers that wait to be written.
  virtual int64_t queued_bytes() const = 0;
};

// What the router provides to such a service.
struct WorkerPortSetup {
  // A worker's worker_id must be a name in its certificate.
  bool bind_worker_id = false;
  // Arrival rate at the router, in requests per second; callable from any thread.
  std::function<double()> demand;
  // Notified of callers; outlives the service. May be null.
  Authenticator* authenticator = nullptr;
};
using MakeWorkerPortService = std::function<std::unique_ptr<WorkerPortService>(WorkerPortSetup)>;

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_WORKER_PORT_SERVICE_H_
