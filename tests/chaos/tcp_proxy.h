// A TCP proxy that misbehaves when told to.
//
// Purpose: sits between a worker and the router and cuts, stalls, delays or half-closes what passes through,
// which no signal to either end can do. Threads: one of its own; the methods may be called from any.
// Memory: at most 1 MiB per direction and connection; beyond it the sender feels it, as on a real network.
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
  // Listens on `host`, at a free port; forwards to `upstream_host`:`upstream_port`. IPv4 addresses in dots.
  TcpProxy(const std::string& host, const std::string& upstream_host, uint16_t upstream_port);
  ~TcpProxy();

  // HOST:PORT where it listens.
  const std::string& address() const { return address_; }

  // Resets every connection, both ends.
  void Cut();
  // Nothing passes, in either direction, and nothing is closed; connections are taken and go nowhere.
  void Stall(bool stalled);
  // Tells one end of every connection that the other has nothing more to say; the other direction stays open.
  void HalfClose();
  // What comes in leaves so much later.
  void Delay(absl::Duration delay);

 private:
  struct Pipe {
    struct Chunk {
      absl::Time due;
      std::string bytes;
    };
    std::deque<Chunk> chunks;
    size_t buffered = 0;
    // The source has ended; passed on once everything is delivered.
    bool ended = false, shut = false;
  };
  struct Connection {
    int ends[2] = {-1, -1};
    // From end i to end 1 - i.
    Pipe pipes[2];
    bool broken = false;
  };

  void Run();
  void Accept();
  // Reads what is there, and writes what is due.
  void Pump(Connection& connection, int from, absl::Time now);
  static void CloseBoth(Connection& connection, bool reset);

  const std::string upstream_host_;
  const uint16_t upstream_port_;
  std::string address_;
  int listener_ = -1;
  std::mutex mutex_;
  bool stop_ = false, stalled_ = false, cut_ = false, half_close_ = false;
  absl::Duration delay_;
  // The thread's own.
  std::list<Connection> connections_;
  std::thread thread_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_TCP_PROXY_H_
