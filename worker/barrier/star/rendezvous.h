// Connects the ranks of a star or tree: every rank joins at rank 0, which assigns each its parent. A
// connection that does not prove knowledge of the epoch's secret (join_proof.h) gets no information and is
// dropped: port scanners, attackers, ranks of another epoch, a peer that never sends. Such connections are
// bounded in bytes, time and number, and a flood drops its own connections first. No connection is served
// between rendezvous, so none delays a step. Threads: used by one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/star/join_proof.h"
#include "worker/barrier/star/socket.h"

namespace bfio::worker {

// REQUIRES: rank >= 1, fan_out >= 1.
constexpr int32_t ParentOf(int32_t rank, int32_t fan_out) {
  return (rank - 1) / fan_out;
}

struct RankRange {
  int32_t begin = 0;
  // Exclusive.
  int32_t end = 0;
  constexpr int32_t size() const { return end - begin; }
};

constexpr RankRange ChildrenOf(int32_t rank, int32_t fan_out, int32_t world_size) {
  const int64_t first = int64_t{rank} * fan_out + 1;
  return {static_cast<int32_t>(std::min<int64_t>(first, world_size)),
          static_cast<int32_t>(std::min<int64_t>(first + fan_out, world_size))};
}

// A rank's connections; children[i] is the i-th rank of ChildrenOf.
struct Links {
  // Not valid on rank 0.
  Connection parent;
  std::vector<Connection> children;
};

// Arguments of a rendezvous. References are valid during the call.
struct RendezvousSpec {
  const GroupSpec& group;
  // The content of the communicator id; not used in a group of one rank.
  const StarId& id;
  int32_t fan_out;
  // Encrypts links as soon as they are established (tls.h). Must be equal on all ranks.
  bool tls;
  const Fd& listener;
  // Address of `listener`, as peers reach it.
  Address listen_address;
  // Time within which a connection must authenticate; it is dropped otherwise.
  absl::Duration handshake_timeout;
  const Signal& interrupt;
  int64_t deadline_ns;
};

// CANCELLED: interrupted; DEADLINE_EXCEEDED: names the missing ranks; UNAVAILABLE: the group is in another
// epoch.
absl::StatusOr<Links> Rendezvous(const RendezvousSpec& spec);

// The accepting end: collects one connection from each rank of a range.
class Acceptor {
 public:
  struct Arrival {
    Connection connection;
    // Address at which that rank listens.
    Address address;
    // Answers the joiner; present once the rank has arrived.
    std::optional<AcceptorProof> proof;
  };

  // Expects a Handshake of `type` from every rank in `ranks`.
  Acceptor(const RendezvousSpec& spec, WireType type, RankRange ranks);

  absl::Status Run();

  // After Run: by rank, starting with the first of the range.
  std::vector<Arrival>& arrivals() { return arrivals_; }

 private:
  // A connection that is not authenticated yet.
  struct Pending {
    Connection connection;
    AcceptorProof proof;
    std::string account;
    int64_t deadline_ns;
    // Whether the challenge has been sent.
    bool challenged = false;
  };

  void FillPollSet();
  int64_t NextDeadline() const;
  void AcceptSome();
  // Drops the oldest connection of the machine that has the most.
  void DropOldestPending();
  void DropDeparted();
  void ServePending();
  // Reads and answers messages. False: the connection is finished, accepted or not.
  bool Serve(Pending& pending);
  // Moves an expected rank's connection to arrivals_.
  void Admit(Pending& pending);
  int32_t Missing() const;
  absl::Status TooLate() const;

  const RendezvousSpec& spec_;
  const WireType type_;
  const RankRange ranks_;
  std::vector<Arrival> arrivals_;
  std::list<Pending> pending_;
  // In this order: interrupt, listener, pending connections, arrivals.
  std::vector<pollfd> poll_set_;
};

}  // namespace bfio::worker
