// The pool of servers that serve parts of a model, and the chains made of them.
//
// Purpose: keeps the connected servers, composes chains (compose_chains.h), and sees each through loading and
// serving to its end. A server may be in several chains, with the same blocks. A chain ends when one of its
// servers is lost, fails to load its part, or reports that it is broken. Servers that are in no other chain
// are then free and are composed again after a short delay, so that several losses cause one composition.
// Complete chains are left alone: interrupting their requests costs more than a better composition gains. A
// restarted router recovers chains whose servers all announce them. Servers that measure themselves are asked
// for their distance to the others; composing waits a little for their answers, within a bound.
//
// Ownership: sessions are the caller's; they are named by numbers. Threads: one. No gRPC and no clock.
#ifndef BFIO_CHAINS_ROUTER_CHAIN_POOL_H_
#define BFIO_CHAINS_ROUTER_CHAIN_POOL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bfio/v1/pipeline.pb.h"
#include "chains/router/chain_options.h"
#include "chains/router/compose_chains.h"

namespace bfio::router {

class ChainPool {
 public:
  using Session = uint64_t;
  struct Outgoing {
    Session to;
    v1::PoolMessage message;
  };

  // Chains are numbered from `first_chain`, which must exceed the numbers of earlier routers.
  ChainPool(const ChainOptions& options, uint64_t first_chain);

  // An error ends the session: INVALID_ARGUMENT, FAILED_PRECONDITION (another model than the pool's),
  // ALREADY_EXISTS (the name is taken by a server that is there) or RESOURCE_EXHAUSTED (the pool is full).
  absl::Status OnMessage(Session session, const v1::ServerMessage& message, absl::Time now);
  void OnGone(Session session, absl::Time now);
  // Composes and gives up what is late; the caller calls it after each event and when NextTimer is due.
  // `demand`: requests per second that come, 0 where that is not known.
  void OnTime(absl::Time now, double demand = 0);
  absl::Time NextTimer() const;
  // Servers that are in no chain, of another model or version than one that has come with chains that serve:
  // their sessions are to be ended, FAILED_PRECONDITION. So the first to come after a restart decides
  // nothing.
  std::vector<Session> TakePutOut() { return std::exchange(put_out_, {}); }
  // What is to be sent, in order.
  std::vector<Outgoing> TakeOutgoing();
  // The servers and sizes of the last composition, once; where times were not measured, nothing.
  struct Composed {
    std::vector<PoolServer> servers;
    BlockSizes sizes;
  };
  std::optional<Composed> TakeComposed() { return std::exchange(composed_pool_, std::nullopt); }

  int64_t servers() const { return static_cast<int64_t>(servers_.size()); }
  // Those that serve.
  int64_t chains() const;

 private:
  struct Server {
    v1::ServerHello hello;
    // What it hosts while it is in chains.
    BlockRange hosts;
    // With the cache slots that each takes here: requests times blocks. None: it is free.
    std::map<uint64_t, int64_t> chains;
    // It did not load what it was given: no more chains for it.
    bool failed = false;
    // Until when its PeerTimes are waited for.
    absl::Time measuring_until = absl::InfinitePast();
    // By the other's name, seconds; each pair is stored with the server that joined later.
    std::map<std::string, double> round_trips_s;
  };
  struct Chain {
    // By stage; absent: announced by others, not yet by its own server.
    std::vector<std::optional<Session>> stages;
    std::vector<bool> ready;
    bool serving = false;
    absl::Time deadline;
    // Requests per second of one slot, and slots; 0 where times were not measured.
    core::ChainRate rate;
  };

  absl::Status OnHello(Session session, const v1::ServerHello& hello, absl::Time now);
  absl::Status OnReady(Session session, const v1::ChainReady& ready, absl::Time now);
  absl::Status OnTimes(Session session, const v1::PeerTimes& times, absl::Time now);
  // The same process by an earlier stream, which may be half open, is gone.
  void TakeOver(const v1::ServerHello& hello, absl::Time now);
  void AskForTimes(Session session, Server& server, absl::Time now);
  // Of these servers; by place.
  std::optional<std::vector<ServerTimes>> MeasuredTimes(const std::vector<Session>& sessions) const;
  void RecoverStage(Session session, Server& server, const v1::ChainStage& stage, absl::Time now);
  void Compose(absl::Time now, double demand);
  // `service_s`: 0 where times are not measured.
  void Begin(const core::ServerChain& plan, const std::vector<Session>& sessions, double service_s,
             absl::Time now);
  BlockSizes SizesOf(const v1::ServerHello& hello) const;
  // Largest prompt + output of one request.
  int64_t SequenceTokens(const v1::ServerHello& hello) const;
  // Tells all of its servers but `except`.
  void EndChain(uint64_t chain, const std::string& why, Session except, absl::Time now);
  // With the servers that are here. FAILED_PRECONDITION.
  absl::Status CheckAgrees(const v1::ServerHello& hello) const;
  // No server is in a chain.
  bool AllFree() const;
  void PutOut(const absl::Status& why);
  void SettleFrom(absl::Time now) { compose_at_ = now + options_.settle; }
  void Send(Session to, v1::PoolMessage message) { outgoing_.push_back({to, std::move(message)}); }

  const ChainOptions options_;
  const uint64_t first_chain_;
  uint64_t next_chain_;
  std::map<Session, Server> servers_;
  std::map<uint64_t, Chain> chains_;
  std::vector<Outgoing> outgoing_;
  std::vector<Session> put_out_;
  // Nothing to compose: infinite future.
  absl::Time compose_at_ = absl::InfiniteFuture();
  // A composition is due and has been put off for what servers measure: until then at the latest.
  absl::Time wait_end_ = absl::InfiniteFuture();
  // The first composition has been.
  bool composed_ = false;
  std::optional<Composed> composed_pool_;
};

}  // namespace bfio::router

#endif  // BFIO_CHAINS_ROUTER_CHAIN_POOL_H_
