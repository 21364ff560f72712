#include "common/net/first_messages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bfio/v1/worker.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/net/call_service.h"
#include "common/net/server_call.h"
#include "google/protobuf/field_mask.pb.h"
#include "tests/testing/loopback_server.h"

namespace bfio {
namespace {

class FakeCall final : public FirstMessages::Call {
 public:
  bool Receive() override {
    received_at = MonotonicNow();
    ++received;
    return !over;
  }
  void OnTooLate() override {
    late_at = MonotonicNow();
    if (on_too_late) on_too_late();
    late = true;
  }

  std::function<void()> on_too_late;
  // Written before `received` and `late`.
  absl::Time received_at, late_at;
  std::atomic<int> received{0};
  std::atomic<bool> over{false}, late{false};
};

TEST(FirstMessages, ConcurrentReceivesAreBoundedAndOthersFollowInOrder) {
  FirstMessages messages({.at_once = 2, .patience = absl::Hours(1)});
  std::vector<std::shared_ptr<FakeCall>> calls;
  for (int i = 0; i < 5; ++i) {
    messages.Begin(calls.emplace_back(std::make_shared<FakeCall>()), {absl::StrCat("tenant ", i), "c"});
  }
  messages.Begin(std::make_shared<FakeCall>(), {"tenant 5", "c"});  // destroyed: takes no slot
  messages.Begin(calls.emplace_back(std::make_shared<FakeCall>()), {"tenant 6", "c"});
  EXPECT_EQ(messages.counts().receiving, 2u);
  EXPECT_EQ(messages.counts().waiting, 5u);
  EXPECT_EQ(calls[1]->received, 1);
  EXPECT_EQ(calls[2]->received, 0);
  messages.End(*calls[1]);
  EXPECT_EQ(calls[2]->received, 1);
  EXPECT_EQ(calls[3]->received, 0);
  // A call that ends while it waits takes no slot.
  calls[3]->over = true;
  messages.End(*calls[0]);
  EXPECT_EQ(calls[4]->received, 1);
  EXPECT_EQ(calls[5]->received, 0);
  for (const int i : {2, 4, 5}) messages.End(*calls[i]);
  EXPECT_EQ(calls[5]->received, 1);
  EXPECT_EQ(messages.counts().receiving, 0u);
  EXPECT_EQ(messages.counts().waiting, 0u);
  EXPECT_EQ(messages.counts().too_late, 0u);
}

TEST(FirstMessages, ReceivingAndWaitingCallsTimeOut) {
  FirstMessages messages({.at_once = 1, .patience = absl::Milliseconds(20)});
  const auto slow = std::make_shared<FakeCall>(), behind = std::make_shared<FakeCall>();
  messages.Begin(slow, {"a", "c"});
  messages.Begin(behind, {"b", "c"});
  while (!slow->late || !behind->late) std::this_thread::yield();
  EXPECT_EQ(messages.counts().too_late, 2u);
  EXPECT_EQ(messages.counts().receiving, 1u) << "until its call is over";
  EXPECT_EQ(behind->received, 0);
  messages.End(*slow);
  EXPECT_EQ(behind->received, 0);
  EXPECT_EQ(messages.counts().receiving, 0u);
}

TEST(FirstMessages, ACallThatHasWaitedHasAllTheTimeToSend) {
  constexpr absl::Duration kPatience = absl::Milliseconds(400);
  FirstMessages messages({.at_once = 1, .patience = kPatience});
  const auto slow = std::make_shared<FakeCall>(), behind = std::make_shared<FakeCall>();
  slow->on_too_late = [&] { messages.End(*slow); };
  messages.Begin(slow, {"a", "c"});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  messages.Begin(behind, {"b", "c"});
  while (!slow->late || !behind->late) std::this_thread::yield();
  // If the machine paused for 200 ms in between, the message arrived too late to be received.
  if (behind->received == 1) {
    EXPECT_GT(behind->late_at - behind->received_at, kPatience * 3 / 4);
  }
}

// A greedy tenant, or connection, has as many calls as it likes; nobody else waits for them.
TEST(FirstMessages, APeerThatReceivesNothingDoesNotWaitForAGreedyOne) {
  FirstMessages messages({.at_once = 16, .patience = absl::Hours(1), .crowded_patience = absl::Hours(1)});
  std::vector<std::shared_ptr<FakeCall>> calls;
  const auto begin = [&](const Peer& peer) {
    messages.Begin(calls.emplace_back(std::make_shared<FakeCall>()), peer);
    return calls.back();
  };
  for (int i = 0; i < 100; ++i) begin({"greedy", "one"});
  EXPECT_EQ(messages.counts().receiving, 4u);
  EXPECT_EQ(begin({"greedy", "two"})->received, 1) << "another connection of the tenant";
  for (int i = 0; i < 100; ++i) begin({"greedy", absl::StrCat(i)});
  EXPECT_EQ(messages.counts().receiving, 8u);
  EXPECT_EQ(begin({"modest", "one"})->received, 1);
}

TEST(FirstMessages, ASlowCallEndsEarlyOnlyForAPeerThatReceivesNothing) {
  FirstMessages messages(
      {.at_once = 1, .patience = absl::Hours(1), .crowded_patience = absl::Milliseconds(20)});
  const auto slow = std::make_shared<FakeCall>(), own = std::make_shared<FakeCall>(),
             other = std::make_shared<FakeCall>();
  slow->on_too_late = [&] { messages.End(*slow); };
  messages.Begin(slow, {"a", "c"});
  messages.Begin(own, {"a", "c"});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(slow->late) << "only its own connection waits";
  messages.Begin(other, {"b", "c"});
  while (!slow->late) std::this_thread::yield();
  while (own->received + other->received == 0) std::this_thread::yield();
}

// A message may announce any size.
TEST(FirstMessages, TheConnectionThatSendsTooMuchLosesItsCalls) {
  FirstMessages messages({.at_once = 16, .patience = absl::Hours(1), .bytes = 1000});
  std::atomic<int64_t> sent[2] = {5000, 0};
  messages.set_received([&](const std::string& connection) { return sent[connection == "b"].load(); });
  const auto greedy = std::make_shared<FakeCall>(), modest = std::make_shared<FakeCall>();
  messages.Begin(greedy, {"a", "a", "a"});
  messages.Begin(modest, {"b", "b", "b"});
  sent[0] = 5600;
  sent[1] = 300;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(greedy->late || modest->late);
  sent[0] = 5800;
  while (!greedy->late) std::this_thread::yield();
  EXPECT_FALSE(modest->late);
}

TEST(FirstMessages, OfTheWaitingCallsATenantHasAShare) {
  FirstMessages messages({.at_once = 1, .patience = absl::Hours(1), .waiting = 8});
  std::vector<std::shared_ptr<FakeCall>> calls;
  for (int i = 0; i < 20; ++i)
    messages.Begin(calls.emplace_back(std::make_shared<FakeCall>()), {"greedy", absl::StrCat(i)});
  EXPECT_EQ(messages.counts().waiting, 4u);
  EXPECT_EQ(messages.counts().too_late, 15u);
  const auto other = std::make_shared<FakeCall>();
  messages.Begin(other, {"modest", "c"});
  EXPECT_FALSE(other->late);
  EXPECT_EQ(messages.counts().waiting, 5u);
}

// --- calls ---

// Calls over loopback to a service whose calls are test code.

// The messages that a call has received, in order, as text; "none" where it ended without one.
class Log {
 public:
  void Add(std::string what) {
    MutexLock lock(&mutex_);
    log_.push_back(std::move(what));
  }
  std::vector<std::string> Await(size_t count) {
    MutexLock lock(&mutex_);
    const auto there = [&] { return log_.size() >= count; };
    mutex_.Await(absl::Condition(&there));
    return log_;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> log_ ABSL_GUARDED_BY(mutex_);
};

// Writes nothing. Reads the given number of messages and then closes the call.
class TestCall final : public ServerCall<TestCall, v1::WorkerMessage, v1::RouterMessage> {
 public:
  TestCall(Log* log, int reads) : ServerCall(/*context=*/nullptr), log_(log), reads_left_(reads) {}
  using ServerCall::Open;

