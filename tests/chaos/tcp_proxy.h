// A TCP proxy that can disturb its connections.
//
// Purpose: sits between a worker and the router, or a router and an engine, and cuts, stalls, delays or
// half-closes connections, which signals to the processes cannot do. Threads: one of its own; any thread may
// call the methods. Memory: at most 1 MiB per direction and connection; beyond it the sender is blocked, as
// on a real network.
#ifndef BFIO_TESTS_CHAOS_TCP_PROXY_H_
#define BFIO_TESTS_CHAOS_TCP_PROXY_H_

#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace bfio::chaos {

class TcpProxy {
 public:
  // Listens on `host`, at a free port; forwards to `upstream_host`:`upstream_port`. IPv4 addresses.
  TcpProxy(const std::string& host, const std::string& upstream_host, uint16_t upstream_port);
  ~TcpProxy();

  // HOST:PORT on which it listens.
  const std::string& address() const { return address_; }

  // Resets every connection, at both ends.
  void Cut();
  // While stalled, nothing passes in either direction and nothing is closed; connections are accepted and not
  // forwarded.
  void Stall(bool stalled);
  // Present connections carry nothing from now on and are not closed; later ones work.
  void BlackHole();
  // Later connections are made to this port of the upstream host.
  void SetUpstream(uint16_t port);
  // Shuts down one direction of every connection; the other direction stays open.
  void HalfClose();
  // Data is forwarded with this delay.
  void Delay(absl::Duration delay);
  // Each direction of a connection carries this many bytes per second, in addition to the delay. 0: no
  // limit.
  void Limit(double bytes_per_s);

 private:
  struct Pipe {
    struct Chunk {
      absl::Time due;
      std::string bytes;
    };
    std::deque<Chunk> chunks;
    size_t buffered = 0;
    // With a limit: the time at which all data so far has been forwarded.
    absl::Time free_at = absl::InfinitePast();
    // The source has ended; forwarded once all data is delivered.
    bool ended = false, shut = false;
  };
  struct Connection {
    int ends[2] = {-1, -1};
    // Pipe i goes from end i to end 1 - i.
    Pipe pipes[2];
    bool broken = false, black_hole = false;
  };

  void Run();
  // How long to wait for data: until the next chunk is due, or the next look at the flags.
  absl::Duration Pause() const;
  void Accept();
  // Reads available data, and writes data that is due.
  void Pump(Connection& connection, int from, absl::Time now);
  static void CloseBoth(Connection& connection, bool reset);

  const std::string upstream_host_;
  std::string address_;
  int listener_ = -1;
  std::mutex mutex_;
  uint16_t upstream_port_;
  bool stop_ = false, stalled_ = false, cut_ = false, half_close_ = false, black_hole_ = false;
  absl::Duration delay_;
  double bytes_per_s_ = 0;
  // Used only by its thread.
  std::list<Connection> connections_;
  std::thread thread_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_TCP_PROXY_H_
