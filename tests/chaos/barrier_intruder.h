// Connections to the workers' barriers that do not belong there.
//
// Purpose: knows where the workers listen, the epoch and the group's size, and not the secret: takes
// connections and says nothing or nonsense on them, and tries to join as rank 1. Threads: one of its own.
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
    // HOST:PORT, IPv4 addresses in dots.
    std::vector<std::string> barriers;
    // Where it listens itself, as a rank does.
    std::string host = "127.0.0.1";
    int world_size = 2;
    // It tries this one and the next ones by turns.
    uint64_t epoch = 1;
  };
  explicit BarrierIntruder(Options options);
  ~BarrierIntruder();
  BarrierIntruder(const BarrierIntruder&) = delete;
  BarrierIntruder& operator=(const BarrierIntruder&) = delete;

  // Barriers that took it for a rank; connections that it has made.
  int joined() const { return joined_; }
  int connections() const { return connections_; }

 private:
  void Run();
  void Connect(const std::string& barrier);
  void TryToJoin(const std::string& barrier, uint64_t epoch);

  const Options options_;
  std::atomic<bool> stop_{false};
  std::atomic<int> joined_{0}, connections_{0};
  // The thread's own: open ones, the oldest first.
  std::deque<int> open_;
  std::thread thread_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_BARRIER_INTRUDER_H_
