// The worker link service in front of a fake worker handler.
#include "router/worker_link/worker_link_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "bfio/v1/worker.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/net/status.h"
#include "router/worker_link/wire.h"
#include "tests/testing/from_text.h"
#include "tests/testing/loopback_server.h"

namespace bfio::router {
namespace {

using bfio::testing::FromText;
using ::testing::ElementsAre;

class FakeWorkerHandler final : public WorkerHandler {
 public:
  void OnWorkerEvent(std::shared_ptr<WorkerChannel> channel, WorkerEvent event) override {
    MutexLock lock(&mutex_);
    events_.emplace_back(std::move(channel), std::move(event));
  }
  core::RequestId NextId() override { return next_id_++; }

  std::pair<std::shared_ptr<WorkerChannel>, WorkerEvent> Next() {
    MutexLock lock(&mutex_);
    const auto some = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); };
    mutex_.Await(absl::Condition(&some));
    auto event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  template <typename T>
  T Next() {
    auto [channel, event] = Next();
    channel->Consumed();
    T* wanted = std::get_if<T>(&event);
    EXPECT_NE(wanted, nullptr) << "another kind of event came: " << event.index();
    return wanted == nullptr ? T() : std::move(*wanted);
  }

 private:
  Mutex mutex_;
  std::deque<std::pair<std::shared_ptr<WorkerChannel>, WorkerEvent>> events_ ABSL_GUARDED_BY(mutex_);
  std::atomic<core::RequestId> next_id_{1000};
};

constexpr char kHello[] =
    "hello { worker_id: 'w0' slots: 2 kv_tokens: 100 max_sequence_tokens: 50 group: 'blue' }";

class WorkerLinkServiceTest : public ::testing::Test {
 protected:
  WorkerLinkServiceTest() { stream_ = stub_->Attach(&context_); }
  ~WorkerLinkServiceTest() override {
    context_.TryCancel();
    if (!ended_) stream_->Finish();
  }

  absl::Status End() {
    ended_ = true;
    return FromGrpcStatus(stream_->Finish());
  }

  void Send(const std::string& message) { stream_->Write(FromText<v1::WorkerMessage>(message)); }
  // Sends a hello. Returns the worker's channel once the handler has received it.
  std::shared_ptr<WorkerChannel> Attach() {
    Send(kHello);
    auto [channel, event] = handler_.Next();
    EXPECT_TRUE(std::holds_alternative<WorkerHello>(event));
    channel->Consumed();
    return channel;
  }
  v1::RouterMessage Read() {
    v1::RouterMessage message;
    EXPECT_TRUE(stream_->Read(&message));
    return message;
  }

