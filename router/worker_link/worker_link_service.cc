#include "router/worker_link/worker_link_service.h"

#include <memory>
#include <utility>

#include "common/net/tls.h"
#include "router/worker_link/session_channel.h"

namespace bfio::router {

WorkerLinkService::WorkerLinkService(WorkerHandler* handler, bool bind_worker_id, const RequestLimits& limits,
                                     Authenticator* authenticator, FirstMessages::Limits messages,
                                     TokenizerReceiver tokenizers, std::shared_ptr<const TicketKeys> keys)
    : WorkerPortService(messages),
      authenticator_(authenticator),
      handler_(handler),
      bind_worker_id_(bind_worker_id),
      limits_(limits),
      keys_(std::move(keys)),
      tokenizers_(std::move(tokenizers)) {
  Add<v1::RouterMessage>("/bfio.v1.WorkerLink/Attach",
                         [this](grpc::CallbackServerContext* context) { return Attach(context); });
  Add<v1::TokenizerReceipt>("/bfio.v1.WorkerLink/OfferTokenizer",
                            [this](grpc::CallbackServerContext* context) { return OfferTokenizer(context); });
}

TokenizerUpload* WorkerLinkService::OfferTokenizer(grpc::CallbackServerContext* context) {
  if (authenticator_ != nullptr) authenticator_->Accepted(*context);
  absl::StatusOr<Peer> allowed = PeerOf(*context);
  auto place = std::make_unique<CapacityShare>(uploads_);
  if (!place->Take({allowed->group, ""}, 1))
    allowed = absl::ResourceExhaustedError("too many workers are sending their tokenizers; retry later");
  const std::shared_ptr<TokenizerUpload> call =
      TokenizerUpload::Create(context, &tokenizers_, &attached_, std::move(place));
  call->Begin(allowed, &bounds_.first_messages);
  return call.get();  // kept alive by itself until OnDone
}

CallReactor<v1::RouterMessage>* WorkerLinkService::Attach(grpc::CallbackServerContext* context) {
  if (authenticator_ != nullptr) authenticator_->Accepted(*context);
  SessionChannel::Options options;
  options.handler = handler_;
  options.refusals = &refusals_;
  options.attached = &attached_;
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

}  // namespace bfio::router
