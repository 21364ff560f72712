// The link's state of one engine server: its connection, its health, and its ranks. The part of engine_link.h
// that concerns one server. Ownership: the link owns it. Threads: the link's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/telemetry/line_limiter.h"
#include "router/engine_link/engine_link.h"
#include "router/engine_link/engine_rank.h"
#include "router/engine_link/published/engine_events.h"

namespace bfio::router {

class EngineServer : public std::enable_shared_from_this<EngineServer> {
 public:
  // `barrier` is null without one. All of them outlive this.
  EngineServer(EngineAddress address, const EngineLink::Options* options, WorkerHandler* handler,
               std::shared_ptr<EventQueue> events, EngineServers* servers, EngineBarrier* barrier);
  ~EngineServer();

  void OnTimer(absl::Time now);
  absl::Time next_deadline() const;
  // Frees the KV that another server keeps. False: this one cannot.
  bool Free(const std::string& parameters);
  // Ends every call.
  void CancelAll();

  const EngineAddress& address() const { return address_; }
  // Retire: the server is no longer in the list, and its ranks leave when their requests have ended. Keep:
  // the server is in the list, perhaps again.
  void Retire();
  void Keep();
  // The server has been retired, and its ranks have left.
  bool gone() const;

  // The router's messages to the rank's connection `member`; ignored when that connection has ended.
  void OnEpoch(size_t rank, MemberId member, const EpochOffer& offer);
  void OnPlan(size_t rank, MemberId member, const PlanPart& plan,
              std::vector<EngineRank::Placement> placements);
  void OnClosed(size_t rank, MemberId member, const absl::Status& why);
  // The rank of the connection `member`, if it has one.
  std::optional<size_t> RankOf(MemberId member) const;
  // The engine reports a step of the rank. Returns EngineRank::Allotment for its next steps.
  std::optional<int64_t> OnStep(size_t rank, MemberId member, const EngineStep& step);
  // The router has drained the rank.
  void OnReleased(size_t rank, MemberId member);

 private:
  enum class State { kIdle, kAsking, kServing };
  struct Rank {
    // Null, as the machine: not attached.
    std::shared_ptr<WorkerChannel> channel;
    std::unique_ptr<EngineRank> machine;
    absl::flat_hash_map<CallNumber, std::shared_ptr<EngineStream>> streams;
    // When the rank attaches again; infinite while it is attached or drained.
    absl::Time attach_at = absl::InfiniteFuture();
    absl::Duration retry;
    // EngineRank::Options::on_trial of the rank's next connection.
    bool on_trial = false;
    // The router of which it has had a plan; 0: none (WorkerHello::router_instance).
    uint64_t router_instance = 0;
    bool drained = false;
    // A load record of the rank has come since the last health check.
    bool has_record = false;
    // The rank has requested to be drained.
    bool leaving = false;
    // The engine and address of its hand-offs; empty: there was none.
    std::string kv_source;
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
  // The server cannot be used now: requests its description again, after longer and longer pauses.
  void AskAgain(const absl::Status& why);
  // Attaches the ranks of description_.
  void Serve();
  // FAILED_PRECONDITION where one of two servers computes prompts that the other could not decode, and for
  // one that computes prompts for nobody: all requests would wait for it.
  absl::Status CheckPairs() const;
  // Checks whether the server is alive and, if that is due at `now`, whether it is still the same server.
  void CheckHealth(absl::Time now);
  // Cancels streams that the server has left open after their ends.
  void CancelLeftOpen(absl::Time now);
  // After signs that the server is gone or was replaced: checks as soon as it may be described again.
  void CheckSoon();
  void OnHealth(const absl::Status& health);
  // The same server reports other sizes: ranks are added, the rest waits until no request runs.
  void Resize(const EngineDescription& description);
  // The server is alive and the same, if no answer is outstanding: the failures concern those requests only.
  void ResolveFailures();
  // `calls` successive calls took `took` until their answers.
  void OnAnswer(absl::Duration took, int calls = 1);
  // Requests loads: by a subscription where the engine sends records, and by GetLoads for ranks without one.
  void CheckLoads();
  void OnLoads(const absl::StatusOr<std::vector<EngineRankLoad>>& loads);
  void Subscribe();
  void Unsubscribe();
  void OnRecords();
  void OnMetered();
  void OnRecordsEnded(const absl::Status& why);
  // The rank's load, from either source; empty: the engine does not report it.
  void TakeLoad(size_t rank, std::optional<EngineLoad> load);
  void Lose(const absl::Status& why);
  void LoseRanks();
  // If a call about the server itself got no answer, its connection may be dead, and gRPC would keep it while
  // the kernel retransmits, about 15 minutes. The next call then opens another connection.
  void ReplaceClientIfSilent(const absl::Status& why);
  void Attach(size_t rank);
  // Drops the rank's connection and ends its calls.
  void Detach(Rank& rank);
  // Null unless `member` is the rank's present connection.
  Rank* Find(size_t rank, MemberId member);
  void CarryOut(size_t rank, EngineRank::Output out);
  void Start(size_t rank, EngineRank::StartCall start);
  // A call has brought tokens, or its end.
  void OnOutput(size_t rank, MemberId member);
  void OnCallEnded(size_t rank, MemberId member, CallNumber call, absl::StatusOr<EngineEnd> end);
  // A callback for the client: event(server, arguments) on the link's thread, if the server still exists, and
  // OfConnection if its present connection serves.
  template <typename Event>
  auto Posted(Event event) {
    return [events = events_, self = weak_from_this(), event](auto... args) {
      events->Post([self, event, ... args = std::move(args)]() mutable {
        if (const auto server = self.lock()) std::invoke(event, *server, std::move(args)...);
      });
    };
  }
  template <typename Event>
  auto OfConnection(Event event) {
    return Posted([connection = connection_, event](EngineServer& server, auto answer) {
      if (server.Serves(connection)) std::invoke(event, server, std::move(answer));
    });
  }
  // Tells the rank of an event, and carries out what follows. Nothing if `member` is another connection.
  template <typename Event, typename... Args>
  void Tell(size_t r, MemberId member, Event event, Args&&... args) {
    Rank* const rank = Find(r, member);
    if (rank == nullptr) return;
    EngineRank::Output out;
    std::invoke(event, *rank->machine, std::forward<Args>(args)..., MonotonicNow(), out);
    CarryOut(r, std::move(out));
  }

