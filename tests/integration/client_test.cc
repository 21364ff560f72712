// What a client can do with a request: exceed limits, disconnect, abort, run out of time; and what it can
// query.
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/net/status.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::Test;

// One worker with one slot and steps slow enough to act between them.
ClusterOptions OneSlot(double step_s = 0.03) {
  ClusterOptions options;
  options.worker_processes = 1;
  options.router_flags = {"--max_waiting=2"};
  options.worker_flags = {absl::StrCat("--c=", step_s), "--tl=0", "--slots=1", "--kv_tokens=4000"};
  return options;
}

uint32_t Running(const v1::ClusterState& state) {
  uint32_t running = 0;
  for (const v1::WorkerState& worker : state.workers())
    running += worker.active_requests() + worker.inflight_requests();
  return running;
}

class Client : public Test {
 protected:
  explicit Client(const ClusterOptions& options = OneSlot()) : cluster_(options) {}
  void SetUp() override { ASSERT_TRUE(cluster_.ok()); }

  // A request that occupies the slot until it is cancelled.
  std::unique_ptr<RequestStream> StartLong(const std::string& id = "") {
    v1::GenerateRequest request = SyntheticRequest(10, 3000);
    request.set_request_id(id);
    return std::make_unique<RequestStream>(cluster_.inference(), request);
  }
  std::unique_ptr<RequestStream> OccupySlot(const std::string& id = "") {
    auto running = StartLong(id);
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

TEST_F(Client, TokensAreContiguousAndTheFinishHasUsageAndTiming) {
  const GenerateResult result = Generate(cluster_.inference(), SyntheticRequest(7, 5));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens.size(), 5u);
  EXPECT_TRUE(result.contiguous);
  EXPECT_EQ(result.finishes, 1);
  EXPECT_EQ(result.finish.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(result.finish.usage().prompt_tokens(), 7u);
  EXPECT_EQ(result.finish.usage().completion_tokens(), 5u);
  EXPECT_TRUE(result.finish.timing().has_time_to_first_token());
  EXPECT_EQ(result.finish.dp_rank(), 0u);
}

TEST_F(Client, AStopTokenEndsTheStreamAndIsDelivered) {
  v1::GenerateRequest request = SyntheticRequest(7, 8);
  request.mutable_sampling()->set_seed(5);
  const GenerateResult all = Generate(cluster_.inference(), request);
  ASSERT_EQ(all.tokens.size(), 8u);
  request.add_stop_token_ids(all.tokens[3]);
  const GenerateResult stopped = Generate(cluster_.inference(), request);
  EXPECT_EQ(stopped.tokens, std::vector<uint32_t>(all.tokens.begin(), all.tokens.begin() + 4));
  EXPECT_EQ(stopped.finish.reason(), v1::FINISH_REASON_STOP);
}

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

TEST_F(Client, AFullPoolRefusesWithRetryInfo) {
  const auto running = OccupySlot();
  const auto waiting1 = StartLong(), waiting2 = StartLong();
  ASSERT_TRUE(
      cluster_.WaitFor("a full pool", [](const v1::ClusterState& s) { return s.waiting_requests() == 2; }));
  const GenerateResult refused = Generate(cluster_.inference(), SyntheticRequest(10, 10));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(GetRetryDelay(refused.status).has_value());
  EXPECT_EQ(cluster_.State().requests().refused_pool_full(), 1u);
}

TEST_F(Client, InvalidFieldsAreRefusedByName) {
  const auto expect = [&](const v1::GenerateRequest& request, const std::string& field) {
    const grpc::Status status = Generate(cluster_.inference(), request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_NE(status.error_message().find(field), std::string::npos) << status.error_message();
  };
  expect(SyntheticRequest(200000, 10), "prompt_length is 200000");
  expect(SyntheticRequest(0, 10), "prompt_length is 0");
  expect(SyntheticRequest(10, 0), "max_new_tokens is 0");
  expect(SyntheticRequest(3000, 3000), "prompt + max_new_tokens is 6000");  // the worker's limit is 4,000
  v1::GenerateRequest request = SyntheticRequest(10, 10);
  request.clear_prompt();
  expect(request, "prompt is missing");
  request = SyntheticRequest(10, 10);
  request.mutable_sampling()->set_top_p(0);
  expect(request, "sampling.top_p is 0");
  request = SyntheticRequest(10, 10);
  request.set_priority(101);
  expect(request, "priority is 101");
}

TEST_F(Client, ADuplicateOfALiveRequestIdIsRefused) {
  const auto running = OccupySlot("mine");
  v1::GenerateRequest request = SyntheticRequest(10, 10);
  request.set_request_id("mine");
  EXPECT_EQ(Generate(cluster_.inference(), request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(Client, AbortFinishesTheStream) {
  const auto running = OccupySlot("victim");
  v1::AbortRequest request;
  v1::AbortResponse response;
  request.set_request_id("victim");
  grpc::ClientContext context;
  ASSERT_TRUE(cluster_.inference().Abort(&context, request, &response).ok());
  EXPECT_TRUE(response.found());
  EXPECT_TRUE(running->End().status.ok());
  EXPECT_EQ(running->result().finish.reason(), v1::FINISH_REASON_ABORT);
  grpc::ClientContext again;
  ASSERT_TRUE(cluster_.inference().Abort(&again, request, &response).ok());
  EXPECT_FALSE(response.found());
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

TEST_F(Client, AnUnknownPolicyIsRefusedByTheAdminApi) {
  v1::SetPolicyRequest request;
  request.mutable_policy()->set_name("best");
  v1::SetPolicyResponse response;
  grpc::ClientContext context;
  const grpc::Status status = cluster_.admin().SetPolicy(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("least_tokens"), std::string::npos) << "the known ones are named";
}

// A separate thread writes log lines, so a line may appear after the event it describes.
std::string LogWith(const Process& process, const std::string& line) {
  const absl::Time deadline = absl::Now() + kSlowdown * absl::Seconds(20);
  while (process.Stderr().find(line) == std::string::npos && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
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
