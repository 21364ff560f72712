// Network namespaces: workers that really cannot reach each other.
//
// Purpose: each worker runs in a namespace of its own, joined by veth pairs and a bridge; a partition is a
// blackhole route or a link that is down, so packets vanish and connections stay open, as when a switch
// fails. Needs the right to make namespaces (root) and ip(8); Create says why not. Threads: one.
#ifndef BFIO_TESTS_CHAOS_NETWORK_H_
#define BFIO_TESTS_CHAOS_NETWORK_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bfio::chaos {

class Network {
 public:
  static absl::StatusOr<std::unique_ptr<Network>> Create(int workers);
  ~Network();

  // This process's address on the bridge, and a worker's.
  std::string host_address() const;
  std::string worker_address(int worker) const;
  // Words to put before a program to run it in the worker's namespace.
  std::vector<std::string> Wrapper(int worker) const;

  // Two workers do not reach each other, or do again.
  void Partition(int a, int b, bool apart);
  // A worker reaches nobody, or everybody again.
  void Isolate(int worker, bool alone);

 private:
  Network(std::string tag, int subnet, int workers);
  std::string Namespace(int worker) const;

  const std::string tag_;
  const int subnet_;
  const int workers_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_NETWORK_H_
