// The link's state of one engine server: its connection, its health, and its ranks.
//
// Purpose: the part of engine_link.h that concerns one server. Ownership: the link owns it. Threads: the
// link's.
#ifndef BFIO_ROUTER_ENGINE_LINK_ENGINE_SERVER_H_
#define BFIO_ROUTER_ENGINE_LINK_ENGINE_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/engine_link/engine_link.h"
#include "router/engine_link/engine_rank.h"

namespace bfio::router {

class EngineServer : public std::enable_shared_from_this<EngineServer> {
 public:
  // `next_member` numbers connections of ranks, of all servers; `barrier` is null without one. All outlive
  // this.
  EngineServer(EngineAddress address, const EngineLink::Options* options, WorkerHandler* handler,
               std::shared_ptr<EventQueue> events, MemberId* next_member, EngineBarrier* barrier);
  ~EngineServer();

  void OnTimer(absl::Time now);
  absl::Time next_deadline() const;
  // Ends every call.
  void CancelAll();

  const EngineAddress& address() const { return address_; }
  // Retire: it is no longer in the list, and its ranks leave when their requests have ended. Keep: it is in
  // the list, perhaps again.
  void Retire();
  void Keep();
  // It has been retired, and its ranks have left.
  bool gone() const;

  // The router's messages to the rank's connection `member`; ignored when that is over.
  void OnEpoch(size_t rank, MemberId member, const EpochOffer& offer);
  void OnPlan(size_t rank, MemberId member, const PlanPart& plan,
              std::vector<EngineRank::Placement> placements);
  void OnClosed(size_t rank, MemberId member, const absl::Status& why);
  // The rank of the connection `member`, if it has one.
  std::optional<size_t> RankOf(MemberId member) const;
  // The engine reports a step of the rank; the prompt tokens of its next ones (EngineRank::Allotment).
  std::optional<int64_t> OnStep(size_t rank, MemberId member, const EngineStep& step);
  // The router has drained the rank.
  void OnReleased(size_t rank, MemberId member);

 private:
  enum class State { kIdle, kAsking, kServing };
  struct Rank {
    // Null: not attached.
    std::shared_ptr<WorkerChannel> channel;
    EngineRank machine;
    absl::flat_hash_map<CallNumber, std::shared_ptr<EngineStream>> streams;
    // When it attaches again; infinite while it is attached or drained.
    absl::Time attach_at = absl::InfiniteFuture();
    absl::Duration retry;
    // EngineRank::Options::on_trial of its next connection.
    bool on_trial = false;
    // The router that it has had a plan's epoch of; 0: none (WorkerHello::router_instance).
    uint64_t router_instance = 0;
    bool drained = false;
    // A record of its load has come since the last health check.
    bool has_record = false;
    // It has requested to be drained.
    bool leaving = false;
  };
  struct Failure {
    size_t rank;
    MemberId member;
    CallNumber call;
    absl::Status status;
  };

  bool Serves(uint64_t connection) const { return connection == connection_ && state_ == State::kServing; }
  void RequestDescription();
  void OnDescription(absl::StatusOr<EngineDescription> description);
  void OnDescribedAgain(absl::StatusOr<EngineDescription> description);
  // It cannot be used now: asks after longer and longer pauses.
  void AskAgain(const absl::Status& why);
  // Its ranks, which description_ has, attach.
  void Serve();
  // Checks whether it is alive, and, if need be at `now`, whether it is still the server that it was.
  void CheckHealth(absl::Time now);
  // For what may mean that the server is gone, or is another one: as soon as it may describe itself again.
  void CheckSoon();
  void OnHealth(const absl::Status& health);
  // The server is alive, and the same, if no answer is outstanding: the failures belong to those requests.
  void ResolveFailures();
  // An answer to so many calls, one after the other, took so long.
  void OnAnswer(absl::Duration took, int calls = 1);
  // Loads: records where the engine sends them, and GetLoads for ranks without one.
  void CheckLoads();
  void OnLoads(const absl::StatusOr<std::vector<EngineRankLoad>>& loads);
  void Subscribe();
  void Unsubscribe();
  void OnRecords();
  void OnRecordsEnded(const absl::Status& why);
  // As the engine reports it, in whichever way; empty: it does not.
  void TakeLoad(Rank& rank, std::optional<EngineLoad> load);
  void Lose(const absl::Status& why);
  // A connection on which a call about the server itself got no answer may be dead, and gRPC would keep it
  // for as long as the kernel repeats what it has sent, some 15 minutes: the next call opens another one.
  void ReplaceClientIfSilent(const absl::Status& why);
  void Attach(size_t rank);
  // Drops the connection and ends its calls.
  void Detach(Rank& rank);
  // Null unless `member` is its present connection.
  Rank* Find(size_t rank, MemberId member);
  void CarryOut(size_t rank, EngineRank::Output out);
  void Start(size_t rank, EngineRank::StartCall start);
  void OnCallEnded(size_t rank, MemberId member, CallNumber call, absl::StatusOr<EngineEnd> end);
  // For callbacks of the client: runs `event`, which gets the server, on the link's thread, if the server is
  // still there.
  auto Poster() {
    return [events = events_, self = weak_from_this()](auto event) {
      events->Post([self, event = std::move(event)]() mutable {
        if (const auto server = self.lock()) event(*server);
      });
    };
  }

  const EngineAddress address_;
  const std::string name_;
  const EngineLink::Options* const options_;
  WorkerHandler* const handler_;
  const std::shared_ptr<EventQueue> events_;
  MemberId* const next_member_;
  EngineBarrier* const barrier_;
  std::unique_ptr<EngineClient> client_;

  State state_ = State::kIdle;
  bool retired_ = false;
  EngineDescription description_;
  std::vector<Rank> ranks_;
  // Time of the next request for its ranks, or of the next health check.
  absl::Time next_at_ = absl::InfinitePast();
  absl::Duration retry_;
  bool checking_ = false;
  // It has been asked to describe itself again, which may take longer than health checks, and they go on;
  // when it was asked last; its records have ended since then.
  bool describing_ = false;
  absl::Time described_at_ = absl::InfinitePast();
  bool records_ended_ = false;
  // Start of the health check and of the request for loads under way.
  absl::Time checked_at_, loads_asked_at_;
  // The shortest answer since the last description, and between that and the one before: the round trip.
  // Others take as long as what the engine does for them: SGLang's health check generates a token.
  absl::Duration least_answer_ = absl::InfiniteDuration(), last_least_ = absl::InfiniteDuration();
  // A request for its loads is under way; it does not report loads.
  bool loads_requested_ = false, loads_unimplemented_ = false;
  // The subscription to its load records; null: none. When to subscribe again.
  std::shared_ptr<EngineRecords> records_;
  bool sends_records_ = false;
  // EngineRank::load_shows_work, of all connections of its ranks so far.
  bool load_shows_work_ = false;
  absl::Time subscribe_at_ = absl::InfinitePast();
  absl::Duration subscribe_retry_;
  // Answers to calls of an earlier connection are ignored.
  uint64_t connection_ = 0;
  // Calls that failed as if the server was gone: before the health check and the description under way began,
  // and since then. The answers say nothing about failures after the questions.
  std::vector<Failure> doubtful_, unchecked_;
  // The error of the last attempt to reach it, to log each error once.
  std::string last_error_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_ENGINE_SERVER_H_