 private:
  void OnMessage(v1::WorkerMessage message) override {
    log_->Add(message.leave().reason());
    if (--reads_left_ == 0) return Close(grpc::Status::OK);
    MutexLock lock(&mutex_);
    Read();
  }
  void OnNoMessage() override {
    log_->Add("none");
    ServerCall::OnNoMessage();
  }
  bool Next(v1::RouterMessage&) override { return false; }

  Log* const log_;
  int reads_left_;
};

class TestService final : public CallService {
 public:
  struct Options {
    absl::Status allowed;
    FirstMessages::Limits limits;
    int reads = 1;
  };
  explicit TestService(Options options) : options_(std::move(options)), messages(options_.limits) {
    Add("/bfio.v1.WorkerLink/Attach", [this](grpc::CallbackServerContext*) {
      const auto call = std::make_shared<TestCall>(&log, options_.reads);
      call->Open(call);
      call->Begin(options_.allowed.ok() ? absl::StatusOr<Peer>(Peer()) : options_.allowed, &messages);
      return call.get();
    });
  }

 private:
  const Options options_;

 public:
  Log log;
  FirstMessages messages;
};

// The client's side of a call.
class Client {
 public:
  explicit Client(const testing::LoopbackServer& server)
      : stub_(v1::WorkerLink::NewStub(server.channel())), stream_(stub_->Attach(&context_)) {}

