// The admin API in front of a fake router state.
#include "router/admin/admin_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bfio/v1/admin.grpc.pb.h"
#include "common/net/status.h"
#include "router/admin/policy_change.h"
#include "tests/testing/loopback_server.h"

namespace bfio::router {
namespace {

class FakeOperatorHandler final : public OperatorHandler {
 public:
  absl::Status State(absl::AnyInvocable<void(absl::StatusOr<RouterState>) &&> done) override {
    if (!refuse.ok()) return refuse;
    answered = std::this_thread::get_id();
    RouterState state = {.version = "1.2.3"};
    std::move(done)(std::move(state));
    return absl::OkStatus();
  }
  absl::Status DrainWorker(std::string worker_id, Done done) override {
    std::move(done)(absl::NotFoundError(absl::StrCat("no worker ", worker_id)));
    return absl::OkStatus();
  }
  absl::Status UndrainWorker(std::string worker_id, Done done) override {
    std::move(done)(absl::FailedPreconditionError(absl::StrCat(worker_id, " is not drained")));
    return absl::OkStatus();
  }
  absl::Status SetPolicy(PolicyChange change, Done done) override {
    changed = std::move(change);
    std::move(done)(absl::OkStatus());
    return absl::OkStatus();
  }
  absl::Duration SinceLastIteration() const override { return absl::ZeroDuration(); }
  bool Stopping() const override { return false; }

  absl::Status refuse;
  // The thread that answered last.
  std::thread::id answered;
  std::optional<PolicyChange> changed;
};

class AdminServiceTest : public ::testing::Test {
 protected:
  ~AdminServiceTest() override { steps_.Close(); }

