// grpc.health.v1 on a port that may require tokens. GRPC's own health service receives messages of any size.
// This one answers authenticated callers (Authenticator::Knows; all callers if no tokens are required) as
// usual: Check and Watch of "" and of each service. From other callers it receives no message: they get the
// status of the port's first service. Threads: any. Lifetime: destroyed after the server, before its
// dependencies.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "grpc/health/v1/health.pb.h"

namespace bfio {

class HealthService final : public CallService {
 public:
  // Upper bound of concurrent Watch calls of authenticated callers; more, and more than a peer's share, get
  // RESOURCE_EXHAUSTED. Calls of other callers have a separate bound, beyond which the oldest of their
  // address ends, or, if it has none, the oldest of all: they use no slot of authenticated callers, and none
  // can keep a slot for long.
  static constexpr size_t kMaxWatches = 64, kMaxUnknownWatches = 16;

  // For `services`, all NOT_SERVING at first. `authenticator` is the port's. REQUIRES: at least one service.
  HealthService(const std::vector<std::string>& services, const Authenticator* authenticator);
  ~HealthService() override;

  // The status of "" is SERVING until Close, unless it is set.
  void SetServing(const std::string& service, bool serving);
  FirstMessages* first_messages() { return &messages_; }
  // Sets every status to NOT_SERVING for good.
  void Close();

 private:
  using Request = grpc::health::v1::HealthCheckRequest;
  using Response = grpc::health::v1::HealthCheckResponse;
  using Status = Response::ServingStatus;
  class Watch;

  CallReactor* Check(grpc::CallbackServerContext* context);
  CallReactor* BeginWatch(grpc::CallbackServerContext* context);
  // SERVICE_UNKNOWN for an unknown service.
  Status StatusOf(const std::string& service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using Watches = std::vector<std::shared_ptr<Watch>>;
  // Called when the watch has named its service.
  void AddWatch(const std::shared_ptr<Watch>& watch);
  void AddUnknownWatch(const std::shared_ptr<Watch>& watch);
  void Join(Watches& watches, const std::shared_ptr<Watch>& watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyWatchers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string first_service_;
  const Authenticator* const authenticator_;
  FirstMessages messages_;
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_);
  // Oldest first.
  Watches watches_ ABSL_GUARDED_BY(mutex_), unknown_watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio
