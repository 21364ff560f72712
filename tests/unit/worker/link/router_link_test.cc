// The rank's stream against a small router of test code, over a real loopback connection.
#include "worker/link/router_link.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "bfio/v1/worker.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/base/router_instance.h"
#include "common/net/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "tests/testing/held_port.h"
#include "tests/testing/wall_clock/wall_clock.h"
#include "worker/barrier/local/local_barrier.h"
#include "worker/engine/sim/sim_engine.h"
#include "worker/link/convert.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;
using Stream = grpc::ServerReaderWriter<v1::RouterMessage, v1::WorkerMessage>;

// Serves each stream, counted from 1, by a function.
class FakeRouter final : public v1::WorkerLink::Service {
 public:
  using Script = std::function<grpc::Status(int number, Stream& stream)>;

  explicit FakeRouter(Script script, const std::string& address = "127.0.0.1:0")
      : script_(std::move(script)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
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
  StepLoop loop({"w", "0"}, *MakeSimEngine(sim),
                std::make_unique<LocalBarrierEndpoint>(std::make_shared<LocalHub>()), link);
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

v1::RouterMessage ShutdownMessage() {
  v1::RouterMessage message;
  message.mutable_shutdown()->set_reason("done");
  return message;
}

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
    EXPECT_TRUE(stream.Read(&in) && in.has_hello());
    v1::RouterMessage epoch = EpochOf(in.hello(), static_cast<uint64_t>(number));
    epoch.mutable_epoch()->set_router_instance(instances[static_cast<size_t>(number - 1)]);
    stream.Write(epoch);
    // After an epoch that the worker refuses, the stream just ends.
    if (stream.Read(&in)) {
      EXPECT_TRUE(in.has_epoch_ready());
      MutexLock lock(&mutex);
      followed.push_back(number);
    }
    if (static_cast<size_t>(number) < instances.size())
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
    stream.Write(ShutdownMessage());
    while (stream.Read(&in)) {
    }
    return grpc::Status::OK;
  });
  EXPECT_TRUE(RunRank(router.address()).ok());
  MutexLock lock(&mutex);
  EXPECT_EQ(followed, (std::vector<int>{1, 2, 3, 6, 7}));
}

TEST(RouterLinkTest, ARequestGoesRoundTheWholeProtocol) {
  std::vector<uint32_t> tokens;
  FakeRouter router([&](int, Stream& stream) {
    v1::WorkerMessage in;
    EXPECT_TRUE(stream.Read(&in) && in.has_hello());
    stream.Write(EpochOf(in.hello(), 1));
    EXPECT_TRUE(stream.Read(&in) && in.has_epoch_ready());
    EXPECT_EQ(in.epoch_ready().error(), "");
    for (uint64_t step = 1; step <= 3; ++step) {
      v1::RouterMessage out;
      out.mutable_plan()->set_epoch(1);
      out.mutable_plan()->set_apply_step(step);
      if (step == 1) {
        v1::Assignment* assignment = out.mutable_plan()->add_assignments();
        assignment->set_handle(7);
        assignment->set_prompt_length(10);
        assignment->set_max_new_tokens(3);
      }
      stream.Write(out);
      EXPECT_TRUE(stream.Read(&in) && in.has_step_report());
      EXPECT_EQ(in.step_report().step(), step);
      EXPECT_EQ(in.step_report().load_tokens(), 9 + step);
      EXPECT_EQ(in.step_report().group_idle(), step == 3);
      for (const uint32_t id : in.step_report().token_ids()) tokens.push_back(id);
    }
    EXPECT_EQ(in.step_report().finished(0).handle(), 7u);
    EXPECT_EQ(in.step_report().finished(0).reason(), v1::FINISH_REASON_LENGTH);
    stream.Write(ShutdownMessage());
    EXPECT_FALSE(stream.Read(&in)) << "the worker half-closes";
    return grpc::Status::OK;
  });
  EXPECT_TRUE(RunRank(router.address()).ok());
  EXPECT_EQ(tokens.size(), 3u);
}

