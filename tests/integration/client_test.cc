// What a client can do with a request, disconnect or run out of time, and what it can query. What the router
// refuses is in tests/unit/router/requests.
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::Test;

// One worker with one slot and steps slow enough to act between them.
ClusterOptions OneSlot(double step_s = 0.03) {
  return {.worker_processes = 1,
          .router_flags = {"--max_waiting=2"},
          .worker_flags = {absl::StrCat("--c=", step_s), "--tl=0", "--slots=1", "--kv_tokens=4000"}};
}

class Client : public Test {
 protected:
  explicit Client(const ClusterOptions& options = OneSlot()) : cluster_(options) {}
  void SetUp() override { ASSERT_TRUE(cluster_.ok()); }

  // A request that occupies the slot until it is cancelled.
  std::unique_ptr<RequestStream> OccupySlot() {
    auto running = std::make_unique<RequestStream>(cluster_.inference(), SyntheticRequest(10, 3000));
    EXPECT_TRUE(running->Read());
    return running;
  }

  Cluster cluster_;
};

// Steps so slow that few pass even while a busy machine delays the test.
class SlowClient : public Client {
 protected:
  SlowClient() : Client(OneSlot(0.4 * kSlowdown)) {}
};

TEST_F(SlowClient, AVanishedClientFreesItsSlotWithinTwoSteps) {
  const auto running = OccupySlot();
  const uint64_t before = cluster_.State().steps().steps();
  running->Cancel();
  // The router counts by the worker's reports, so the slot is free for it one report later.
  ASSERT_TRUE(cluster_.WaitFor("the free slot", [](const v1::ClusterState& s) { return Running(s) == 0; }));
  EXPECT_LE(cluster_.State().steps().steps() - before, 2u + 2u)
      << "two steps, the one under way and the report";
  EXPECT_EQ(running->End().status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(cluster_.State().requests().cancelled(), 1u);
}

TEST_F(Client, ADeadlineEndsARequestInThePoolAndOnAWorker) {
  EXPECT_EQ(Generate(cluster_.inference(), SyntheticRequest(10, 3000), kSlowdown * absl::Seconds(2))
                .status.error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  const auto running = OccupySlot();
  EXPECT_EQ(Generate(cluster_.inference(), SyntheticRequest(10, 10), kSlowdown * absl::Seconds(2))
                .status.error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  running->Cancel();
  ASSERT_TRUE(cluster_.WaitFor("all to be cancelled",
                               [](const v1::ClusterState& s) { return s.requests().cancelled() == 3; }));
  EXPECT_EQ(cluster_.State().waiting_requests(), 0u);
}

TEST_F(Client, GetLoadsReportsRunningAndCapacity) {
  const auto running = OccupySlot();
  v1::GetLoadsResponse loads;
  grpc::ClientContext context;
  ASSERT_TRUE(cluster_.inference().GetLoads(&context, v1::GetLoadsRequest(), &loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.dp_rank_count(), 1u);
  EXPECT_EQ(loads.loads(0).num_running_reqs(), 1u);
  EXPECT_EQ(loads.loads(0).max_total_num_tokens(), 4000u);
  EXPECT_GE(loads.loads(0).num_used_tokens(), 10u);
  v1::GetLoadsRequest wrong;
  wrong.set_dp_rank(7);
  grpc::ClientContext second;
  EXPECT_EQ(cluster_.inference().GetLoads(&second, wrong, &loads).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(Client, WatchStepsFollowsTheGroup) {
  grpc::ClientContext context;
  const auto steps = cluster_.admin().WatchSteps(&context, v1::WatchStepsRequest());
  std::thread client(
      [&] { EXPECT_TRUE(Generate(cluster_.inference(), SyntheticRequest(10, 60)).status.ok()); });
  v1::StepSummary summary;
  uint64_t last = 0;
  // The first steps may be over before the watch begins. The last step is always seen, because the group then
  // waits.
  do {
    ASSERT_TRUE(steps->Read(&summary));
    EXPECT_TRUE(last == 0 || summary.step() == last + 1) << summary.step() << " after " << last;
    EXPECT_EQ(summary.load_tokens_size(), 1);
    last = summary.step();
  } while (last < 60);
  EXPECT_EQ(summary.load_tokens(0), 69u);  // step 60 of the request: s + 59
  context.TryCancel();
  client.join();
}

// A separate thread writes log lines, so a line may appear after the event it describes.
std::string LogWith(const Process& process, const std::string& line) {
  Eventually([&] { return CountOf(process.Stderr(), line) > 0; });
  return process.Stderr();
}

TEST(Traces, AreLoggedByRouterAndWorkerUnlessInvalid) {
  ClusterOptions options = OneSlot(0.001);
  options.router_flags.push_back("--log_level=debug");
  options.worker_flags.push_back("--log_level=debug");
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  const auto call = [&](const std::string& id, const std::string& traceparent) {
    v1::GenerateRequest request = SyntheticRequest(10, 3);
    request.set_request_id(id);
    RequestStream stream(cluster.inference(), request, {.metadata = {{"traceparent", traceparent}}});
    EXPECT_TRUE(stream.End().status.ok());
  };
  call("traced", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  call("untraced", "00-4BF92F3577B34DA6A3CE929D0E0E4737-00f067aa0ba902b7-01");
  const std::string router = LogWith(cluster.router(), "request untraced: completed with 3 tokens");
  const std::string worker =
      LogWith(cluster.workers()[0], "(trace 4bf92f3577b34da6a3ce929d0e0e4736): 10 prompt tokens");
  EXPECT_NE(router.find("request traced (trace 4bf92f3577b34da6a3ce929d0e0e4736): placed on rank 0"),
            std::string::npos)
      << router;
  EXPECT_NE(router.find("request traced (trace 4bf92f3577b34da6a3ce929d0e0e4736): completed with 3 tokens"),
            std::string::npos);
  EXPECT_NE(router.find("request untraced: completed with 3 tokens"), std::string::npos);
  EXPECT_NE(worker.find(" (trace 4bf92f3577b34da6a3ce929d0e0e4736): 10 prompt tokens, token 0 is next"),
            std::string::npos)
      << worker;
  EXPECT_EQ(worker.find("4737"), std::string::npos);
}

TEST_F(Client, HealthChecksDistinguishServingFromUnknown) {
  const auto stub = grpc::health::v1::Health::NewStub(
      grpc::CreateChannel(cluster_.address(), grpc::InsecureChannelCredentials()));
  for (const std::string service : {"", "bfio.v1.Inference", "bfio.v1.WorkerLink"}) {
    grpc::health::v1::HealthCheckRequest request;
    grpc::health::v1::HealthCheckResponse response;
    request.set_service(service);
    grpc::ClientContext context;
    ASSERT_TRUE(stub->Check(&context, request, &response).ok()) << service;
    EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING) << service;
  }
  grpc::health::v1::HealthCheckRequest request;
  grpc::health::v1::HealthCheckResponse response;
  request.set_service("nobody");
  grpc::ClientContext context;
  EXPECT_EQ(stub->Check(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace bfio::testing
