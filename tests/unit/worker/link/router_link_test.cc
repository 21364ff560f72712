// The rank's stream against a small router of test code, over a real loopback connection.
#include "worker/link/router_link.h"

#include <chrono>
#include <future>
#include <thread>

#include "bfio/v1/worker.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/base/router_instance.h"
#include "common/net/channel.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/grpcpp.h"
#include "worker/barrier/star/star_endpoint.h"
#include "worker/engine/sim/sim_engine.h"
#include "worker/link/convert.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Stream = grpc::ServerReaderWriter<v1::RouterMessage, v1::WorkerMessage>;

// Serves each stream, counted from 1, by a function.
class FakeRouter final : public v1::WorkerLink::Service {
 public:
  using Script = std::function<grpc::Status(int number, Stream& stream)>;

  explicit FakeRouter(Script script) : script_(std::move(script)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    ConfigureServer(builder);
    server_ = builder.BuildAndStart();
  }
  ~FakeRouter() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Attach(grpc::ServerContext*, Stream* stream) override { return script_(++streams_, *stream); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  const Script script_;
  std::atomic<int> streams_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Runs one rank against `address` until it ends; returns how its link ended.
absl::Status RunRank(const std::string& address, const std::function<void(RouterLink&)>& meanwhile = {},
                     absl::Duration connect_timeout = absl::Seconds(60)) {
  RouterLinkOptions options = {.router = address,
                               .worker_id = "w",
                               .connect_timeout = connect_timeout,
                               .first_backoff = absl::Milliseconds(1),
                               .first_refusal = absl::Milliseconds(1)};
  const auto channel = NewChannel(address);
  RouterLink link(options, channel);
  SimOptions sim = {.limits = {4, 1000, 500}, .cost = {0, 0, 0}};
  StepLoop loop({"w", "0"}, *MakeSimEngine(sim), *StarEndpoint::Create({}), link);
  std::thread stepping([&] {
    EXPECT_TRUE(loop.Run().ok());
    link.Stop();
  });
  std::thread other([&] {
    if (meanwhile) meanwhile(link);
  });
  absl::Status status = link.Run(loop.inbox());
  stepping.join();
  other.join();
  return status;
}

v1::RouterMessage EpochOf(const v1::Hello& hello, uint64_t number) {
  v1::RouterMessage message;
  v1::Epoch* epoch = message.mutable_epoch();
  epoch->set_epoch(number);
  epoch->set_world_size(1);
  epoch->set_communicator_id(hello.communicator_offer());
  epoch->set_plan_mode(v1::PLAN_MODE_LOCKSTEP);
  epoch->set_form_timeout_ms(10'000);
  epoch->set_step_timeout_ms(10'000);
  return message;
}

// --- what a router does with a stream ---

v1::Hello ReadHello(Stream& stream) {
  v1::WorkerMessage in;
  EXPECT_TRUE(stream.Read(&in) && in.has_hello());
  return in.hello();
}
void ReadLeave(Stream& stream) {
  v1::WorkerMessage in;
  EXPECT_TRUE(stream.Read(&in) && in.has_leave());
  EXPECT_EQ(in.leave().reason(), "test");
}
grpc::Status ShutDown(Stream& stream) {
  v1::RouterMessage message;
  message.mutable_shutdown()->set_reason("done");
  stream.Write(message);
  v1::WorkerMessage in;
  EXPECT_FALSE(stream.Read(&in)) << "the worker half-closes";
  return grpc::Status::OK;
}
const grpc::Status kGone(grpc::StatusCode::UNAVAILABLE, "gone");

// Elected routers, and one without election, in the order of their terms.
TEST(RouterLinkTest, AWorkerThatFollowedALeaderRefusesEarlierOnes) {
  const std::vector<uint64_t> instances = {1'700'000'000'000'000'000,
                                           5,
                                           kElected + 7,
                                           kElected + 6,
                                           1'800'000'000'000'000'000,
                                           kElected + 7,
                                           kElected + 9};
  Mutex mutex;  // a stream may have another thread than the one before
  std::vector<int> followed;
  FakeRouter router([&](int number, Stream& stream) {
    v1::WorkerMessage in;
    v1::RouterMessage epoch = EpochOf(ReadHello(stream), static_cast<uint64_t>(number));
    epoch.mutable_epoch()->set_router_instance(instances[static_cast<size_t>(number - 1)]);
    stream.Write(epoch);
    // After an epoch that the worker refuses, the stream just ends.
    if (stream.Read(&in)) {
      EXPECT_TRUE(in.has_epoch_ready());
      MutexLock lock(&mutex);
      followed.push_back(number);
    }
    return static_cast<size_t>(number) < instances.size() ? kGone : ShutDown(stream);
  });
  EXPECT_TRUE(RunRank(router.address()).ok());
  MutexLock lock(&mutex);
  EXPECT_EQ(followed, (std::vector<int>{1, 2, 3, 6, 7}));
}

TEST(RouterLinkTest, AStreamThatIsLostOrRefusedIsOpenedAgainWithAHelloFirst) {
  for (const grpc::StatusCode code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::FAILED_PRECONDITION}) {
    FakeRouter router([&](int number, Stream& stream) {
      ReadHello(stream);
      if (number < 4) return grpc::Status(code, "wrong barrier");
      v1::RouterMessage notice;
      notice.mutable_notice()->set_text("for the log");
      stream.Write(notice);
      return ShutDown(stream);
    });
    EXPECT_TRUE(RunRank(router.address()).ok());
  }
}

TEST(RouterLinkTest, ARefusalIsFinalAndInTheRoutersWords) {
  FakeRouter router([](int, Stream& stream) {
    ReadHello(stream);
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "slots is 0");
  });
  const absl::Status status = RunRank(router.address());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("slots is 0"));
}

TEST(RouterLinkTest, NoRouterIsAnErrorAfterTheTimeout) {
  const absl::Status status = RunRank("127.0.0.1:1", {}, absl::Milliseconds(500));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no router at 127.0.0.1:1"));
}

TEST(RouterLinkTest, AWorkerThatIsToLeaveEndsWithItsStream) {
  const auto leave = [](RouterLink& link) { link.RequestLeave("test"); };
  FakeRouter polite([](int, Stream& stream) {
    ReadHello(stream);
    ReadLeave(stream);  // though it was requested first
    return ShutDown(stream);
  });
  EXPECT_TRUE(RunRank(polite.address(), leave).ok());
  FakeRouter lost([](int number, Stream& stream) {
    EXPECT_EQ(number, 1);
    ReadHello(stream);
    ReadLeave(stream);
    return kGone;
  });
  EXPECT_TRUE(RunRank(lost.address(), leave).ok());
  std::promise<void> refused;
  FakeRouter refuses([&](int number, Stream& stream) {
    ReadHello(stream);
    if (number == 1) refused.set_value();
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "wrong barrier");
  });
  EXPECT_TRUE(RunRank(refuses.address(), [&](RouterLink& link) {
                refused.get_future().wait();
                link.RequestLeave("test");
              }).ok());
}

