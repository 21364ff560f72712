// grpc.health.v1 at a port that may ask for tokens.
//
// Purpose: gRPC's own health service receives any message, whatever its size. This one answers authenticated
// callers (Authenticator::Knows; all callers where no tokens are required) as usual: Check and
// Watch of "" and of each service. From others it receives nothing: whatever they ask for, they get the
// status of the port's first service. Threads: any. Outlived by its dependencies; outlives the server.
#ifndef BFIO_COMMON_NET_HEALTH_SERVICE_H_
#define BFIO_COMMON_NET_HEALTH_SERVICE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "grpc/health/v1/health.pb.h"

namespace bfio {

class HealthService final : public CallService {
 public:
  // Watches at the same time; more get RESOURCE_EXHAUSTED.
  static constexpr size_t kMaxWatches = 64;

  // Of `services`, none of which serves yet. `authenticator` is the port's. REQUIRES: at least one.
  HealthService(const std::vector<std::string>& services, const Authenticator* authenticator);
  ~HealthService() override;

  // "" serves until Close.
  void SetServing(const std::string& service, bool serving);
  // Every status is NOT_SERVING from now on, whatever is set later.
  void Close();

 private:
  using Request = grpc::health::v1::HealthCheckRequest;
  using Response = grpc::health::v1::HealthCheckResponse;
  using Status = Response::ServingStatus;
  class Watch;

  grpc::ServerBidiReactor<Request, Response>* Check(grpc::CallbackServerContext* context);
  grpc::ServerBidiReactor<Request, Response>* BeginWatch(grpc::CallbackServerContext* context);
  // SERVICE_UNKNOWN for a service that is not there.
  Status StatusOf(const std::string& service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // It has said what it watches.
  void AddWatch(const std::shared_ptr<Watch>& watch);
  void TellWatches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string first_service_;
  const Authenticator* const authenticator_;
  FirstMessages messages_;
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Watch>> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio

#endif  // BFIO_COMMON_NET_HEALTH_SERVICE_H_
