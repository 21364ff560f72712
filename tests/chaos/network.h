// Network namespaces, in which workers can be cut off from each other.
//
// Purpose: each worker runs in its own namespace, connected by veth pairs and a bridge. A partition is a
// blackhole route or a link that is down, so that packets vanish and connections stay open, as when a switch
// fails. Requires the permission to create namespaces (root) and ip(8); Create returns the reason if it
// fails. Threads: one.
#pragma once

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
  // Arguments before a program's name that run it in the worker's namespace.
  std::vector<std::string> Wrapper(int worker) const;

  // Disconnects two workers from each other, or connects them again.
  void Partition(int a, int b, bool apart);
  // Disconnects a worker from all others, or connects it again.
  void Isolate(int worker, bool alone);

 private:
  Network(std::string tag, int subnet, int workers);
  std::string Namespace(int worker) const;

  const std::string tag_;
  const int subnet_;
  const int workers_;
};

}  // namespace bfio::chaos
