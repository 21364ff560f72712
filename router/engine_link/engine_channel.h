// The WorkerChannel of a connection of an engine's rank. The router's messages become events of the rank's
// server, on the link's thread. Ownership: shared by the server and the router; does not keep the server
// alive. Threads: as WorkerChannel.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/event_queue.h"
#include "common/base/spdlog.h"
#include "router/engine_link/engine_rank.h"
#include "router/engine_link/engine_server.h"
#include "router/group/worker_events.h"

namespace bfio::router {

class EngineChannel final : public WorkerChannel {
 public:
  EngineChannel(MemberId id, std::string peer, std::weak_ptr<EngineServer> server, size_t rank,
                std::shared_ptr<EventQueue> events)
      : id_(id),
        peer_(std::move(peer)),
        server_(std::move(server)),
        rank_(rank),
        events_(std::move(events)) {}

  MemberId id() const override { return id_; }
  const std::string& peer() const override { return peer_; }
  void SendEpoch(const EpochOffer& epoch) override { Post(&EngineServer::OnEpoch, epoch); }
  void SendPlan(const PlanPart& plan, absl::Span<const Assignment> assignments) override {
    // The data that an assignment borrows is valid only during this call.
    std::vector<EngineRank::Placement> placements;
    for (const Assignment& assignment : assignments)
      placements.push_back({assignment.id, ToEngineCall(assignment)});
    Post(&EngineServer::OnPlan, plan, std::move(placements));
  }
  void SendNotice(absl::string_view text) override { spdlog::info("{}: {}", peer_, std::string(text)); }
  void SendShutdown(absl::string_view) override { Post(&EngineServer::OnReleased); }
  void Close(const absl::Status& status) override { Post(&EngineServer::OnClosed, status); }
  // Nothing waits to be written: the engine takes calls at once, and requests bound their tokens.
  bool BreakOffIfStuck(absl::Time, absl::Duration) override { return false; }
  void Consumed() override {}

 private:
  template <typename Event, typename... Args>
  void Post(Event event, Args... args) {
    events_->Post([server = server_, rank = rank_, id = id_, event, ... args = std::move(args)]() mutable {
      if (const auto there = server.lock()) std::invoke(event, *there, rank, id, std::move(args)...);
    });
  }

  const MemberId id_;
  const std::string peer_;
  // Used on the link's thread.
  const std::weak_ptr<EngineServer> server_;
  const size_t rank_;
  const std::shared_ptr<EventQueue> events_;
};

}  // namespace bfio::router
