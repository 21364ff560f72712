// The service bfio.v1.Admin, on gRPC's callback API. Authenticates by the headers before any message is
// received, checks the role that a method needs, validates and converts. Each change is logged with the
// operator's name. Threads: methods run on gRPC's threads and never block; states are converted on a thread
// of this object, as `extras` may read files. The constructor's arguments outlive the server with which the
// service is registered.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bfio/v1/admin.pb.h"
#include "common/base/event_queue.h"
#include "common/base/peer_text.h"
#include "common/base/spdlog.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "router/admin/operator_handler.h"
#include "router/admin/step_broadcast.h"

namespace bfio::router {

// Wraps `done` so that the log line is written first. `act`: for example "drain worker"; `what`: the
// operator's input.
inline OperatorHandler::Done Logged(std::string who, const char* act, std::string what,
                                    OperatorHandler::Done done) {
  return [who = std::move(who), act, what = std::move(what),
          done = std::move(done)](absl::Status status) mutable {
    spdlog::info("operator {}: {} {}: {}", PeerText(who), act, PeerText(what),
                 status.ok() ? "done" : PeerText(status.message()));
    std::move(done)(std::move(status));
  };
}

// INVALID_ARGUMENT for a horizon out of range; the handler checks names.
inline absl::StatusOr<PolicyChange> ToPolicyChange(const v1::PolicySetting& setting) {
  PolicyChange change;
  change.name = setting.name();
  if (setting.has_horizon()) {
    if (setting.horizon() > 500) {
      return absl::InvalidArgumentError(
          absl::StrCat("policy.horizon is ", setting.horizon(), "; must be within 0..500"));
    }
    change.horizon = static_cast<int32_t>(setting.horizon());
  }
  change.objective = setting.objective();
  return change;
}

// Adds the state of ports and process, which the decision thread does not have. Any thread.
using StateExtras = std::function<void(v1::ClusterState&)>;

class AdminService final : public CallService {
 public:
  AdminService(OperatorHandler* handler, Authenticator* authenticator, StepBroadcast* steps,
               StateExtras extras = nullptr);
  // Answers the calls that have their states, then stops. REQUIRES: the server has ended.
  ~AdminService() override;

  FirstMessages* first_messages() { return &messages_; }

 private:
  // Adds a method with one reply that requires `role`. `act` handles the call and replies once, now or later;
  // it gets the operator's name.
  template <typename Request, typename Response, typename Act>
  void AddUnary(const char* name, Role role, Act act);
  template <typename Request, typename Response>
  using Call = std::shared_ptr<UnaryCall<Request, Response>>;

  // States that are being made at once, shared by operators and their connections.
  static constexpr int64_t kMostStates = 64;

  void Convert();
  void GetState(const Call<v1::GetClusterStateRequest, v1::ClusterState>& call);
  void SetPolicy(const std::string& who, const v1::SetPolicyRequest& request,
                 const Call<v1::SetPolicyRequest, v1::SetPolicyResponse>& call);

  OperatorHandler* const handler_;
  Authenticator* const authenticator_;
  StepBroadcast* const steps_;
  const StateExtras extras_;
  FirstMessages messages_;
  const std::shared_ptr<SharedCapacity> states_ = std::make_shared<SharedCapacity>(kMostStates);
  EventQueue conversions_;
  std::thread thread_;
};

}  // namespace bfio::router