TEST(RouterLinkTest, ALostStreamIsOpenedAgainWithAHelloFirst) {
  FakeRouter router([](int number, Stream& stream) {
    v1::WorkerMessage in;
    EXPECT_TRUE(stream.Read(&in) && in.has_hello());
    if (number < 4) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
    stream.Write(ShutdownMessage());
    stream.Read(&in);
    return grpc::Status::OK;
  });
  EXPECT_TRUE(RunRank(router.address()).ok());
}

TEST(RouterLinkTest, ARefusalIsFinalAndInTheRoutersWords) {
  FakeRouter router([](int, Stream& stream) {
    v1::WorkerMessage in;
    stream.Read(&in);
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "slots is 0");
  });
  const absl::Status status = RunRank(router.address());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("slots is 0"));
}

TEST(RouterLinkTest, ARefusedWorkerRetries) {
  FakeRouter router([](int number, Stream& stream) {
    v1::WorkerMessage in;
    EXPECT_TRUE(stream.Read(&in) && in.has_hello());
    if (number < 4) return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "wrong barrier");
    v1::RouterMessage notice;
    notice.mutable_notice()->set_text("for the log");
    stream.Write(notice);
    stream.Write(ShutdownMessage());
    stream.Read(&in);
    return grpc::Status::OK;
  });
  EXPECT_TRUE(RunRank(router.address()).ok());
}

TEST(RouterLinkTest, AWorkerThatIsToLeaveDoesNotRetry) {
  FakeRouter router([](int, Stream& stream) {
    v1::WorkerMessage in;
    stream.Read(&in);
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "wrong barrier");
  });
  EXPECT_TRUE(RunRank(router.address(), [](RouterLink& link) {
                absl::SleepFor(absl::Milliseconds(20));
                link.RequestLeave("test");
              }).ok());
}

TEST(RefusalDelay, GrowsToAMinuteAndResets) {
  RefusalDelay delay(1);
  absl::Duration bound = RefusalDelay::kFirst;
  for (int i = 0; i < 12; ++i) {
    const absl::Duration pause = delay.Next();
    EXPECT_GE(pause, bound / 2);
    EXPECT_LE(pause, bound);
    bound = std::min(2 * bound, RefusalDelay::kLast);
  }
  EXPECT_EQ(bound, absl::Minutes(1));
  delay.Reset();
  EXPECT_LE(delay.Next(), RefusalDelay::kFirst);
}

TEST(RouterLinkTest, NoRouterIsAnErrorAfterTheTimeout) {
  const absl::Status status = RunRank("127.0.0.1:1", {}, absl::Milliseconds(500));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no router at 127.0.0.1:1"));
}

TEST(RouterLinkTest, LeaveFollowsHelloEvenIfItIsRequestedFirst) {
  FakeRouter router([](int, Stream& stream) {
    v1::WorkerMessage in;
    EXPECT_TRUE(stream.Read(&in) && in.has_hello());
    EXPECT_TRUE(stream.Read(&in) && in.has_leave());
    EXPECT_EQ(in.leave().reason(), "test");
    stream.Write(ShutdownMessage());
    stream.Read(&in);
    return grpc::Status::OK;
  });
  EXPECT_TRUE(RunRank(router.address(), [](RouterLink& link) { link.RequestLeave("test"); }).ok());
}

TEST(RouterLinkTest, AStreamLostWhileLeavingEndsTheRank) {
  FakeRouter router([](int number, Stream& stream) {
    EXPECT_EQ(number, 1);
    v1::WorkerMessage in;
    EXPECT_TRUE(stream.Read(&in) && in.has_hello());
    EXPECT_TRUE(stream.Read(&in) && in.has_leave());
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  });
  EXPECT_TRUE(RunRank(router.address(), [](RouterLink& link) { link.RequestLeave("test"); }).ok());
}

