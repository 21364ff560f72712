#include "router/worker_link/worker_link_service.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/peer_text.h"
#include "common/base/spdlog.h"
#include "common/net/status.h"
#include "common/net/tls.h"
#include "common/telemetry/log_fields.h"
#include "router/worker_link/held_request.h"
#include "router/worker_link/wire.h"

namespace bfio::router {

WorkerLinkService::WorkerLinkService(WorkerHandler* handler, bool bind_worker_id, const RequestLimits& limits,
                                     Authenticator* authenticator, FirstMessages::Limits messages,
                                     std::shared_ptr<const TicketKeys> keys)
    : WorkerPortService(messages),
      authenticator_(authenticator),
      handler_(handler),
      bind_worker_id_(bind_worker_id),
      limits_(limits),
      keys_(std::move(keys)) {
  Add("/bfio.v1.WorkerLink/Attach", [this](grpc::CallbackServerContext* context) { return Attach(context); });
}

CallReactor* WorkerLinkService::Attach(grpc::CallbackServerContext* context) {
  if (authenticator_ != nullptr) authenticator_->Accepted(*context);
  SessionChannel::Options options;
  options.handler = handler_;
  options.refusals = &refusals_;
  options.keys = keys_;
  options.limits = limits_;
  if (bind_worker_id_) options.names = PeerNames(*context->auth_context());
  const auto channel =
      std::make_shared<SessionChannel>(next_member_.fetch_add(1), context->peer(), std::move(options));
  WorkerSession::Callbacks callbacks;
  callbacks.on_message = [channel](const std::shared_ptr<WorkerSession>& session,
                                   const v1::WorkerMessage& message) {
    channel->OnMessage(session, message);
  };
  callbacks.on_gone = [channel](const std::shared_ptr<WorkerSession>&) { channel->OnGone(); };
  return WorkerSession::Create(context->peer(), std::move(callbacks), &bounds_, context).get();
}

namespace {

void ToIds(const Handles& handles, std::vector<HeldActive>& active) {
  for (HeldActive& one : active) one.id = handles.IdOf(one.id);
}

void ToIds(const Handles& handles, StepReport& report) {
  const auto all = [&](auto& entries) {
    for (auto& entry : entries) entry.id = handles.IdOf(entry.id);
  };
  all(report.tokens);
  all(report.finished);
  all(report.rejected);
  all(report.hints);
  if (report.prefill) all(report.prefill->prompts);
  for (core::RequestId& id : report.preempted) id = handles.IdOf(id);
}

void ToHandles(const Handles& handles, google::protobuf::RepeatedField<uint64_t>& ids) {
  for (uint64_t& id : ids) id = handles.HandleOf(id);
}

}  // namespace

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
    case v1::WorkerMessage::kAnnouncement: return ToAnnouncement(message.announcement());
    case v1::WorkerMessage::kEpochReady: {
      absl::StatusOr<EpochReady> ready = ToEpochReady(message.epoch_ready(), slots_);
      if (!ready.ok()) return ProtocolError{ready.status()};
      ToIds(handles_, ready->active);
      return *std::move(ready);
    }
    case v1::WorkerMessage::kStepReport: {
      absl::StatusOr<StepReport> report = ToStepReport(message.step_report(), slots_);
      if (!report.ok()) return ProtocolError{report.status()};
      ToIds(handles_, *report);
      return *std::move(report);
    }
    case v1::WorkerMessage::kLeave: return Leave{PeerText(message.leave().reason())};
    case v1::WorkerMessage::kHello:
    case v1::WorkerMessage::MESSAGE_NOT_SET: break;
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
  slots_ = converted->slots;
  ToIds(handles_, converted->active);
  return *std::move(converted);
}

absl::StatusOr<HeldRequest> SessionChannel::ToHeldRequest(const v1::HeldRequest& held) {
  if (options_.keys != nullptr &&
      !OriginIsProven(*options_.keys, worker_id_, absl::Now(), held.assignment())) {
    return absl::InvalidArgumentError("no router has given it to this worker");
  }
  absl::StatusOr<HeldRequest> request = FromHeld(held, options_.limits);
  if (!request.ok()) return request;
  const auto id = handles_.Announced(request->id, [this] { return options_.handler->NextId(); });
  if (!id) return absl::ResourceExhaustedError("the worker has announced too many");
  request->id = *id;
  return request;
}

Announcement SessionChannel::ToAnnouncement(const v1::Announcement& announcement) {
  Announcement converted;
  converted.epoch = announcement.epoch();
  for (const v1::HeldRequest& held : announcement.requests()) {
    absl::StatusOr<HeldRequest> request = ToHeldRequest(held);
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
  ToHandles(handles_, *message.mutable_epoch()->mutable_cancellations());
  Send(std::move(message));
}

void SessionChannel::SendPlan(const PlanPart& plan, absl::Span<const Assignment> assignments) {
  v1::RouterMessage message;
  ToWire(plan, assignments, *message.mutable_plan());
  ToHandles(handles_, *message.mutable_plan()->mutable_cancellations());
  for (v1::Assignment& assignment : *message.mutable_plan()->mutable_assignments()) {
    assignment.set_handle(handles_.HandleOf(assignment.handle()));
    if (options_.keys != nullptr) SignOrigin(*options_.keys, worker_id_, absl::Now(), assignment);
  }
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
