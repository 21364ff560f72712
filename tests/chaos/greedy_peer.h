// Peers that take as much as the protocols let them: a tenant with a token, one behind a gateway, one behind
// Envoy, a worker, and strangers at each port, who have no token. They begin calls and send nothing, ask for
// streams and read nothing, want outputs whole, attach and report nonsense, and cancel calls as fast as they
// begin them; an engine behind Envoy counts wrongly. Every other peer must be served as without them.
// Threads: one of its own; gRPC's for the calls.
#pragma once

#include <grpcpp/grpcpp.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/rng.h"
#include "tests/chaos/attack.h"
#include "tests/chaos/tcp_proxy.h"

namespace bfio::testing {
class HttpEngine;
}

namespace bfio::chaos {

// HOST:PORT of a router's ports, by number; empty: it has none.
// kGatewayPort and kEnvoyPort are the connections of a gateway and of Envoy, with the calls of all their
// tenants.
// kStrangerPort is the client port again, for callers without a token.
enum Port {
  kClientPort,
  kGatewayPort,
  kWorkerPort,
  kAdminPort,
  kPickerPort,
  kEnvoyPort,
  kHttpPort,
  kStrangerPort,
  kPorts
};
using Ports = std::array<std::string, kPorts>;

class GreedyPeer final : public Attack {
 public:
  struct Options {
    Ports ports;
    uint64_t seed = 1;
    // Its own, IPv4.
    std::string address = "127.0.0.2";
    // An engine of the router, which it makes count wrongly; null: none.
    testing::HttpEngine* engine = nullptr;
  };
  explicit GreedyPeer(Options options);
  ~GreedyPeer() override;

  // Number of calls and connections begun so far.
  int64_t calls() const { return calls_; }

 private:
  class Call;
  struct Habit;

  std::vector<Habit> Habits();
  void Run();
  void Begin(const Habit& habit);
  void Connect(int connections);
  void Misreport();

  const Options options_;
  Rng rng_;
  std::vector<std::unique_ptr<TcpProxy>> proxies_;
  std::array<std::shared_ptr<grpc::Channel>, kPorts> channels_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> calls_{0};
  // Open calls and silent or HTTP connections, the oldest first; used only by its thread.
  std::deque<std::unique_ptr<Call>> open_;
  std::deque<int> connections_;
  std::thread thread_;
};

// What one other peer asks at a port, over the connections of gateways and of Envoy that the greedy peers
// use, too. `ask` returns why it was not served; empty: it was.
struct PortProbe {
  const char* port;
  std::function<std::string()> ask;
};
std::vector<PortProbe> ProbesOf(const Ports& ports);

}  // namespace bfio::chaos
