#include "router/admin/admin_service.h"

#include <pthread.h>

#include <memory>
#include <vector>

namespace bfio::router {
namespace {

// Reports the result of an operation to its call.
template <typename Request, typename Response>
OperatorHandler::Done ReplyTo(const std::shared_ptr<UnaryCall<Request, Response>>& call) {
  return [call](const absl::Status& status) {
    if (status.ok()) return call->Reply(Response());
    call->Reply(status);
  };
}

}  // namespace

template <typename Request, typename Response, typename Act>
void AdminService::AddUnary(const char* name, Role role, Act act) {
  Add(name, [this, role, act](grpc::CallbackServerContext* context) {
    absl::StatusOr<std::string> who = authenticator_->Operator(*context, role);
    const absl::StatusOr<Peer> allowed = PeerOf(*context, who);
    return UnaryCall<Request, Response>::Begin(
        context, allowed, &messages_,
        [act, who = std::move(who)](const Call<Request, Response>& call, const Request& request) {
          act(*who, request, call);
        });
  });
}

AdminService::AdminService(OperatorHandler* handler, Authenticator* authenticator, StepBroadcast* steps,
                           StateExtras extras)
    : handler_(handler), authenticator_(authenticator), steps_(steps), extras_(std::move(extras)) {
  AddUnary<v1::GetClusterStateRequest, v1::ClusterState>(
      "/bfio.v1.Admin/GetClusterState", Role::kRead,
      [this](const std::string&, const v1::GetClusterStateRequest&, const auto& call) { GetState(call); });
  const auto of_worker = [this](auto act, const char* what) {
    return [this, act, what](const std::string& who, const auto& request, const auto& call) {
      const absl::Status asked =
          (handler_->*act)(request.worker_id(), Logged(who, what, request.worker_id(), ReplyTo(call)));
      if (!asked.ok()) call->Reply(asked);
    };
  };
  AddUnary<v1::DrainWorkerRequest, v1::DrainWorkerResponse>(
      "/bfio.v1.Admin/DrainWorker", Role::kOperate, of_worker(&OperatorHandler::DrainWorker, "drain worker"));
  AddUnary<v1::UndrainWorkerRequest, v1::UndrainWorkerResponse>(
      "/bfio.v1.Admin/UndrainWorker", Role::kOperate,
      of_worker(&OperatorHandler::UndrainWorker, "undrain worker"));
  AddUnary<v1::SetPolicyRequest, v1::SetPolicyResponse>(
      "/bfio.v1.Admin/SetPolicy", Role::kOperate,
      [this](const std::string& who, const v1::SetPolicyRequest& request, const auto& call) {
        SetPolicy(who, request, call);
      });
  Add("/bfio.v1.Admin/WatchSteps", [this](grpc::CallbackServerContext* context) {
    return steps_->Subscribe(PeerOf(*context, authenticator_->Operator(*context, Role::kRead)), &messages_,
                             [this, context] { return authenticator_->Knows(*context); });
  });
  thread_ = std::thread([this] { Convert(); });
}

AdminService::~AdminService() {
  conversions_.Close();
  thread_.join();
}

void AdminService::Convert() {
  pthread_setname_np(pthread_self(), "bfio-admin");
  std::vector<EventQueue::Event> events;
  do {
    conversions_.WaitAndTake(absl::InfiniteDuration(), events);
    for (EventQueue::Event& event : events) std::move(event)();
  } while (!events.empty() || !conversions_.closed());
}

void AdminService::GetState(const Call<v1::GetClusterStateRequest, v1::ClusterState>& call) {
  auto share = std::make_shared<CapacityShare>(states_);
  if (!share->Take(call->peer(), 1))
    return call->Reply(
        absl::ResourceExhaustedError("too many concurrent GetClusterState calls; retry later"));
  const absl::Status asked = handler_->State([this, call, share](absl::StatusOr<RouterState> state) {
    if (!state.ok()) return call->Reply(state.status());
    conversions_.Post([this, call, share, state = *std::move(state)] {
      v1::ClusterState response = ToProto(state);
      if (extras_) extras_(response);
      call->Reply(std::move(response));
    });
  });
  if (!asked.ok()) call->Reply(asked);
}

void AdminService::SetPolicy(const std::string& who, const v1::SetPolicyRequest& request,
                             const Call<v1::SetPolicyRequest, v1::SetPolicyResponse>& call) {
  absl::StatusOr<PolicyChange> change = ToPolicyChange(request.policy());
  if (!change.ok()) return call->Reply(change.status());
  const absl::Status asked = handler_->SetPolicy(
      *std::move(change), Logged(who, "set policy", request.policy().name(), ReplyTo(call)));
  if (!asked.ok()) call->Reply(asked);
}

}  // namespace bfio::router