  FakeWorkerHandler handler_;
  WorkerLinkService service_{&handler_, /*bind_worker_id=*/false, RequestLimits()};
  testing::LoopbackServer server_{&service_};
  const std::unique_ptr<v1::WorkerLink::Stub> stub_ = v1::WorkerLink::NewStub(server_.channel());
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::RouterMessage>> stream_;
  bool ended_ = false;
};

TEST_F(WorkerLinkServiceTest, MessagesBecomeEventsInOrder) {
  Send(kHello);
  EXPECT_EQ(handler_.Next<WorkerHello>().group, "blue");
  Send("epoch_ready { epoch: 3 }");
  EXPECT_EQ(handler_.Next<EpochReady>().epoch, 3u);
  Send("step_report { step: 5 }");
  EXPECT_EQ(handler_.Next<StepReport>().step, 5);
  for (const char* unexpected : {kHello, ""}) {
    Send(unexpected);
    EXPECT_EQ(handler_.Next<ProtocolError>().status, absl::InvalidArgumentError("unexpected message"));
  }
  Send("step_report { handles: 1 }");
  EXPECT_EQ(handler_.Next<ProtocolError>().status,
            absl::InvalidArgumentError("the report counts 1 tokens and carries 0"));
  Send("leave { reason: 'signal' }");
  EXPECT_EQ(handler_.Next<Leave>().reason, "signal");
  stream_->WritesDone();
  handler_.Next<Gone>();
}

TEST_F(WorkerLinkServiceTest, AnInvalidFirstMessageEndsTheCallWithoutAnEvent) {
  const auto ended = [&](const std::string& first) {
    grpc::ClientContext context;
    const auto stream = stub_->Attach(&context);
    stream->Write(FromText<v1::WorkerMessage>(first));
    v1::RouterMessage message;
    EXPECT_FALSE(stream->Read(&message));
    return FromGrpcStatus(stream->Finish());
  };
  EXPECT_EQ(ended("hello { worker_id: 'w1' }"),
            absl::InvalidArgumentError("slots is 0; must be within 1..65536"));
  EXPECT_EQ(ended("leave {}"), absl::InvalidArgumentError("the first message must be a hello"));
  // The first events that the handler receives are the hellos of others.
  const auto first = Attach();
  grpc::ClientContext context;
  const auto stream = stub_->Attach(&context);
  stream->Write(FromText<v1::WorkerMessage>(kHello));
  const auto second = handler_.Next().first;
  EXPECT_NE(first->id(), second->id());
  context.TryCancel();
  stream->Finish();
  EXPECT_EQ(handler_.Next().first, second) << "its end";
}

TEST_F(WorkerLinkServiceTest, InvalidHeldRequestsAreDroppedAndOthersKept) {
  Attach();
  ClientRequest client;
  client.request_id = "r1";
  client.prompt_tokens = 3;
  client.max_new_tokens = 10;
  client.resumable = true;
  v1::WorkerMessage message;
  v1::Announcement& announcement = *message.mutable_announcement();
  announcement.set_epoch(3);
  announcement.add_requests()->mutable_assignment()->set_origin("\xff");
  v1::HeldRequest& held = *announcement.add_requests();
  ToWire(Assignment{.id = 42, .request = &client}, *held.mutable_assignment());
  held.add_token_ids(7);
  const auto bytes = static_cast<int64_t>(held.ByteSizeLong());
  stream_->Write(message);
  const auto converted = handler_.Next<Announcement>();
  EXPECT_EQ(converted.epoch, 3u);
  ASSERT_EQ(converted.requests.size(), 1u);
  EXPECT_EQ(converted.requests[0].id, 1000u) << "an id of this router";
  EXPECT_THAT(converted.requests[0].tokens, ElementsAre(7));
  EXPECT_THAT(converted.bytes, ElementsAre(::testing::Gt(bytes))) << "as it is in memory";
}

TEST_F(WorkerLinkServiceTest, AnEpochKeepsAllItsFields) {
  Attach()->SendEpoch({.epoch = 7,
                       .rank = 1,
                       .world_size = 2,
                       .communicator_id = "host:1",
                       .plan_mode = core::PlanMode::kLockstep,
                       .form_timeout = absl::Seconds(3),
                       .step_timeout = absl::Milliseconds(250),
                       .cancellations = {4, 5},
                       .router_instance = 9,
                       .announce = true,
                       .retain = absl::Seconds(30),
                       .independent = true,
                       .group = "blue"});
  v1::RouterMessage sent = Read();
  EXPECT_EQ(sent.epoch().cancellations_size(), 2);
  sent.mutable_epoch()->clear_cancellations();
  EXPECT_EQ(
      sent.ShortDebugString(),
      "epoch { epoch: 7 rank: 1 world_size: 2 communicator_id: \"host:1\" plan_mode: PLAN_MODE_LOCKSTEP "
      "form_timeout_ms: 3000 step_timeout_ms: 250 router_instance: 9 "
      "announce: true retain_ms: 30000 uncoupled: true group: \"blue\" }");
}

TEST_F(WorkerLinkServiceTest, AssignmentsCarryTheRemainingWork) {
  ClientRequest client;
  client.request_id = "r1";
  client.prompt = {5, 6, 7};
  client.prompt_tokens = 3;
  client.max_new_tokens = 10;
  client.stop_token_ids = {99};
  client.ignore_eos = true;
  client.sampling.temperature = 0.5f;
  client.priority = -3;
  const std::vector<uint32_t> history = {100, 101};
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const Assignment assignment = {.id = 42,
                                 .request = &client,
                                 .history = &history,
                                 .first_index = 2,
                                 .seed = 77,
                                 .traceparent = &trace,
                                 .kv_on_demand = true,
                                 .waited_steps = -5};
  PlanPart plan{
      .epoch = 7, .apply_step = 9, .placements = {{.id = 42}}, .cancellations = {4}, .level_s = 0.02};
  const auto channel = Attach();
  channel->SendPlan(plan, absl::MakeConstSpan(&assignment, 1));
  // What has been delivered is prompt now. The request need not outlive the router, so it has no origin.
  v1::RouterMessage sent = Read();
  EXPECT_NE(sent.plan().assignments(0).handle(), 42u);
  EXPECT_EQ(sent.plan().cancellations_size(), 1);
  sent.mutable_plan()->mutable_assignments(0)->clear_handle();
  sent.mutable_plan()->clear_cancellations();
  EXPECT_EQ(sent.ShortDebugString(),
            "plan { epoch: 7 apply_step: 9 assignments { prompt_token_ids: 5 prompt_token_ids: 6 "
            "prompt_token_ids: 7 prompt_token_ids: 100 prompt_token_ids: 101 prompt_length: 5 "
            "max_new_tokens: 8 stop_token_ids: 99 ignore_eos: true sampling { temperature: 0.5 seed: 77 } "
            "first_index: 2 traceparent: \"" +
                trace +
                "\" priority: -3 kv_on_demand: true waited_steps: -5 } "
                "level_s: 0.02 }");
  // For a resumable prompt without token ids the worker gets the generated tokens in a field of their own.
  client.prompt.clear();
  client.resumable = true;
  channel->SendPlan(plan, absl::MakeConstSpan(&assignment, 1));
  const v1::Assignment held = Read().plan().assignments(0);
  EXPECT_EQ(held.prompt_token_ids_size(), 0);
  EXPECT_EQ(held.prompt_length(), 5u);
  EXPECT_THAT(held.earlier_token_ids(), ElementsAre(100, 101));
  EXPECT_NE(held.origin(), "");
}

TEST_F(WorkerLinkServiceTest, AClosedChannelEndsTheCallAfterItsMessages) {
  const auto channel = Attach();
  channel->SendShutdown("drained");
  channel->Close(absl::UnavailableError("the router is shutting down"));
  EXPECT_EQ(Read().shutdown().reason(), "drained");
  v1::RouterMessage message;
  EXPECT_FALSE(stream_->Read(&message));
  EXPECT_EQ(End(), absl::UnavailableError("the router is shutting down"));
  handler_.Next<Gone>();
  // The worker's call has ended: further calls have no effect.
  channel->SendShutdown("again");
  channel->Consumed();
  EXPECT_FALSE(channel->BreakOffIfStuck(absl::InfiniteFuture(), absl::ZeroDuration()));
}

TEST_F(WorkerLinkServiceTest, ReadingPausesByBytes) {
  const auto channel = Attach();
  // Far fewer messages than the limit of their number, but more bytes: six of them are more than 16 MiB.
  constexpr int kMessages = 12;
  constexpr int64_t kBytes = 3 << 20, kMost = (int64_t{16} << 20) + kBytes + 1024;
  std::thread writer([&] {
    v1::WorkerMessage message;
    message.mutable_leave()->set_reason(std::string(kBytes, 'x'));
    for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(stream_->Write(message));
  });
  for (int i = 0; i < 6; ++i) handler_.Next();
  for (int i = 6; i < kMessages; ++i) {
    EXPECT_LE(service_.unconsumed_bytes(), kMost);
    EXPECT_GT(service_.unconsumed_bytes(), int64_t{12} << 20);
    channel->Consumed();
    const auto event = handler_.Next().second;
    EXPECT_LT(std::get<Leave>(event).reason.size(), 300u) << "what goes into a log line is cut";
  }
  writer.join();
  for (int i = 0; i < 6; ++i) channel->Consumed();
  EXPECT_EQ(service_.unconsumed_bytes(), 0);
}

// Plans with prompts are large: the queue for a worker that does not read is bounded by 64 MiB besides the
// message being written.
TEST_F(WorkerLinkServiceTest, AWorkerThatDoesNotReadIsCutOffByBytes) {
  const auto channel = Attach();
  constexpr int64_t kBytes = 3 << 20, kMost = int64_t{64} << 20;
  int sent = 0;
  for (int64_t queued = 0; sent < 100; ++sent) {
    channel->SendNotice(std::string(kBytes, 'x'));
    if (service_.queued_bytes() < queued) break;
    queued = service_.queued_bytes();
    EXPECT_LE(queued, kMost);
  }
  EXPECT_GE(sent, kMost / kBytes);
  EXPECT_LE(sent, kMost / kBytes + 2) << "and those that gRPC has taken";
  EXPECT_EQ(service_.queued_bytes(), 0) << "what is not written any more is not kept";
  v1::RouterMessage message;
  while (stream_->Read(&message)) {
  }
  EXPECT_EQ(End(), absl::ResourceExhaustedError("the worker does not read its messages"));
}

// One plan may exceed the limit of the queue: it has all prompts for a worker's slots.
TEST_F(WorkerLinkServiceTest, OneMessageMayExceedTheQueueLimit) {
  const auto channel = Attach();
  constexpr size_t kBytes = size_t{65} << 20;
  for (int i = 0; i < 2; ++i) channel->SendNotice(std::string(kBytes, 'x'));
  EXPECT_EQ(service_.queued_bytes() >> 20, 65) << "behind the one that is being written";
}

TEST(WorkerLinkBounds, UnreadBytesOfAllSessionsAreBounded) {
  // Sessions as the service makes them, with a limit of their own.
  SessionBounds bounds{.max_unconsumed_bytes = 100};
  bounds.unconsumed_bytes = 90;
  class Service final : public CallService {
   public:
    explicit Service(SessionBounds* bounds) {
      Add("/bfio.v1.WorkerLink/Attach", [this, bounds](grpc::CallbackServerContext* context) {
        WorkerSession::Callbacks callbacks;
        callbacks.on_message = [this](const std::shared_ptr<WorkerSession>& session, const auto&) {
          MutexLock lock(&mutex);
          sessions.push_back(session);
        };
        callbacks.on_gone = [](const std::shared_ptr<WorkerSession>&) {};
        return WorkerSession::Create("peer", std::move(callbacks), bounds, context).get();
      });
    }
    std::shared_ptr<WorkerSession> Await(size_t count) {
      MutexLock lock(&mutex);
      const auto there = [&] { return sessions.size() >= count; };
      mutex.Await(absl::Condition(&there));
      return sessions.back();
    }
    Mutex mutex;
    std::vector<std::shared_ptr<WorkerSession>> sessions;
  };
  Service service(&bounds);
  {
    testing::LoopbackServer server(&service);
    const auto stub = v1::WorkerLink::NewStub(server.channel());
    grpc::ClientContext context;
    const auto stream = stub->Attach(&context);
    v1::WorkerMessage message;
    message.mutable_leave()->set_reason(std::string(20, 'x'));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream->Write(message));
    // The first message exceeds the limit: each next message is read only when the one before has been
    // consumed, though the limit is still exceeded.
    for (size_t i = 1; i <= 3; ++i) {
      const auto session = service.Await(i);
      EXPECT_LT(bounds.unconsumed_bytes.load(), 90 + 2 * 20);
      session->Consumed();
    }
    context.TryCancel();
    stream->Finish();
  }
  service.sessions.clear();
}

TEST(WorkerLinkBounds, AStreamWithoutAHelloIsClosed) {
  FakeWorkerHandler handler;
  WorkerLinkService service(&handler, false, RequestLimits(), nullptr, {.patience = absl::Milliseconds(20)});
  testing::LoopbackServer server(&service);
  const auto stub = v1::WorkerLink::NewStub(server.channel());
  grpc::ClientContext context;
  const auto stream = stub->Attach(&context);
  v1::RouterMessage message;
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_EQ(FromGrpcStatus(stream->Finish()),
            absl::DeadlineExceededError("the first message did not arrive in time"));
  EXPECT_EQ(service.first_messages()->counts().too_late, 1u);
}

}  // namespace
}  // namespace bfio::router
