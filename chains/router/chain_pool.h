// The pool of servers that serve parts of a model, and the chains made of them. Keeps the connected servers,
// composes chains (chains/core/pool_plan.h), and manages each chain from loading to its end. A server may be
// in several chains, with the same hosted blocks. A chain ends when one of its servers is lost, fails to load
// its part, or reports an error; servers in no other chain are composed again after a short delay. A
// restarted router recovers the chains that all their servers announce (docs/design/chains.md). Sessions
// belong to the caller and are identified by numbers. Threads: one. No gRPC and no clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "bfio/v1/pipeline.pb.h"
#include "chains/core/pool_plan.h"
#include "chains/core/server_pool.h"
#include "chains/router/chain_options.h"

namespace bfio::router {

// The composer's times (core::ChainServer) of servers with these times of a mean request in a block; 0: not
// measured. Those that have not measured have the median of the others. Trials are noisy, and placements
// should not depend on noise: times within kSameWithin of the median count as the median. A hop counts as a
// block of a median server. Absent if no server has measured. Pure.
std::optional<std::vector<core::ServerTimes>> TimesOf(absl::Span<const double> compute_s);

// Relative distance to the median within which a time counts as the median.
inline constexpr double kSameWithin = 0.25;

class ChainPool {
 public:
  using Session = uint64_t;
  struct Outgoing {
    Session to;
    v1::PoolMessage message;
  };

  // Chains are numbered from `first_chain`, which must exceed the numbers of earlier routers.
  ChainPool(const ChainOptions& options, uint64_t first_chain);

  // An error must end the session: INVALID_ARGUMENT, FAILED_PRECONDITION (another model than the pool's),
  // ALREADY_EXISTS (a connected server has that name) or RESOURCE_EXHAUSTED (the pool is full).
  absl::Status OnMessage(Session session, const v1::ServerMessage& message, absl::Time now);
  void OnGone(Session session, absl::Time now);
  // Composes, and ends chains that are late. Call it after each event and when NextTimer is due.
  void OnTime(absl::Time now);
  absl::Time NextTimer() const;
  // Sessions to end with FAILED_PRECONDITION: servers in no chain whose model or version differs from that of
  // a newly joined server with serving chains. So the first server that joins after a restart does not
  // determine the pool's model.
  std::vector<Session> TakePutOut() { return std::exchange(put_out_, {}); }
  // The messages to send, in order.
  std::vector<Outgoing> TakeOutgoing();
  // The servers and sizes of the last composition, returned once; absent if times were not measured.
  struct Composed {
    std::vector<core::PoolServer> servers;
    core::BlockSizes sizes;
  };
  std::optional<Composed> TakeComposed() { return std::exchange(composed_pool_, std::nullopt); }

  int64_t servers() const { return static_cast<int64_t>(servers_.size()); }
  // The number of serving chains.
  int64_t chains() const;

 private:
  struct Server {
    v1::ServerHello hello;
    // The blocks that it hosts while it is in chains.
    BlockRange hosts;
    // By chain, the cache slots that it takes here: requests times blocks. Empty: the server is free.
    std::map<uint64_t, int64_t> chains;
    // Whether it failed to load its part: then it gets no more chains.
    bool failed = false;
  };
  struct Chain {
    // By stage; absent: the chain was announced by other servers, but not yet by this stage's server.
    std::vector<std::optional<Session>> stages;
    std::vector<bool> ready;
    bool serving = false;
    absl::Time deadline;
    int64_t slots = 0;
    // Requests per second of one slot; 0 if times were not measured.
    double rate = 0;
  };

  absl::Status OnHello(Session session, const v1::ServerHello& hello, absl::Time now);
  absl::Status OnReady(Session session, const v1::ChainReady& ready, absl::Time now);
  // Removes an earlier session of the same process, whose stream may be half open.
  void TakeOver(const v1::ServerHello& hello, absl::Time now);
  // The times of these servers, in the same order.
  std::optional<std::vector<core::ServerTimes>> MeasuredTimes(const std::vector<Session>& sessions) const;
  void RecoverStage(Session session, Server& server, const v1::ChainStage& stage, absl::Time now);
  void Compose(absl::Time now);
  // The usable servers, ordered by name, so that a plan does not depend on the order of arrival, and the
  // chains.
  struct Members {
    std::vector<Session> sessions;
    std::vector<core::PoolServer> servers;
    bool any_free = false;
    bool measured = false;
    std::vector<core::ExistingChain> standing;
  };
  Members MembersNow() const;
  // `service_s`: 0 if times are not measured.
  void Begin(const core::ServerChain& plan, const std::vector<Session>& sessions, double service_s,
             absl::Time now);
  core::BlockSizes SizesOf(const v1::ServerHello& hello) const;
  // Upper bound of a request's prompt + output, in tokens.
  int64_t SequenceTokens(const v1::ServerHello& hello) const;
  // Ends a chain and notifies all of its servers except `except`.
  void EndChain(uint64_t chain, const std::string& why, Session except, absl::Time now);
  // FAILED_PRECONDITION unless `hello` agrees with the connected servers.
  absl::Status CheckAgrees(const v1::ServerHello& hello) const;
  // Whether no server is in a chain.
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
  // Infinite future: nothing to compose.
  absl::Time compose_at_ = absl::InfiniteFuture();
  // Whether the first composition has been made.
  bool composed_ = false;
  std::optional<Composed> composed_pool_;
};

}  // namespace bfio::router
