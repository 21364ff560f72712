// How the ranks of a star or tree connect: every rank joins at rank 0, which assigns each its parent.
//
// A connection that does not prove knowledge of the epoch's secret (join_proof.h: port scanners,
// attackers, ranks of another epoch, a peer that never sends) gets no information and is dropped. What it may
// hold is bounded in bytes, in time and in number, and a flood drops its own connections first. No connection
// is served between formings, so none delays a step. Threads: one.
#ifndef BFIO_WORKER_BARRIER_STAR_RENDEZVOUS_H_
#define BFIO_WORKER_BARRIER_STAR_RENDEZVOUS_H_

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/star/join_proof.h"
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
  // The communicator id's; not used in a group of one.
  const StarId& id;
  int32_t fan_out;
  // Links are encrypted as soon as they are found (tls.h). All ranks must agree.
  bool tls;
  const Fd& listener;
  // Where `listener` is, as peers reach it.
  Address listen_address;
  // A connection that has not proven itself by then is dropped.
  absl::Duration handshake_timeout;
  const Signal& interrupt;
  int64_t deadline_ns;
};

// CANCELLED when interrupted, DEADLINE_EXCEEDED naming the missing ranks, UNAVAILABLE when the group has
// moved on.
absl::StatusOr<Links> Rendezvous(const RendezvousSpec& spec);

// The accepting half: collects one connection from each rank of a range.
class Acceptor {
 public:
  struct Arrival {
    Connection connection;
    // Where that rank listens.
    Address address;
    // Answers it. There as soon as it has come.
    std::optional<AcceptorProof> proof;
  };

  // Expects a Handshake of `type` from every rank in `ranks`.
  Acceptor(const RendezvousSpec& spec, WireType type, RankRange ranks);

  absl::Status Run();

  // After Run: by rank, from the range's first.
  std::vector<Arrival>& arrivals() { return arrivals_; }

 private:
  // A connection that has proven nothing yet.
  struct Pending {
    Connection connection;
    AcceptorProof proof;
    uint64_t origin;
    int64_t deadline_ns;
    // It has been sent its challenge.
    bool challenged = false;
  };

  void FillPollSet();
  int64_t NextDeadline() const;
  void AcceptSome();
  // Of the machine that has the most, the oldest.
  void DropOldestPending();
  void DropDeparted();
  void ServePending();
  // Reads what it has sent, and answers. False: it is done with.
  bool Serve(Pending& pending);
  // An expected rank moves to arrivals_.
  void Admit(Pending& pending);
  int32_t Missing() const;
  absl::Status TooLate() const;

  const RendezvousSpec& spec_;
  const WireType type_;
  const RankRange ranks_;
  std::vector<Arrival> arrivals_;
  std::list<Pending> pending_;
  // interrupt, listener, pending, arrivals (in that order)
  std::vector<pollfd> poll_set_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_STAR_RENDEZVOUS_H_
