// The engines behind the router (--engines): their connections, and their ranks as workers. Edge 2 for
// servers that do not implement WorkerLink. The link requests each server's ranks and sizes, and each rank
// attaches as a worker (engine_rank.h). Ranks with a barrier (EngineAddress::barrier) are in the group of its
// name. An engine with bfio's scheduler class opens a stream per rank and reports its steps (engine_steps.h).
//
// The ranks of a server that is lost leave, and the router places their requests again:
// docs/design/engine-ranks.md has the signs of a loss. The list of engines may change (engine_list.h). Ranks
// of a server that was removed from it take no new requests, and leave when their requests have ended.
//
// Ownership: owns clients and ranks; borrows the handler, which must outlive Stop. Threads: one thread owns
// all state; callbacks of clients and calls of the router post to it. Another thread reads the list if it may
// change. Stop waits for neither a call nor a lookup; the destructor waits for a lookup that has begun.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/event_queue.h"
#include "router/engine_link/engine_barrier.h"
#include "router/engine_link/engine_client.h"
#include "router/engine_link/engine_list.h"
#include "router/engine_link/engine_steps.h"
#include "router/group/worker_events.h"

namespace bfio::router {

// What all servers of a link share; it outlives them. Threads: the link's.
struct EngineServers {
  // Numbers the ranks' connections.
  MemberId next_member = 0;
  // Of those that serve, by name.
  std::map<std::string, EngineDescription> serving;
  // A number for SGLang (KvSource::room), below 2^31, of which this is the remainder by the number of ranks.
  int64_t NextRoom(int64_t ranks, size_t rank) {
    constexpr int64_t kMost = (int64_t{1} << 31) - 1;
    if (room >= kMost - 2 * ranks) room = 0;
    room += ranks - room % ranks + static_cast<int64_t>(rank);
    return room;
  }
  // The last room. Other routers begin elsewhere.
  int64_t room = 0;
  // EngineServer::Free of one that decodes.
  std::function<void(const std::string& parameters)> free;
};

class EngineServer;

class EngineLink {
 public:
  static constexpr absl::Duration kDescribeAgain = absl::Seconds(10);
  static constexpr absl::Duration kShortestRetry = absl::Milliseconds(200);
  static constexpr absl::Duration kLongestRetry = absl::Seconds(5);

  struct Options {
    EngineSource engines;
    ResolveHost resolve = ResolveBySystem;
    ResolvePool resolve_pool = nullptr;
    // How long an engine may take to answer a call about itself.
    absl::Duration patience = absl::Seconds(10);
    // Identifies this run of the router. Part of the names of its requests, so that a restarted router sends
    // other names to the same engine.
    uint64_t instance = 1;
    std::function<std::unique_ptr<EngineClient>(const EngineAddress&)> make_client;
  };

  EngineLink(Options options, WorkerHandler* handler);
  ~EngineLink();

  // An engine reports a step on the stream with this number, which is never used twice. `answer` is called
  // once on the link's thread, unless the link is stopped before that. Any thread.
  void OnStep(uint64_t stream, EngineStep step, AnswerStep answer);
  void OnStepsEnded(uint64_t stream);

  // Cancels all calls and ends the thread. No event is posted to the handler after it.
  void Stop();

 private:
  // A rank that reports its steps. The names of its requests identify it.
  struct Follower {
    std::weak_ptr<EngineServer> server;
    size_t rank = 0;
    MemberId member = 0;
    std::optional<int64_t> token_budget;
  };

  void Run();
  void TakeStep(Follower& follower, EngineStep step, const AnswerStep& answer);
  void Bind(Follower& follower, MemberId member);
  // Reads the list repeatedly until Stop.
  void Watch();
  // Replaces the list of engines by `engines`.
  void SetEngines(const std::vector<EngineAddress>& engines);

  const Options options_;
  WorkerHandler* const handler_;
  // Shared with callbacks of clients, which may come after Stop.
  const std::shared_ptr<EventQueue> events_;
  // By the barrier's name; used on the link's thread.
  std::map<std::string, EngineBarrier> barriers_;
  EngineServers shared_;
  std::vector<std::shared_ptr<EngineServer>> servers_;
  std::map<uint64_t, Follower> followers_;
  // The queue of the thread that reads the list; nothing is posted to it.
  EventQueue watching_;
  std::thread thread_, watch_;
};

}  // namespace bfio::router
