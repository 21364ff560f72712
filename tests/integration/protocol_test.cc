// What a worker's messages do to the router: those of an earlier router, and of a worker that does not read.
// What they do to a group is tested without connections, in tests/unit/router/group.
//
// The worker is a scripted client of WorkerLink; the router and every message are real.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/cluster.h"
#include "tests/testing/scripted_worker.h"

namespace bfio::testing {
namespace {

class Protocol : public ::testing::Test {
 protected:
  Protocol() : cluster_(RouterOnly()) {}
  void SetUp() override { ASSERT_TRUE(cluster_.ok()); }
  static ClusterOptions RouterOnly() {
    return {.worker_processes = 0,
            .router_flags = {"--workers=1", absl::StrCat("--step_timeout=", 2 * kSlowdown, "s")}};
  }

  Cluster cluster_;
};

// Requests that a worker announces from an earlier router are recovered or dropped. They are never confused
// with a request of this router that has the same number, and no number is assigned that the earlier router
// may have used for requests that other workers announce later.
TEST_F(Protocol, AnnouncedRequestsAreRecoveredOrDropped) {
  constexpr uint64_t kRecovered = uint64_t{1} << 61, kUnknown = 77;
  ScriptedWorker worker(cluster_.address(), "w");
  worker.hello().set_slots(3);
  worker.hello().set_router_instance(5);
  for (const uint64_t handle : {kRecovered, kUnknown}) worker.hello().add_active()->set_handle(handle);
  worker.SayHello();
  v1::RouterMessage message;
  ASSERT_TRUE(worker.ReadUntil(v1::RouterMessage::kEpoch, message));
  ASSERT_TRUE(message.epoch().announce());
  v1::GenerateRequest origin;
  origin.set_request_id("held");
  origin.set_resumable(true);
  origin.set_max_new_tokens(5);
  v1::WorkerMessage says;
  says.mutable_announcement()->set_epoch(message.epoch().epoch());
  v1::Assignment& held = *says.mutable_announcement()->add_requests()->mutable_assignment();
  held.set_handle(kRecovered);
  held.set_prompt_length(10);
  held.set_max_new_tokens(5);
  held.set_origin(origin.SerializeAsString());
  ASSERT_TRUE(worker.Send(says));
  v1::EpochReady& ready = *says.mutable_epoch_ready();
  ready.set_epoch(message.epoch().epoch());
  ready.set_communicator_offer("127.0.0.1:1");
  for (const uint64_t handle : {kRecovered, kUnknown}) {
    ready.add_active()->set_handle(handle);
    ready.mutable_active()->rbegin()->set_kv_tokens(10);
  }
  const RequestStream stream(cluster_.inference(), SyntheticRequest(10, 3));
  ASSERT_TRUE(cluster_.WaitFor("a request that waits", [](const v1::ClusterState& state) {
    return state.requests().accepted() == 1;
  }));
  ASSERT_TRUE(worker.Send(says));
  ASSERT_TRUE(worker.ReadUntil(v1::RouterMessage::kPlan, message));
  ASSERT_EQ(message.plan().cancellations_size(), 1);
  EXPECT_EQ(message.plan().cancellations(0), kUnknown);
  ASSERT_EQ(message.plan().assignments_size(), 1);
  EXPECT_EQ(cluster_.State().requests().recovered(), 1u);

  const RequestStream later(cluster_.inference(), SyntheticRequest(10, 3));
  ASSERT_TRUE(cluster_.WaitFor(
      "another that waits", [](const v1::ClusterState& state) { return state.requests().accepted() == 3; }));
  v1::WorkerMessage step = worker.Report(1, 1);
  v1::StepReport& report = *step.mutable_step_report();
  report.set_epoch(message.plan().epoch());
  report.set_load_tokens(22);
  for (const uint64_t handle : {kRecovered, message.plan().assignments(0).handle()}) {
    report.add_handles(handle);
    report.add_token_ids(1);
  }
  ASSERT_TRUE(worker.Send(step));
  do {
    ASSERT_TRUE(worker.ReadUntil(v1::RouterMessage::kPlan, message));
  } while (message.plan().assignments().empty());
  EXPECT_GE(message.plan().assignments(0).handle(), kRecovered + 1'000'000'000);
}

// Unknown fields are not counted; they would be kept, and sent to workers, as long as the request.
TEST_F(Protocol, UnknownFieldsAreNotKept) {
  ScriptedWorker worker(cluster_.address(), "w");
  ASSERT_TRUE(worker.Join());
  v1::GenerateRequest request = SyntheticRequest(10, 3);
  request.set_resumable(true);
  request.set_request_id("r");
  constexpr int kUnknown = 9999;
  for (google::protobuf::Message* message :
       std::initializer_list<google::protobuf::Message*>{&request, request.mutable_sampling()}) {
    message->GetReflection()->MutableUnknownFields(message)->AddLengthDelimited(kUnknown,
                                                                                std::string(100'000, 'x'));
  }
  const RequestStream stream(cluster_.inference(), request);
  v1::RouterMessage plan;
  ASSERT_TRUE(worker.ReadUntil(v1::RouterMessage::kPlan, plan));
  ASSERT_EQ(plan.plan().assignments_size(), 1);
  EXPECT_NE(plan.plan().assignments(0).origin(), "");
  EXPECT_LT(plan.ByteSizeLong(), 10'000u);
}

TEST_F(Protocol, AWorkerThatReportsAndNeverReadsIsCutOff) {
  grpc::ChannelArguments args;  // the windows stay small, however fast the link is
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
  ScriptedWorker deaf(cluster_.address(), "deaf", args);
  deaf.hello().set_kv_tokens(1 << 20);
  deaf.hello().set_max_sequence_tokens(1 << 20);
  ASSERT_TRUE(deaf.Join());
  // A prompt larger than any window: the write of its plan blocks.
  v1::GenerateRequest request = SyntheticRequest(10, 5);
  for (int i = 0; i < 120'000; ++i) request.mutable_token_ids()->add_ids(1 << 30);
  const RequestStream stream(cluster_.inference(), request);
  uint64_t step = 0;
  ASSERT_TRUE(cluster_.WaitFor("the deaf worker to be cut off", [&](const v1::ClusterState& state) {
    // Its reports show that the worker is alive, so no other deadline expires.
    deaf.Send(deaf.Report(++step, 0));
    absl::SleepFor(absl::Milliseconds(50));
    return state.requests().accepted() == 1 && state.workers_size() == 0;
  }));
}

}  // namespace
}  // namespace bfio::testing