TEST(RouterLinkTest, ARouterThatDoesNotReadDoesNotDelayTheStop) {
  std::promise<void> greeted, over;
  FakeRouter router([&](int, Stream& stream) {
    v1::WorkerMessage in;
    EXPECT_TRUE(stream.Read(&in) && in.has_hello());
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

// A port where every connection is closed at once. Threads: its own accepts; seen() from any.
class ClosingListener {
 public:
  explicit ClosingListener(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
    thread_ = std::thread([this] {
      for (int peer; (peer = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; ++seen_) close(peer);
    });
  }
  ~ClosingListener() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  int seen() const { return seen_; }

 private:
  const int fd_;
  std::atomic<int> seen_ = 0;
  std::thread thread_;
};

// A rank that loses its router and whose machine's clock is set back while it looks for another. It must go
// on looking; then `then` happens to it.
void LoseTheRouterAndSetTheClockBack(testing::WallClock& clock, const std::string& address,
                                     const std::function<void(RouterLink&)>& then) {
  std::promise<void> greeted;
  auto router = std::make_unique<FakeRouter>(
      [&](int, Stream& stream) {
        v1::WorkerMessage in;
        EXPECT_TRUE(stream.Read(&in) && in.has_hello());
        greeted.set_value();
        EXPECT_FALSE(stream.Read(&in));
        return grpc::Status::OK;
      },
      address);
  const absl::Status status = RunRank(address, [&](RouterLink& link) {
    greeted.get_future().wait();
    router.reset();
    {
      const ClosingListener listener(address);
      const auto seen = [&](int count) {
        const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
        while (listener.seen() < count && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(5));
        return listener.seen() >= count;
      };
      EXPECT_TRUE(seen(1));
      clock.Jump(-absl::Hours(6));
      EXPECT_TRUE(seen(listener.seen() + 2)) << "the rank looks for no router any more";
    }
    then(link);
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RouterLinkTest, TheNextRouterIsFoundThoughTheClockIsSetBack) {
  const std::unique_ptr<testing::WallClock> clock = testing::WallClockOfTest();
  if (clock == nullptr) return;
  const testing::HeldPort port;
  std::unique_ptr<FakeRouter> next;
  LoseTheRouterAndSetTheClockBack(*clock, port.address(), [&](RouterLink&) {
    next = std::make_unique<FakeRouter>(
        [](int, Stream& stream) {
          v1::WorkerMessage in;
          EXPECT_TRUE(stream.Read(&in) && in.has_hello());
          stream.Write(ShutdownMessage());
          stream.Read(&in);
          return grpc::Status::OK;
        },
        port.address());
  });
}

TEST(RouterLinkTest, AWorkerWithoutRouterMayLeaveAfterAClockStep) {
  const std::unique_ptr<testing::WallClock> clock = testing::WallClockOfTest();
  if (clock == nullptr) return;
  const testing::HeldPort port;
  LoseTheRouterAndSetTheClockBack(*clock, port.address(),
                                  [](RouterLink& link) { link.RequestLeave("test"); });
}

TEST(ConvertTest, GroupsAreNamedBothWays) {
  Hello hello = {.group = "blue"};
  v1::WorkerMessage out;
  ToProto(hello, out);
  EXPECT_EQ(out.hello().group(), "blue");
  v1::RouterMessage message;
  message.mutable_epoch()->set_group("green");
  const auto in = FromProto(message);
  ASSERT_TRUE(in.has_value());
  EXPECT_EQ(std::get<Epoch>(*in).group_name, "green");
}

TEST(ConvertTest, AnAssignmentKeepsAllItsFields) {
  v1::RouterMessage message;
  message.mutable_plan()->set_epoch(3);
  message.mutable_plan()->set_apply_step(9);
  message.mutable_plan()->add_cancellations(5);
  v1::Assignment* from = message.mutable_plan()->add_assignments();
  from->set_handle(8);
  from->add_prompt_token_ids(11);
  from->add_prompt_token_ids(12);
  from->set_prompt_length(2);
  from->set_max_new_tokens(77);
  from->add_stop_token_ids(13);
  from->set_ignore_eos(true);
  from->set_priority(-7);
  from->set_waited_steps(-3);
  from->mutable_sampling()->set_temperature(0.5f);
  from->mutable_sampling()->set_top_k(40);
  from->mutable_sampling()->set_seed(1ull << 60);
  from->set_first_index(1);
  const auto in = FromProto(message);
  ASSERT_TRUE(in.has_value());
  const Plan& plan = std::get<Plan>(*in);
  EXPECT_EQ(plan.epoch, 3u);
  EXPECT_EQ(plan.apply_step, 9);
  EXPECT_THAT(plan.cancellations, ::testing::ElementsAre(5));
  const SequenceRequest& request = plan.assignments.at(0);
  EXPECT_EQ(request.handle, 8u);
  EXPECT_THAT(request.prompt, ::testing::ElementsAre(11, 12));
  EXPECT_EQ(request.prompt_length, 2);
  EXPECT_EQ(request.max_new_tokens, 77);
  EXPECT_THAT(request.stop_token_ids, ::testing::ElementsAre(13));
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.priority, -7);
  EXPECT_EQ(request.waited_steps, -3);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.seed, 1ull << 60);
  EXPECT_EQ(request.first_index, 1);
  EXPECT_TRUE(plan.notes.empty()) << "none has a note";
  from->set_origin("note");
  from->add_earlier_token_ids(21);
  const auto noted = FromProto(message);
  ASSERT_EQ(std::get<Plan>(*noted).notes.size(), 1u);
  EXPECT_EQ(std::get<Plan>(*noted).notes[0].origin, "note");
  EXPECT_THAT(std::get<Plan>(*noted).notes[0].earlier_tokens, ::testing::ElementsAre(21));
  EXPECT_FALSE(FromProto(v1::RouterMessage()).has_value());
}

TEST(ConvertTest, AnAnnouncementKeepsWhatTheRouterNeeds) {
  Announcement announcement = {.epoch = 4};
  HeldRequest& held = announcement.requests.emplace_back();
  held.request.handle = 8;
  held.request.prompt = {11, 12, 13};
  held.request.prompt_length = 3;
  held.request.first_index = 1;
  held.note = {"note", {21}};
  held.tokens = {31, 32};
  held.ended = FinishCause::kStop;
  v1::WorkerMessage out;
  ToProto(announcement, out);
  EXPECT_EQ(out.announcement().epoch(), 4u);
  const v1::HeldRequest& to = out.announcement().requests(0);
  EXPECT_EQ(to.assignment().handle(), 8u);
  EXPECT_THAT(to.assignment().prompt_token_ids(), ::testing::ElementsAre(11, 12, 13));
  EXPECT_EQ(to.assignment().prompt_length(), 3u);
  EXPECT_EQ(to.assignment().first_index(), 1u);
  EXPECT_EQ(to.assignment().origin(), "note");
  EXPECT_THAT(to.assignment().earlier_token_ids(), ::testing::ElementsAre(21));
  EXPECT_THAT(to.token_ids(), ::testing::ElementsAre(31, 32));
  EXPECT_EQ(to.ended(), v1::FINISH_REASON_STOP);
}

TEST(ConvertTest, AReportKeepsAllItsFields) {
  StepReport report = {.epoch = 2, .step = 5, .applied_plan = 4};
  report.output.tokens = {{1, 100}, {2, 200}};
  report.output.completion_hints = {0.5f, 0.25f};
  report.output.finished = {{2, FinishCause::kStop}};
  report.output.load_tokens = 30;
  report.output.prefill_tokens = 20;
  report.rejected = {{9, absl::StatusCode::kResourceExhausted, "full"}};
  report.gap_ns = 0;
  report.group = {1, 2, 3, 4, 5};
  report.barrier_error = "e";
  v1::WorkerMessage out;
  ToProto(report, out);
  const v1::StepReport& to = out.step_report();
  EXPECT_EQ(to.applied_plan(), 4u);
  EXPECT_THAT(to.handles(), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(to.token_ids(), ::testing::ElementsAre(100, 200));
  EXPECT_THAT(to.completion_hints(), ::testing::ElementsAre(0.5f, 0.25f));
  EXPECT_EQ(to.token_counts_size(), 0);
  EXPECT_EQ(to.finished(0).reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(to.rejected(0).code(), 8u);
  EXPECT_TRUE(to.has_gap_ns());
  EXPECT_EQ(to.group_sum_local_ns(), 4u);
  EXPECT_EQ(to.barrier_error(), "e");
  report.gap_ns.reset();
  ToProto(report, out);
  EXPECT_FALSE(out.step_report().has_gap_ns());
}

}  // namespace
}  // namespace bfio::worker