  void Write(const std::string& text) {
    v1::WorkerMessage message;
    message.mutable_leave()->set_reason(text);
    Write(message);
  }
  void Write(const v1::WorkerMessage& message) { stream_->Write(message); }
  void CloseWrites() { stream_->WritesDone(); }
  absl::Status End() {
    v1::RouterMessage message;
    EXPECT_FALSE(stream_->Read(&message));
    return FromGrpcStatus(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::WorkerLink::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::RouterMessage>> stream_;
};

using Messages = std::vector<std::string>;

struct Served {
  explicit Served(TestService::Options options) : service(std::move(options)) {}
  // The end of a call that has sent the texts.
  absl::Status Call(const Messages& texts, bool close = false) {
    Client client(server);
    for (const std::string& text : texts) client.Write(text);
    if (close) client.CloseWrites();
    return client.End();
  }

  TestService service;
  testing::LoopbackServer server{&service};
};

TEST(ServerCallTest, ReceivesTheFirstMessageAndMoreOnRequest) {
  Served served({.reads = 3});
  EXPECT_TRUE(served.Call({"a", "b", "c", "d"}).ok());
  EXPECT_EQ(served.service.log.Await(3), (Messages{"a", "b", "c"}));
  EXPECT_EQ(served.service.messages.counts().receiving, 0u);
}

// What such a part takes in memory is up to 50 times what it takes on the wire.
TEST(ServerCallTest, AMessageOfTooManyPartsIsNotParsed) {
  const auto parses = [](const google::protobuf::Message& message) {
    const grpc::Slice slice(message.SerializeAsString());
    grpc::ByteBuffer bytes(&slice, 1);
    const std::unique_ptr<google::protobuf::Message> parsed(message.New());
    return ParseBounded(bytes, *parsed);
  };
  v1::WorkerMessage message;
  auto& requests = *message.mutable_announcement()->mutable_requests();
  while (requests.size() < kMaxMessageParts - 1) requests.Add();
  EXPECT_TRUE(parses(message));
  requests.Add();
  EXPECT_FALSE(parses(message));
  Served served({});
  Client client(served.server);
  client.Write(message);
  EXPECT_EQ(client.End().code(), absl::StatusCode::kInvalidArgument);

  // Tokens are no parts.
  requests.Clear();
  for (uint32_t i = 0; i < 2 * kMaxMessageParts; ++i)
    (i == 0 ? requests.Add() : &requests[0])->add_token_ids(i);
  EXPECT_TRUE(parses(message));
  google::protobuf::FieldMask texts;
  while (texts.paths_size() <= kMaxMessageParts) texts.add_paths();
  EXPECT_FALSE(parses(texts));
  v1::WorkerMessage unknown;
  for (int64_t i = 0; i <= kMaxMessageParts; ++i)
    unknown.GetReflection()->MutableUnknownFields(&unknown)->AddVarint(1000, 1);
  EXPECT_FALSE(parses(unknown));
  // A declared field of another wire type is kept as one that is not declared.
  for (const bool text : {false, true}) {
    v1::WorkerMessage other_type;
    auto& fields = *other_type.GetReflection()->MutableUnknownFields(&other_type);
    auto& inner = *other_type.mutable_step_report();
    auto& numbers = *inner.GetReflection()->MutableUnknownFields(&inner);
    for (int64_t i = 0; i <= kMaxMessageParts; ++i) {
      if (text) numbers.AddLengthDelimited(v1::StepReport::kEpochFieldNumber);
      if (!text) fields.AddVarint(v1::WorkerMessage::kHelloFieldNumber, 1);
    }
    EXPECT_FALSE(parses(other_type)) << text;
  }
}

TEST(ServerCallTest, NothingIsReceivedFromARefusedCall) {
  Served served({.allowed = absl::UnauthenticatedError("who is it")});
  EXPECT_EQ(served.Call({"a"}), absl::UnauthenticatedError("who is it"));
  EXPECT_EQ(served.Call({}), absl::UnauthenticatedError("who is it")) << "before it has sent anything";
  EXPECT_TRUE(served.service.log.Await(0).empty());
}

TEST(ServerCallTest, ACallWithoutAMessageEnds) {
  Served served({});
  EXPECT_EQ(served.Call({}, /*close=*/true), absl::InvalidArgumentError("cannot parse the request"));
  EXPECT_EQ(served.service.log.Await(1), Messages{"none"});
  EXPECT_EQ(served.service.messages.counts().receiving, 0u);
}

TEST(ServerCallTest, ALateMessageEndsTheCallAndFreesItsSlot) {
  Served served({.limits = {.at_once = 1, .patience = absl::Milliseconds(50)}});
  EXPECT_EQ(served.Call({}), absl::DeadlineExceededError("the first message did not arrive in time"));
  // The pending read ends with the call.
  EXPECT_EQ(served.service.log.Await(1), Messages{"none"});
  EXPECT_TRUE(served.Call({"a"}).ok());
}

TEST(ServerCallTest, ACallThatIsNeverReceivedEndsAsUnavailable) {
  Served served({.limits = {.at_once = 0, .patience = absl::Milliseconds(20)}});
  EXPECT_EQ(served.Call({"a"}), absl::UnavailableError("too many requests are being received"));
  EXPECT_TRUE(served.service.log.Await(0).empty());
}

}  // namespace
}  // namespace bfio
