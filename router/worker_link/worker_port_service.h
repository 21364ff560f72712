// A service on the workers' port: WorkerLink, and others beside it, such as that of chains/router. Gives the
// router the service's metrics and its shutdown. The router registers it, and adds up the streams and
// messages of all. Threads: Stop once, from the thread that ends the router, before the server is shut down;
// the rest from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

class WorkerPortService : public CallService {
 public:
  // `messages`: limits for the streams' first messages.
  explicit WorkerPortService(FirstMessages::Limits messages = {})
      : bounds_{.first_messages = FirstMessages(messages)} {}

  // Ends the service's own threads.
  virtual void Stop() {}

  FirstMessages* first_messages() { return &bounds_.first_messages; }
  // Number of open streams.
  int64_t sessions() const { return bounds_.open.load(std::memory_order_relaxed); }
  // Encoded bytes of received messages that have not been handled yet.
  int64_t unconsumed_bytes() const { return bounds_.unconsumed_bytes.load(std::memory_order_relaxed); }
  // Encoded bytes of messages to workers that wait to be written.
  int64_t queued_bytes() const { return bounds_.queued_bytes.load(std::memory_order_relaxed); }

 protected:
  SessionBounds bounds_;
};

// What the router provides to such a service.
struct WorkerPortSetup {
  // A worker's worker_id must be a name in its certificate.
  bool bind_worker_id = false;
  // Notified of callers; outlives the service. May be null.
  Authenticator* authenticator = nullptr;
};
using MakeWorkerPortService = std::function<std::unique_ptr<WorkerPortService>(WorkerPortSetup)>;

}  // namespace bfio::router
