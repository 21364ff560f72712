#include "router/worker_link/worker_link_service.h"

#include <memory>
#include <utility>

#include "common/net/tls.h"
#include "router/worker_link/session_channel.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {

grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage>* WorkerLinkService::Attach(
    grpc::CallbackServerContext* context) {
  SessionChannel::Options options;
  options.handler = handler_;
  options.refusals = &refusals_;
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
  return WorkerSession::Create(context->peer(), std::move(callbacks), context).get();
}

}  // namespace bfio::router
