// The service bfio.v1.EngineSteps at the workers' port: engines behind the router report their steps. Wire
// types end here. A message that contradicts itself ends its stream; the engine continues without the router.
// The caller is authorized like a worker, by its certificate; the names of its requests identify the rank.
// Threads: gRPC's; answers on the link's thread. `link` outlives the server with which the service is
// registered.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "bfio/v1/engine_steps.pb.h"
#include "router/engine_link/engine_link.h"
#include "router/worker_link/worker_port_service.h"

namespace bfio::router {

// INVALID_ARGUMENT for numbers that no engine has.
absl::StatusOr<EngineStep> FromWire(const v1::EngineStep& wire);

class EngineStepsService final : public WorkerPortService {
 public:
  EngineStepsService(EngineLink* link, Authenticator* authenticator, FirstMessages::Limits messages = {});

 private:
  CallReactor* Follow(grpc::CallbackServerContext* context);

  EngineLink* const link_;
  Authenticator* const authenticator_;
  std::atomic<uint64_t> next_stream_{1};
};

}  // namespace bfio::router
