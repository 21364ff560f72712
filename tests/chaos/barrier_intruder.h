// Unauthenticated connections to the workers' barriers.
//
// Purpose: an attacker with the workers' addresses, the epoch and the group's size, but without the secret.
// It opens connections on which it sends nothing or invalid bytes, and tries to join as rank 1. Threads: one
// of its own.
#ifndef BFIO_TESTS_CHAOS_BARRIER_INTRUDER_H_
#define BFIO_TESTS_CHAOS_BARRIER_INTRUDER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

namespace bfio::chaos {

class BarrierIntruder {
 public:
  struct Options {
    // HOST:PORT, IPv4 addresses.
    std::vector<std::string> barriers;
    // The address on which it listens, as a rank does.
    std::string host = "127.0.0.1";
    int world_size = 2;
    // It tries this epoch and the following ones in turn.
    uint64_t epoch = 1;
  };
  explicit BarrierIntruder(Options options);
  ~BarrierIntruder();
  BarrierIntruder(const BarrierIntruder&) = delete;
  BarrierIntruder& operator=(const BarrierIntruder&) = delete;

  // Barriers that accepted it as a rank; number of connections opened.
  int joined() const { return joined_; }
  int connections() const { return connections_; }

 private:
  void Run();
  void Connect(const std::string& barrier);
  void TryToJoin(const std::string& barrier, uint64_t epoch);

  const Options options_;
  std::atomic<bool> stop_{false};
  std::atomic<int> joined_{0}, connections_{0};
  // Open connections, the oldest first; used only by its thread.
  std::deque<int> open_;
  std::thread thread_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_BARRIER_INTRUDER_H_
