// Callers without a token, as many as the router accepts.
//
// Purpose: connections that never call, and calls whose messages never end, opened again whenever the router
// closes them. Threads: one of its own.
#ifndef BFIO_TESTS_CHAOS_FLOOD_H_
#define BFIO_TESTS_CHAOS_FLOOD_H_

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/unfinished_calls.h"

namespace bfio::chaos {

class Flood {
 public:
  // HOST:PORT of the client API, an IPv4 address.
  explicit Flood(std::string address);
  ~Flood();
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  // Numbers opened so far.
  int connections() const { return connections_; }
  int calls() const { return calls_; }

 private:
  void Run();
  // One round of each.
  void KeepConnections();
  void BeginCalls(int round);

  const std::string address_;
  std::atomic<bool> stop_{false};
  std::atomic<int> connections_{0}, calls_{0};
  // Used only by its thread.
  std::vector<int> silent_;
  std::deque<std::unique_ptr<testing::UnfinishedCalls>> calling_;
  std::thread thread_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_FLOOD_H_
