// One rank: its engine, barrier endpoint, step loop and stream, and the two threads that run them. Threads:
// Start, Leave, End and destruction from the owner's thread; `on_end` is called from the rank's own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "worker/energy/energy_monitor.h"
#include "worker/link/router_link.h"
#include "worker/link/step_loop.h"

namespace bfio::worker {

// Identifies one run of a rank or a server (Hello.worker_instance): random, because a peer that guesses it
// could take over the connection. Not 0.
uint64_t NewInstance();

class Rank {
 public:
  // `energy` is null where none is metered.
  Rank(StepLoopOptions loop, RouterLinkOptions link, std::unique_ptr<Engine> engine,
       std::unique_ptr<BarrierEndpoint> endpoint, std::shared_ptr<grpc::Channel> channel,
       std::unique_ptr<EnergyMonitor> energy);
  // Ends the rank, and waits for the end.
  ~Rank();

  // `on_end` is called once with the result.
  void Start(std::function<void(const absl::Status&)> on_end);
  // Requests a drain from the router.
  void Leave(const std::string& reason) { link_.RequestLeave(reason); }
  // Ends the step loop at the next step boundary.
  void End(const std::string& reason) { loop_.inbox().OnShutdown(reason); }

 private:
  const std::unique_ptr<EnergyMonitor> energy_;
  RouterLink link_;
  StepLoop loop_;
  std::thread link_thread_;
};

}  // namespace bfio::worker