  FakeOperatorHandler handler_;
  Authenticator authenticator_{"admin API", nullptr};
  StepBroadcast steps_;
  AdminService service_{&handler_, &authenticator_, &steps_};
  testing::LoopbackServer server_{&service_};
  const std::unique_ptr<v1::Admin::Stub> stub_ = v1::Admin::NewStub(server_.channel());
  grpc::ClientContext context_;
  std::atomic<bool> seen_ = false;
};

TEST_F(AdminServiceTest, CallsReachTheOperatorHandler) {
  v1::ClusterState state;
  ASSERT_TRUE(stub_->GetClusterState(&context_, v1::GetClusterStateRequest(), &state).ok());
  EXPECT_EQ(state.version(), "1.2.3");
  handler_.refuse = absl::ResourceExhaustedError("the router is overloaded");
  grpc::ClientContext again;
  EXPECT_EQ(FromGrpcStatus(stub_->GetClusterState(&again, v1::GetClusterStateRequest(), &state)),
            handler_.refuse);
}

TEST_F(AdminServiceTest, TheHandlersErrorIsTheCallsStatus) {
  v1::DrainWorkerRequest request;
  request.set_worker_id("w9");
  v1::DrainWorkerResponse response;
  EXPECT_EQ(FromGrpcStatus(stub_->DrainWorker(&context_, request, &response)),
            absl::NotFoundError("no worker w9"));
  v1::UndrainWorkerRequest undrain;
  undrain.set_worker_id("w9");
  v1::UndrainWorkerResponse undrained;
  grpc::ClientContext again;
  EXPECT_EQ(FromGrpcStatus(stub_->UndrainWorker(&again, undrain, &undrained)),
            absl::FailedPreconditionError("w9 is not drained"));
}

// What is added to a state may read files, and the handler answers on the decision thread.
TEST(AdminStates, AreConvertedOnAnotherThreadThanTheHandlers) {
  FakeOperatorHandler handler;
  Authenticator authenticator("admin API", nullptr);
  StepBroadcast steps;
  std::thread::id converted;
  AdminService service(&handler, &authenticator, &steps, [&](v1::ClusterState& state) {
    converted = std::this_thread::get_id();
    state.set_epoch(7);
  });
  testing::LoopbackServer server(&service);
  grpc::ClientContext context;
  v1::ClusterState state;
  ASSERT_TRUE(v1::Admin::NewStub(server.channel())->GetClusterState(&context, {}, &state).ok());
  EXPECT_EQ(state.epoch(), 7u);
  EXPECT_NE(converted, handler.answered);
  steps.Close();
}

// A metrics scraper and an operator, distinguished by their tokens.
TEST(AdminRoles, RoleReadMayNotOperate) {
  const std::string path = ::testing::TempDir() + "/admin_roles_tokens";
  std::ofstream(path)
      << "scraper token:scraper-s3cr3t-scraper role=read\nroot token:root-s3cr3t-root-s3cr3t\n";
  auto tokens = TokenFile::Open(path);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  FakeOperatorHandler handler;
  Authenticator authenticator("admin API", *std::move(tokens));
  StepBroadcast steps;
  AdminService service(&handler, &authenticator, &steps);
  testing::LoopbackServer server(&service);
  const auto stub = v1::Admin::NewStub(server.channel());
  const auto with = [](const char* token, auto call) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", std::string("Bearer ") + token);
    return call(context).error_code();
  };
  const auto read = [&](grpc::ClientContext& context) {
    v1::ClusterState state;
    return stub->GetClusterState(&context, {}, &state);
  };
  const auto policy = [&](grpc::ClientContext& context) {
    v1::SetPolicyRequest request;
    request.mutable_policy()->set_name("bf_io");
    v1::SetPolicyResponse response;
    return stub->SetPolicy(&context, request, &response);
  };
  const auto drain = [&](grpc::ClientContext& context) {
    v1::DrainWorkerResponse response;
    return stub->DrainWorker(&context, {}, &response);
  };
  const auto undrain = [&](grpc::ClientContext& context) {
    v1::UndrainWorkerResponse response;
    return stub->UndrainWorker(&context, {}, &response);
  };
  constexpr char kScraper[] = "scraper-s3cr3t-scraper", kRoot[] = "root-s3cr3t-root-s3cr3t";
  EXPECT_EQ(with(kScraper, read), grpc::StatusCode::OK);
  EXPECT_EQ(with(kScraper, policy), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(with(kScraper, drain), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(with(kScraper, undrain), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_FALSE(handler.changed.has_value());
  EXPECT_EQ(authenticator.refused(), 3u);
  // An entry without a role may operate.
  EXPECT_EQ(with(kRoot, read), grpc::StatusCode::OK);
  EXPECT_EQ(with(kRoot, policy), grpc::StatusCode::OK);
  EXPECT_EQ(with(kRoot, drain), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(with(kRoot, undrain), grpc::StatusCode::FAILED_PRECONDITION);
  steps.Close();
}

TEST_F(AdminServiceTest, APolicyChangeKeepsUnsetFields) {
  v1::SetPolicyRequest request;
  request.mutable_policy()->set_name("bf_io");
  v1::SetPolicyResponse response;
  ASSERT_TRUE(stub_->SetPolicy(&context_, request, &response).ok());
  EXPECT_EQ(handler_.changed->name, "bf_io");
  EXPECT_EQ(handler_.changed->horizon, std::nullopt);
  EXPECT_EQ(handler_.changed->objective, "");
  request.mutable_policy()->set_horizon(501);
  grpc::ClientContext again;
  EXPECT_EQ(FromGrpcStatus(stub_->SetPolicy(&again, request, &response)),
            absl::InvalidArgumentError("policy.horizon is 501; must be within 0..500"));
}

TEST(ToPolicyChange, KeepsAllFields) {
  v1::PolicySetting setting;
  setting.set_name("br_h");
  setting.set_horizon(0);
  setting.set_objective("paper");
  const auto change = ToPolicyChange(setting);
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(change->name, "br_h");
  EXPECT_EQ(change->horizon, 0);
  EXPECT_EQ(change->objective, "paper");
}

TEST_F(AdminServiceTest, StepsReachWatchers) {
  v1::WatchStepsRequest request;
  const auto reader = stub_->WatchSteps(&context_, request);
  StepSummary summary = {.group = 3, .step = 1};
  // Steps published before the watcher is registered do not reach it, so they are published repeatedly.
  std::thread publisher([&] {
    while (!seen_.load()) {
      steps_.Publish(std::make_shared<const StepSummary>(summary));
      std::this_thread::yield();
    }
  });
  v1::StepSummary step;
  ASSERT_TRUE(reader->Read(&step));
  seen_ = true;
  publisher.join();
  EXPECT_EQ(step.group(), 3u);
  EXPECT_EQ(step.step(), 1u);
  context_.TryCancel();
  while (reader->Read(&step)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace bfio::router
