// The admin API in front of a fake router state.
#include "router/admin/admin_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bfio/v1/admin.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/net/call_service.h"
#include "common/net/status.h"
#include "tests/testing/latch.h"
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
    MutexLock lock(&mutex_);
    changed_ = std::move(change);
    std::move(done)(absl::OkStatus());
    return absl::OkStatus();
  }
  absl::Duration SinceLastIteration() const override { return absl::ZeroDuration(); }
  bool Stopping() const override { return false; }

  absl::Status refuse;
  // The thread that answered last.
  std::atomic<std::thread::id> answered;
  // By the last call that has been answered.
  std::optional<PolicyChange> changed() const {
    MutexLock lock(&mutex_);
    return changed_;
  }

 private:
  mutable Mutex mutex_;
  std::optional<PolicyChange> changed_ ABSL_GUARDED_BY(mutex_);
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
};

TEST_F(AdminServiceTest, CallsReachTheHandlerWhoseErrorIsTheirStatus) {
  v1::ClusterState state;
  grpc::ClientContext contexts[4];
  ASSERT_TRUE(stub_->GetClusterState(&contexts[0], {}, &state).ok());
  EXPECT_EQ(state.version(), "1.2.3");
  handler_.refuse = absl::ResourceExhaustedError("the router is overloaded");
  EXPECT_EQ(FromGrpcStatus(stub_->GetClusterState(&contexts[1], {}, &state)), handler_.refuse);
  v1::DrainWorkerRequest drain;
  drain.set_worker_id("w9");
  v1::DrainWorkerResponse drained;
  EXPECT_EQ(FromGrpcStatus(stub_->DrainWorker(&contexts[2], drain, &drained)),
            absl::NotFoundError("no worker w9"));
  v1::UndrainWorkerRequest undrain;
  undrain.set_worker_id("w9");
  v1::UndrainWorkerResponse undrained;
  EXPECT_EQ(FromGrpcStatus(stub_->UndrainWorker(&contexts[3], undrain, &undrained)),
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
  EXPECT_NE(converted, handler.answered.load());
  steps.Close();
}

// One connection asks for more states than the service converts: another one gets its own.
TEST(AdminStates, AreSharedByConnections) {
  constexpr int kCalls = 100;
  FakeOperatorHandler handler;
  Authenticator authenticator("admin API", nullptr);
  StepBroadcast steps;
  testing::Latch converts{1};
  AdminService service(&handler, &authenticator, &steps, [&](v1::ClusterState&) { converts.wait(); });
  testing::LoopbackServer server(&service);
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto greedy = v1::Admin::NewStub(server.channel());
  const auto other = v1::Admin::NewStub(
      grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), own));
  struct Call {
    grpc::ClientContext context;
    v1::GetClusterStateRequest request;
    v1::ClusterState state;
    std::atomic<int> code = -1;
  };
  std::vector<Call> calls(kCalls + 1);
  const auto begin = [&](v1::Admin::Stub& stub, Call& call) {
    stub.async()->GetClusterState(&call.context, &call.request, &call.state,
                                  [&call](const grpc::Status& status) { call.code = status.error_code(); });
  };
  const auto count = [&](int code) {
    return std::count_if(calls.begin(), calls.end(), [code](const Call& call) { return call.code == code; });
  };
  for (int i = 0; i < kCalls; ++i) begin(*greedy, calls[i]);
  while (count(grpc::RESOURCE_EXHAUSTED) == 0) std::this_thread::yield();
  begin(*other, calls.back());
  converts.count_down();
  while (count(-1) > 0) std::this_thread::yield();
  EXPECT_EQ(calls.back().code, grpc::OK);
  EXPECT_GT(count(grpc::OK), 1);
  steps.Close();
}