// The channel goes with the link, whatever gRPC's threads still do.
TEST(RouterLinkTest, MayBeDestroyedWithItsStreamUnderWay) {
  FakeRouter router([](int number, Stream& stream) {
    v1::WorkerMessage in;
    if (number % 2 == 0 || !stream.Read(&in)) return kGone;
    v1::RouterMessage message;
    message.mutable_shutdown()->set_reason("done");
    stream.Write(message);
    while (stream.Read(&in)) {
    }
    return grpc::Status::OK;
  });
  for (int i = 0; i < 1000; ++i) {
    // Nothing listens at the other address.
    const std::string address = i % 3 == 0 ? "127.0.0.1:1" : router.address();
    (void)RunRank(
        address,
        [&](RouterLink& link) {
          if (i % 2 == 0) link.RequestLeave("test");
        },
        absl::Milliseconds(2));
  }
}

TEST(RouterLinkTest, ARouterThatDoesNotReadDoesNotDelayTheStop) {
  std::promise<void> greeted, over;
  FakeRouter router([&](int, Stream& stream) {
    ReadHello(stream);
    greeted.set_value();
    over.get_future().wait();
    return grpc::Status::OK;
  });
  const absl::Status status = RunRank(router.address(), [&](RouterLink& link) {
    greeted.get_future().wait();
    // More than the connection takes unread.
    StepReport report;
    report.output.tokens.resize(1'000'000);
    for (int i = 0; i < 20; ++i) link.Send(1, report);
    link.Stop();
  });
  EXPECT_TRUE(status.ok()) << status;
  over.set_value();
}

// --- the messages ---

