// A TCP proxy that can disturb its connections.
//
// Purpose: sits between a worker and the router, or a router and an engine, and cuts, stalls, delays or
// half-closes connections, which signals to the processes cannot do. Threads: one of its own; any thread may
// call the methods. Memory: at most 1 MiB per direction and connection; beyond it the sender is blocked, as
// on a real network.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace bfio::chaos {

class TcpProxy {
 public:
  // Listens on `host`, an IPv4 address, at a free port; forwards to `upstream`, HOST:PORT, from `own` (empty:
  // any address).
  TcpProxy(const std::string& host, std::string upstream, std::string own = "");
  ~TcpProxy();

  // HOST:PORT on which it listens.
  const std::string& address() const { return address_; }

  // Resets every connection, at both ends.
  void Cut() { Set(cut_, true); }
  // While stalled, nothing passes in either direction and nothing is closed; connections are accepted and not
  // forwarded.
  void Stall(bool stalled) { Set(stalled_, stalled); }
  // Present connections carry nothing from now on and are not closed; later ones work.
  void BlackHole() { Set(black_hole_, true); }
  // Shuts down one direction of every connection; the other direction stays open.
  void HalfClose() { Set(half_close_, true); }
  // Data is forwarded with this delay.
  void Delay(absl::Duration delay) { Set(delay_, delay); }

 private:
  struct Pipe {
    struct Chunk {
      absl::Time due;
      std::string bytes;
    };
    std::deque<Chunk> chunks;
    size_t buffered = 0;
    // The source has ended; forwarded once all data is delivered.
    bool ended = false, shut = false;
  };
  struct Connection {
    int ends[2] = {-1, -1};
    // Pipe i goes from end i to end 1 - i.
    Pipe pipes[2];
    bool broken = false, black_hole = false;
  };

  template <typename Value>
  void Set(Value& setting, Value value) {
    std::lock_guard lock(mutex_);
    setting = value;
  }
  void Run();
  // How long to wait for data: until the next chunk is due, or the next look at the flags.
  absl::Duration Pause() const;
  void Accept();
  // Reads available data, and writes data that is due.
  void Pump(Connection& connection, int from, absl::Time now);
  static void CloseBoth(Connection& connection, bool reset);

  const std::string upstream_, own_;
  const int listener_;
  std::string address_;
  std::mutex mutex_;
  bool stop_ = false, stalled_ = false, cut_ = false, half_close_ = false, black_hole_ = false;
  absl::Duration delay_;
  // Used only by its thread.
  std::list<Connection> connections_;
  std::thread thread_;
};

// Network namespaces, in which workers can be cut off from each other.
//
// Purpose: each worker runs in its own namespace, connected by veth pairs and a bridge. A partition is a
// blackhole route or a link that is down, so that packets vanish and connections stay open, as when a switch
// fails. Requires the permission to create namespaces (root) and ip(8); Create returns the reason if it
// fails. Threads: one.
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