TEST_F(AdminServiceTest, APolicyChangeKeepsUnsetFields) {
  v1::SetPolicyRequest request;
  const auto set = [&] {
    grpc::ClientContext context;
    v1::SetPolicyResponse response;
    return FromGrpcStatus(stub_->SetPolicy(&context, request, &response));
  };
  request.mutable_policy()->set_name("bf_io");
  EXPECT_TRUE(set().ok());
  PolicyChange changed = *handler_.changed();
  EXPECT_EQ(std::tie(changed.name, changed.horizon, changed.objective),
            std::tuple("bf_io", std::nullopt, ""));
  request.mutable_policy()->set_horizon(0);
  request.mutable_policy()->set_objective("paper");
  EXPECT_TRUE(set().ok());
  changed = *handler_.changed();
  EXPECT_EQ(std::tie(changed.horizon, changed.objective), std::tuple(0, "paper"));
  request.mutable_policy()->set_horizon(501);
  EXPECT_EQ(set(), absl::InvalidArgumentError("policy.horizon is 501; must be within 0..500"));
}

// --- watched steps ---

class StepBroadcastTest : public AdminServiceTest {
 protected:
  void Watch(uint32_t every) {
    v1::WatchStepsRequest request;
    request.set_every(every);
    reader_ = stub_->WatchSteps(&context_, request);
    while (every > 0 && steps_.watchers() == 0) std::this_thread::yield();
  }
  // Publishes a summary; a larger `ranks` makes the message larger.
  void Publish(int64_t step, int ranks = 0, core::GroupIndex group = 0) {
    const auto summary = std::make_shared<StepSummary>();
    summary->group = group;
    summary->step = step;
    summary->load_tokens.assign(static_cast<size_t>(ranks), int64_t{1} << 60);
    steps_.Publish(summary);
  }
  // The next summary.
  v1::StepSummary Read() {
    v1::StepSummary summary;
    EXPECT_TRUE(reader_->Read(&summary));
    return summary;
  }

  // A summary takes 9 bytes per rank.
  static constexpr int kRanksOfABigOne = testing::LoopbackServer::kBig / 9 + 1;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::StepSummary>> reader_;
};

TEST_F(StepBroadcastTest, AWatcherGetsEveryNthStepOfEachGroup) {
  Watch(/*every=*/3);
  for (int64_t step = 0; step < 7; ++step) {
    for (const core::GroupIndex group : {0, 1}) Publish(step, 0, group);
  }
  for (const uint64_t step : {0, 3, 6}) {
    for (const uint32_t group : {0, 1}) {
      const v1::StepSummary summary = Read();
      EXPECT_EQ(std::tuple(summary.step(), summary.group()), std::tuple(step, group));
    }
  }
}

TEST_F(StepBroadcastTest, ASlowWatcherLosesTheOldestStepsAndGetsTheirNumber) {
  Watch(1);
  Publish(0, kRanksOfABigOne);  // its write ends only when the watcher reads
  for (int64_t step = 1; step <= 300; ++step) Publish(step);
  constexpr uint64_t kKept = 256, kLost = 300 - kKept;
  for (uint64_t step = 0; step <= 300; step += step == 0 ? kLost + 1 : 1) {
    const v1::StepSummary summary = Read();
    EXPECT_EQ(std::tuple(summary.step(), summary.dropped()), std::tuple(step, step == kLost + 1 ? kLost : 0));
  }
}

TEST(StepBroadcastTokens, AStreamEndsSoonAfterItsTokenIsRemoved) {
  class Service final : public CallService {
   public:
    Service() {
      Add("/bfio.v1.Admin/WatchSteps", [this](grpc::CallbackServerContext*) {
        return steps.Subscribe(Peer(), &messages, [this] { return allowed.load(); });
      });
    }
    std::atomic<bool> allowed = true;
    FirstMessages messages;
    StepBroadcast steps;
  } service;
  testing::LoopbackServer server(&service);
  grpc::ClientContext context;
  const auto reader = v1::Admin::NewStub(server.channel())->WatchSteps(&context, {});
  // A parked group publishes nothing; this one goes on.
  std::atomic<bool> ended = false;
  std::thread steps([&] {
    for (int64_t step = 1; !ended; ++step) {
      service.steps.Publish(std::make_shared<const StepSummary>(StepSummary{.step = step}));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  v1::StepSummary summary;
  EXPECT_TRUE(reader->Read(&summary));
  service.allowed = false;
  while (reader->Read(&summary)) {
  }
  ended = true;
  steps.join();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace bfio::router
