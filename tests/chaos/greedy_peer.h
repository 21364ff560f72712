// One peer that takes as much as the protocol lets it take: a tenant with a token, and a stranger at the
// worker port. It begins calls and sends nothing, asks for streams and reads nothing, wants outputs whole,
// and cancels calls as fast as it begins them. Every other peer must be served as without it. Threads: one of
// its own; gRPC's for the calls.
#ifndef BFIO_TESTS_CHAOS_GREEDY_PEER_H_
#define BFIO_TESTS_CHAOS_GREEDY_PEER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "tests/chaos/attack.h"

namespace bfio::chaos {

class GreedyPeer final : public Attack {
 public:
  struct Options {
    // HOST:PORT of the client API and of the worker port.
    std::string client, worker;
    uint64_t seed = 1;
  };
  explicit GreedyPeer(Options options);
  ~GreedyPeer() override;

  // Number of calls begun so far.
  int64_t calls() const { return calls_; }

 private:
  class Call;
  struct Habit;

  void Run();
  void Begin(const Habit& habit);

  const Options options_;
  std::shared_ptr<grpc::Channel> client_, worker_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> calls_{0};
  // Open calls, the oldest first; used only by its thread.
  std::deque<std::unique_ptr<Call>> open_;
  std::thread thread_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_GREEDY_PEER_H_
