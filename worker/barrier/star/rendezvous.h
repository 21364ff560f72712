// How the ranks of a star or tree find each other: everybody joins at rank 0, which tells each its parent.
//
// Whoever connects and is not an expected rank of this epoch (port scanners, ranks of an older epoch, a peer
// that never speaks) is dropped and harms nobody. Threads: one.
#ifndef BFIO_WORKER_BARRIER_STAR_RENDEZVOUS_H_
#define BFIO_WORKER_BARRIER_STAR_RENDEZVOUS_H_

#include <cstdint>
#include <list>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/star/socket.h"
#include "worker/barrier/star/topology.h"

namespace bfio::worker {

// A rank's connections. By rank: children[i] is the i-th of ChildrenOf.
struct Links {
  // Not valid on rank 0.
  Connection parent;
  std::vector<Connection> children;
};

// What a rank brings to a rendezvous. Borrowed for the call.
struct RendezvousSpec {
  const GroupSpec& group;
  int32_t fan_out;
  const Fd& listener;
  // Where `listener` is, as peers reach it.
  Address listen_address;
  // A connection that has not said who it is by then is dropped.
  absl::Duration handshake_timeout;
  const Signal& interrupt;
  int64_t deadline_ns;
};

// CANCELLED when interrupted, DEADLINE_EXCEEDED naming who is missing, UNAVAILABLE when the group has moved
// on.
absl::StatusOr<Links> Rendezvous(const RendezvousSpec& spec);

// The accepting half: collects one connection from each rank of a range.
class Acceptor {
 public:
  struct Arrival {
    Connection connection;
    // Where that rank listens.
    Address address;
  };

  // Expects a Handshake of `type` from every rank in `ranks`.
  Acceptor(const RendezvousSpec& spec, WireType type, RankRange ranks);

  absl::Status Run();

  // After Run: by rank, from the range's first.
  std::vector<Arrival>& arrivals() { return arrivals_; }

 private:
  struct Stranger {
    Connection connection;
    int64_t deadline_ns;
  };
  using StrangerIterator = std::list<Stranger>::iterator;

  void FillPollSet();
  int64_t NextDeadline() const;
  void AcceptAll();
  void DropDeparted();
  void ServeStrangers();
  // True when the stranger turned out to be an expected rank and has moved to arrivals_.
  bool Admit(Stranger& stranger);
  int32_t Missing() const;
  absl::Status TooLate() const;

  const RendezvousSpec& spec_;
  const WireType type_;
  const RankRange ranks_;
  std::vector<Arrival> arrivals_;
  std::list<Stranger> strangers_;
  // interrupt, listener, strangers, arrivals (in that order)
  std::vector<pollfd> poll_set_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_STAR_RENDEZVOUS_H_