  const EngineAddress address_;
  const std::string name_;
  const EngineLink::Options* const options_;
  WorkerHandler* const handler_;
  const std::shared_ptr<EventQueue> events_;
  EngineServers* const servers_;
  EngineBarrier* const barrier_;
  std::unique_ptr<EngineClient> client_;
  // Null: they publish nothing, or it has not been asked for yet.
  std::unique_ptr<EngineEvents> events_of_ranks_;

  State state_ = State::kIdle;
  bool retired_ = false;
  EngineDescription description_;
  // The sizes to attach with as soon as no request runs.
  std::optional<EngineDescription> resized_;
  std::vector<Rank> ranks_;
  // Time of the next request for the description, or of the next health check.
  absl::Time next_at_ = absl::InfinitePast();
  absl::Duration retry_;
  bool checking_ = false;
  // A new description has been requested, and health checks go on; when; load records have ended since then.
  bool describing_ = false;
  absl::Time described_at_ = absl::InfinitePast();
  bool records_ended_ = false;
  // Start of the last of successive failed health checks; infinite: none. The latest output of any request.
  absl::Time failing_since_ = absl::InfiniteFuture(), last_output_ = absl::InfinitePast();
  // Start of the health check and of the request for loads under way.
  absl::Time checked_at_, loads_asked_at_;
  // The shortest answers since the last description, and before that: the round trip. Others include the
  // engine's work: SGLang's health check generates a token.
  absl::Duration least_answer_ = absl::InfiniteDuration(), last_least_ = absl::InfiniteDuration();
  // Loads have been requested and are awaited; the server does not implement GetLoads.
  bool loads_requested_ = false, loads_unimplemented_ = false;
  // The subscription to load records; null: none. Its number: what comes of earlier ones is ignored.
  std::shared_ptr<EngineRecords> records_;
  uint64_t subscription_ = 0;
  bool sends_records_ = false;
  absl::Time subscribe_at_ = absl::InfinitePast();
  absl::Duration subscribe_retry_;
  // Answers to calls of an earlier connection are ignored.
  uint64_t connection_ = 0;
  // Calls that failed as if the server were gone: before the start of the check under way, and since then.
  std::vector<Failure> doubtful_, unchecked_;
  // Streams whose requests have ended, which the server should close, and when that was.
  std::vector<std::pair<absl::Time, std::weak_ptr<EngineStream>>> closing_;
  // The error of the last attempt to reach the server, so that each error is logged once.
  std::string last_error_;
  LineLimiter lines_{1, absl::Seconds(10)};
};

}  // namespace bfio::router
