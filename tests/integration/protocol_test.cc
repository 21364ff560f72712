// A worker that violates the protocol is disconnected; the router and the other requests continue.
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
    ClusterOptions options;
    options.worker_processes = 0;
    options.router_flags = {"--workers=1", absl::StrCat("--step_timeout=", 2 * kSlowdown, "s")};
    return options;
  }
  // A request that runs in step 1 of the scripted worker; `plan` is the plan that placed it.
  std::unique_ptr<RequestStream> StartRequest(ScriptedWorker& worker, v1::RouterMessage& plan) {
    auto stream = std::make_unique<RequestStream>(cluster_.inference(), SyntheticRequest(10, 3));
    EXPECT_TRUE(worker.ReadUntil(v1::RouterMessage::kPlan, plan));
    EXPECT_EQ(plan.plan().assignments_size(), 1);
    return stream;
  }

  Cluster cluster_;
};

TEST_F(Protocol, RefusesAHelloOutOfRange) {
  ScriptedWorker worker(cluster_.address(), "w");
  worker.hello().set_slots(0);
  worker.SayHello();
  const grpc::Status status = worker.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("slots is 0"), std::string::npos);
}

TEST_F(Protocol, RefusesASecondWorkerOfTheSameName) {
  ScriptedWorker first(cluster_.address(), "w"), second(cluster_.address(), "w");
  ASSERT_TRUE(first.Join());
  second.SayHello();
  EXPECT_EQ(second.End().error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

// The first connection is half open: its worker has given it up, and the router has not noticed.
TEST_F(Protocol, TheSameWorkerTakesItsPlaceOverAtOnce) {
  ScriptedWorker first(cluster_.address(), "w"), second(cluster_.address(), "w"),
      other(cluster_.address(), "w");
  for (ScriptedWorker* worker : {&first, &second, &other}) worker->hello().set_worker_instance(7);
  first.hello().set_stream(1);
  second.hello().set_stream(2);
  ASSERT_TRUE(first.Join());
  ASSERT_TRUE(second.Join()) << "it has an epoch while the first is attached";
  EXPECT_EQ(first.End().error_code(), grpc::StatusCode::ABORTED);
  other.hello().set_worker_instance(8);
  other.hello().set_stream(3);
  other.SayHello();
  EXPECT_EQ(other.End().error_code(), grpc::StatusCode::ALREADY_EXISTS) << "another process of that name";
}

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

TEST_F(Protocol, CancelsUnknownRequestsOfANewWorker) {
  ScriptedWorker worker(cluster_.address(), "w");
  worker.hello().add_active()->set_handle(77);
  ASSERT_TRUE(worker.Join());
  ASSERT_EQ(worker.epoch().cancellations_size(), 1);
  EXPECT_EQ(worker.epoch().cancellations(0), 77u);
}

TEST_F(Protocol, CutsOffAWorkerWhoseStepsDoNotFollow) {
  ScriptedWorker worker(cluster_.address(), "w");
  ASSERT_TRUE(worker.Join());
  worker.Send(worker.Report(5, 0));
  EXPECT_EQ(worker.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Protocol, CutsOffAWorkerWhoseReportContradictsItself) {
  ScriptedWorker worker(cluster_.address(), "w");
  ASSERT_TRUE(worker.Join());
  v1::WorkerMessage report = worker.Report(1, 0);
  report.mutable_step_report()->add_handles(1);
  report.mutable_step_report()->add_token_ids(1);
  report.mutable_step_report()->add_token_ids(2);
  worker.Send(report);
  EXPECT_EQ(worker.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Protocol, CutsOffAWorkerThatIsNeverReady) {
  ScriptedWorker worker(cluster_.address(), "w");
  worker.SayHello();
  EXPECT_EQ(worker.End().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(Protocol, IgnoresTokensOfUnknownRequestsAndBeyondTheLimit) {
  ScriptedWorker worker(cluster_.address(), "w");
  ASSERT_TRUE(worker.Join());
  v1::RouterMessage plan;
  const auto stream = StartRequest(worker, plan);
  ASSERT_EQ(plan.plan().assignments_size(), 1);
  const uint64_t handle = plan.plan().assignments(0).handle();
  v1::WorkerMessage message = worker.Report(1, 1);
  v1::StepReport& report = *message.mutable_step_report();
  report.set_load_tokens(10);
  report.add_handles(424242);  // unknown
  report.add_token_counts(1);
  report.add_token_ids(9);
  report.add_handles(handle);  // five tokens where three were allowed
  report.add_token_counts(5);
  for (uint32_t token = 1; token <= 5; ++token) report.add_token_ids(token);
  v1::Finished& finished = *report.add_finished();
  finished.set_handle(handle);
  finished.set_reason(v1::FINISH_REASON_LENGTH);
  report.set_group_idle(true);
  ASSERT_TRUE(worker.Send(message));
  EXPECT_TRUE(stream->End().status.ok());
  EXPECT_EQ(stream->result().tokens, (std::vector<uint32_t>{1, 2, 3}));
}

TEST_F(Protocol, ASilentWorkerIsFencedAndItsRequestGoesOnElsewhere) {
  auto silent = std::make_unique<ScriptedWorker>(cluster_.address(), "silent");
  ASSERT_TRUE(silent->Join());
  v1::RouterMessage plan;
  const auto stream = StartRequest(*silent, plan);
  // The scripted worker never reports. A real worker joins: the scripted one is not ready for the new epoch
  // and is removed.
  cluster_.StartWorker();
  EXPECT_TRUE(stream->End().status.ok());
  EXPECT_EQ(stream->result().tokens.size(), 3u);
  EXPECT_EQ(silent->End().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(cluster_.State().requests().replayed(), 1u);
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

TEST_F(Protocol, AWorkerThatCannotReachTheOthersDoesNotStopThem) {
  cluster_.StartWorker();
  ASSERT_TRUE(Generate(cluster_.inference(), SyntheticRequest(10, 3)).status.ok());
  ScriptedWorker newcomer(cluster_.address(), "newcomer");
  newcomer.SayHello();
  v1::RouterMessage message;
  while (newcomer.ReadUntil(v1::RouterMessage::kEpoch, message)) {
    v1::WorkerMessage failed;
    failed.mutable_epoch_ready()->set_epoch(message.epoch().epoch());
    failed.mutable_epoch_ready()->set_error("cannot reach rank 0");
    newcomer.Send(failed);
  }
  EXPECT_EQ(newcomer.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Generate(cluster_.inference(), SyntheticRequest(10, 3)).status.ok())
      << "the group serves again";
  ScriptedWorker again(cluster_.address(), "newcomer");
  again.SayHello();
  EXPECT_EQ(again.End().error_code(), grpc::StatusCode::UNAVAILABLE) << "refused for a while";
}

TEST_F(Protocol, ARefusedAssignmentIsPlacedAgain) {
  ScriptedWorker worker(cluster_.address(), "w");
  ASSERT_TRUE(worker.Join());
  v1::RouterMessage plan;
  const auto stream = StartRequest(worker, plan);
  ASSERT_EQ(plan.plan().assignments_size(), 1);
  const uint64_t handle = plan.plan().assignments(0).handle();
  v1::WorkerMessage message = worker.Report(1, 1);
  v1::Rejection& rejection = *message.mutable_step_report()->add_rejected();
  rejection.set_handle(handle);
  rejection.set_code(static_cast<uint32_t>(grpc::StatusCode::RESOURCE_EXHAUSTED));
  message.mutable_step_report()->set_group_idle(true);
  ASSERT_TRUE(worker.Send(message));
  ASSERT_TRUE(worker.ReadUntil(v1::RouterMessage::kPlan, plan));
  ASSERT_EQ(plan.plan().assignments_size(), 1);
  EXPECT_EQ(plan.plan().assignments(0).handle(), handle);
  EXPECT_EQ(plan.plan().apply_step(), 2u);
}

}  // namespace
}  // namespace bfio::testing
