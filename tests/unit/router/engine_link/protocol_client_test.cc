// The client of an engine, and a server that is slow.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engines/vllm.grpc.pb.h"
#include "gtest/gtest.h"
#include "router/engine_link/vllm/vllm_client.h"

namespace bfio::router {
namespace {

namespace pb = ::vllm::grpc::engine;

constexpr absl::Duration kTimeout = absl::Milliseconds(400);

// Takes half of the time for each answer.
class SlowEngine final : public pb::VllmEngine::Service {
 public:
  SlowEngine() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~SlowEngine() override { server_->Shutdown(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status GetServerInfo(grpc::ServerContext*, const pb::GetServerInfoRequest*,
                             pb::GetServerInfoResponse*) override {
    absl::SleepFor(kTimeout / 2);
    return grpc::Status::OK;
  }
  grpc::Status GetModelInfo(grpc::ServerContext*, const pb::GetModelInfoRequest*,
                            pb::GetModelInfoResponse*) override {
    absl::SleepFor(kTimeout / 2);
    return grpc::Status::OK;
  }
  grpc::Status GetLoads(grpc::ServerContext*, const pb::GetLoadsRequest*, pb::GetLoadsResponse*) override {
    absl::SleepFor(kTimeout / 2);
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Of three calls.
TEST(ProtocolClientTest, ADescriptionTakesNoLongerThanItsTimeout) {
  SlowEngine engine;
  const std::unique_ptr<EngineClient> client = vllm::NewVllmClient(engine.address());
  absl::Notification done;
  absl::StatusOr<EngineDescription> described = absl::UnknownError("");
  client->Describe(kTimeout, [&](absl::StatusOr<EngineDescription> description) {
    described = std::move(description);
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(described.status().code(), absl::StatusCode::kDeadlineExceeded) << described.status();
}

}  // namespace
}  // namespace bfio::router