// A message as text, from one that is sent or from text of any layout.
std::string Text(const OutMessage& sent) {
  v1::WorkerMessage out;
  ToProto(sent, out);
  return out.DebugString();
}
std::string Text(const std::string& layout) {
  v1::WorkerMessage out;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(layout, &out));
  return out.DebugString();
}

TEST(ConvertTest, AnAssignmentKeepsAllItsFields) {
  v1::RouterMessage message;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(plan {
      epoch: 3 apply_step: 9 cancellations: 5
      assignments { handle: 8 prompt_token_ids: [11, 12] prompt_length: 2 max_new_tokens: 77 stop_token_ids: 13
                    ignore_eos: true priority: -7 waited_steps: -3 first_index: 1
                    sampling { temperature: 0.5 top_k: 40 seed: 1152921504606846976 } } })",
                                                            &message));
  const Plan plan = std::get<Plan>(FromProto(message).value());
  EXPECT_EQ(plan.epoch, 3u);
  EXPECT_EQ(plan.apply_step, 9);
  EXPECT_THAT(plan.cancellations, ElementsAre(5));
  const SequenceRequest& request = plan.assignments.at(0);
  EXPECT_EQ(request.handle, 8u);
  EXPECT_THAT(request.prompt, ElementsAre(11, 12));
  EXPECT_EQ(request.prompt_length, 2);
  EXPECT_EQ(request.max_new_tokens, 77);
  EXPECT_THAT(request.stop_token_ids, ElementsAre(13));
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.priority, -7);
  EXPECT_EQ(request.waited_steps, -3);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.seed, 1ull << 60);
  EXPECT_EQ(request.first_index, 1);
  EXPECT_TRUE(plan.notes.empty()) << "none has a note";
  v1::Assignment* const noted = message.mutable_plan()->mutable_assignments(0);
  noted->set_origin("note");
  noted->add_earlier_token_ids(21);
  const auto notes = std::get<Plan>(FromProto(message).value()).notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].origin, "note");
  EXPECT_THAT(notes[0].earlier_tokens, ElementsAre(21));
  EXPECT_FALSE(FromProto(v1::RouterMessage()).has_value());
  message.mutable_epoch()->set_group("green");
  EXPECT_EQ(std::get<Epoch>(FromProto(message).value()).group_name, "green");
}

TEST(ConvertTest, WhatIsSentKeepsAllItsFields) {
  Announcement announcement = {.epoch = 4};
  HeldRequest& held = announcement.requests.emplace_back();
  held.request = {.handle = 8, .prompt = {11, 12, 13}, .prompt_length = 3, .first_index = 1};
  held.note = {"note", {21}};
  held.tokens = {31, 32};
  held.ended = FinishCause::kStop;
  EXPECT_EQ(Text(announcement), Text(R"(announcement {
      epoch: 4
      requests { assignment { handle: 8 prompt_token_ids: [11, 12, 13] prompt_length: 3 first_index: 1 origin: "note"
                              earlier_token_ids: 21 }
                 token_ids: [31, 32] ended: FINISH_REASON_STOP } })"));
  StepReport report = {.epoch = 2, .step = 5, .applied_plan = 4};
  report.output.tokens = {{1, 100}, {2, 200}};
  report.output.completion_hints = {0.5f, 0.25f};
  report.output.finished = {{2, FinishCause::kStop}};
  report.output.load_tokens = 30;
  report.output.prefill_tokens = 20;
  report.output.batch = {22, 200, 4};
  report.rejected = {{9, absl::StatusCode::kResourceExhausted, "full"}};
  report.gap_ns = 0;
  report.group = {1, 2, 3, 4, 5};
  report.barrier_error = "e";
  const std::string rest = R"(
      epoch: 2 step: 5 applied_plan: 4 handles: [1, 2] token_ids: [100, 200] completion_hints: [0.5, 0.25]
      finished { handle: 2 reason: FINISH_REASON_STOP } load_tokens: 30 prefill_tokens: 20
      rejected { handle: 9 code: 8 message: "full" } group_max_load_tokens: 1 group_sum_load_tokens: 2
      group_max_local_ns: 3 group_sum_local_ns: 4 barrier_error: "e"
      batch { tokens: 22 prefill_pairs: 200 decode_context: 4 } })";
  EXPECT_EQ(Text(report), Text("step_report { gap_ns: 0" + rest));
  report.gap_ns.reset();
  EXPECT_EQ(Text(report), Text("step_report {" + rest));
}

}  // namespace
}  // namespace bfio::worker
