// The service bfio.v1.WorkerLink, to which bfio's workers attach. A call is authorized by its certificate
// (TLS) before any message of it is received; a call without a hello in time is closed. Threads: methods run
// on gRPC's threads and never block. The handler outlives the server with which the service is registered.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bfio/v1/worker.pb.h"
#include "common/auth/ticket_keys.h"
#include "common/telemetry/line_limiter.h"
#include "router/group/worker_events.h"
#include "router/requests/limits.h"
#include "router/worker_link/handles.h"
#include "router/worker_link/worker_port_service.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

// One bfio worker: a WorkerChannel over its session, and its messages as events. Wire types end here, in both
// directions. Ownership: shared by the session's callbacks and by code that holds the channel; it does not
// keep the session alive. Threads: OnMessage and OnGone are gRPC's, one at a time; WorkerChannel's methods
// come from any thread once an event has been posted.
class SessionChannel final : public WorkerChannel, public std::enable_shared_from_this<SessionChannel> {
 public:
  struct Options {
    // Both outlive the channel.
    WorkerHandler* handler = nullptr;
    RefusalLog* refusals = nullptr;
    // Sign what this worker gets; null: requests that a worker holds are believed to be its own.
    std::shared_ptr<const TicketKeys> keys;
    // Limits of held requests.
    RequestLimits limits;
    // Names in the worker's certificate; empty where worker_id is not bound to it.
    std::optional<std::vector<std::string>> names;
  };

  SessionChannel(MemberId id, std::string peer, Options options)
      : id_(id), peer_(std::move(peer)), options_(std::move(options)) {}

  // A message of `session`, which is always the same one.
  void OnMessage(const std::shared_ptr<WorkerSession>& session, const v1::WorkerMessage& message);
  void OnGone();

  MemberId id() const override { return id_; }
  const std::string& peer() const override { return peer_; }
  void SendEpoch(const EpochOffer& epoch) override;
  void SendPlan(const PlanPart& plan, absl::Span<const Assignment> assignments) override;
  void SendNotice(absl::string_view text) override;
  void SendShutdown(absl::string_view reason) override;
  void Close(const absl::Status& status) override;
  bool BreakOffIfStuck(absl::Time now, absl::Duration patience) override;
  void Consumed() override;

 private:
  // Converts a message; empty when it needs no event.
  std::optional<WorkerEvent> ToEvent(const v1::WorkerMessage& message);
  // Empty, with the session closed, when the worker may not attach.
  std::optional<WorkerEvent> OnHello(const v1::Hello& hello);
  Announcement ToAnnouncement(const v1::Announcement& announcement);
  absl::StatusOr<HeldRequest> ToHeldRequest(const v1::HeldRequest& held);
  void Send(v1::RouterMessage message);

  const MemberId id_;
  const std::string peer_;
  const Options options_;
  // Set before the first event is posted; not changed after that.
  std::weak_ptr<WorkerSession> session_;
  // From its hello; empty before a valid one.
  std::string worker_id_;
  int32_t slots_ = 0;
  Handles handles_;
};

class WorkerLinkService final : public WorkerPortService {
 public:
  // `bind_worker_id`: a worker's worker_id must be a name in its certificate. `limits`: for requests that
  // workers hold from an earlier router. `authenticator` is notified of callers; may be null. `messages`:
  // limits for the streams' first messages. `keys`: of SessionChannel::Options.
  WorkerLinkService(WorkerHandler* handler, bool bind_worker_id, const RequestLimits& limits,
                    Authenticator* authenticator = nullptr, FirstMessages::Limits messages = {},
                    std::shared_ptr<const TicketKeys> keys = nullptr);

 private:
  CallReactor* Attach(grpc::CallbackServerContext* context);

  Authenticator* const authenticator_;
  WorkerHandler* const handler_;
  const bool bind_worker_id_;
  const RequestLimits limits_;
  const std::shared_ptr<const TicketKeys> keys_;
  std::atomic<MemberId> next_member_{1};
  RefusalLog refusals_;
};

}  // namespace bfio::router
