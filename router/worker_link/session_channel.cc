#include "router/worker_link/session_channel.h"

#include "absl/strings/str_cat.h"
#include "common/base/peer_text.h"
#include "common/base/spdlog.h"
#include "common/net/status.h"
#include "common/telemetry/log_fields.h"
#include "router/worker_link/from_wire.h"
#include "router/worker_link/held_request.h"
#include "router/worker_link/to_wire.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

void SessionChannel::OnMessage(const std::shared_ptr<WorkerSession>& session,
                               const v1::WorkerMessage& message) {
  if (worker_id_.empty()) session_ = session;
  std::optional<WorkerEvent> event = ToEvent(message);
  if (!event) return session->Consumed();
  options_.handler->OnWorkerEvent(shared_from_this(), *std::move(event));
}

void SessionChannel::OnGone() {
  if (!worker_id_.empty()) options_.handler->OnWorkerEvent(shared_from_this(), Gone{});
}

std::optional<WorkerEvent> SessionChannel::ToEvent(const v1::WorkerMessage& message) {
  if (worker_id_.empty()) {
    if (message.has_hello()) return OnHello(message.hello());
    // Has no effect for a refused worker that has not received the refusal yet.
    Close(absl::InvalidArgumentError("the first message must be a hello"));
    return std::nullopt;
  }
  switch (message.message_case()) {
    case v1::WorkerMessage::kAnnouncement:
      return ToAnnouncement(message.announcement());
    case v1::WorkerMessage::kEpochReady:
      return ToEpochReady(message.epoch_ready());
    case v1::WorkerMessage::kStepReport: {
      absl::StatusOr<StepReport> report = ToStepReport(message.step_report());
      if (!report.ok()) return ProtocolError{report.status()};
      return *std::move(report);
    }
    case v1::WorkerMessage::kLeave:
      return Leave{PeerText(message.leave().reason())};
    case v1::WorkerMessage::kHello:
    case v1::WorkerMessage::MESSAGE_NOT_SET:
      break;
  }
  return ProtocolError{absl::InvalidArgumentError("unexpected message")};
}

std::optional<WorkerEvent> SessionChannel::OnHello(const v1::Hello& hello) {
  if (options_.names && !NamesWorker(*options_.names, hello.worker_id())) {
    options_.refusals->Add("worker link: the certificate does not name the worker_id", peer_);
    Close(absl::PermissionDeniedError("the certificate does not name this worker_id"));
    return std::nullopt;
  }
  absl::StatusOr<WorkerHello> converted = ToHello(hello);
  if (!converted.ok()) {
    const ScopedLogFields fields{{"worker", hello.worker_id()}};
    spdlog::warn("worker at {} refused: {}", peer_, PeerText(converted.status().message()));
    Close(converted.status());
    return std::nullopt;
  }
  worker_id_ = converted->worker_id;
  return *std::move(converted);
}

Announcement SessionChannel::ToAnnouncement(const v1::Announcement& announcement) const {
  Announcement converted;
  converted.epoch = announcement.epoch();
  for (const v1::HeldRequest& held : announcement.requests()) {
    absl::StatusOr<HeldRequest> request = FromHeld(held, options_.limits);
    if (!request.ok()) {
      // Through the refusal log, because one worker may announce thousands.
      const ScopedLogFields fields{{"worker", worker_id_}};
      options_.refusals->Add("worker link: an announced request is invalid",
                             absl::StrCat("worker ", worker_id_, ": ", PeerText(request.status().message())));
      continue;
    }
    converted.requests.push_back(*std::move(request));
    // Size in memory: tokens take up to four times their size on the wire.
    converted.bytes.push_back(static_cast<int64_t>(held.SpaceUsedLong()));
  }
  return converted;
}

void SessionChannel::SendEpoch(const EpochOffer& epoch) {
  v1::RouterMessage message;
  ToWire(epoch, *message.mutable_epoch());
  Send(std::move(message));
}

void SessionChannel::SendPlan(const PlanPart& plan, absl::Span<const Assignment> assignments) {
  v1::RouterMessage message;
  ToWire(plan, assignments, *message.mutable_plan());
  Send(std::move(message));
}

void SessionChannel::SendNotice(absl::string_view text) {
  v1::RouterMessage message;
  message.mutable_notice()->set_text(std::string(text));
  Send(std::move(message));
}

void SessionChannel::SendShutdown(absl::string_view reason) {
  v1::RouterMessage message;
  message.mutable_shutdown()->set_reason(std::string(reason));
  Send(std::move(message));
}

void SessionChannel::Send(v1::RouterMessage message) {
  if (const auto session = session_.lock(); session != nullptr) session->Send(std::move(message));
}

void SessionChannel::Close(const absl::Status& status) {
  if (const auto session = session_.lock(); session != nullptr) session->Close(ToGrpcStatus(status));
}

bool SessionChannel::BreakOffIfStuck(absl::Time now, absl::Duration patience) {
  const auto session = session_.lock();
  return session != nullptr && session->BreakOffIfStuck(now, patience);
}

void SessionChannel::Consumed() {
  if (const auto session = session_.lock(); session != nullptr) session->Consumed();
}

}  // namespace bfio::router
