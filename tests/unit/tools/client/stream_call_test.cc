#include "tools/client/stream_call.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tools/client/stream_reader.h"

namespace bfio::client {
namespace {

constexpr size_t kMessageBytes = 16 << 10;

// Writes max_new_tokens messages as fast as the client takes them. With ignore_eos it then waits for the
// cancellation.
class Writer final : public v1::Inference::Service {
 public:
  Writer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::shared_ptr<grpc::Channel> Connect() const {
    grpc::ChannelArguments args;  // windows that do not depend on the machine's speed
    args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials(),
                                     args);
  }
  uint32_t written() const { return written_; }
  int ended() const { return ended_; }

 private:
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    v1::GenerateResponse response;
    response.set_request_id(std::string(kMessageBytes, 'x'));
    for (uint32_t i = 0; i < request->max_new_tokens(); ++i, ++written_) {
      response.set_first_index(i);
      if (!writer->Write(response)) break;
    }
    while (request->ignore_eos() && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    ++ended_;
    return grpc::Status(grpc::StatusCode::ABORTED, "done");
  }

  int port_ = 0;
  std::atomic<uint32_t> written_ = 0;
  std::atomic<int> ended_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::GenerateRequest Messages(uint32_t count, bool then_waits = false) {
  v1::GenerateRequest request;
  request.set_max_new_tokens(count);
  request.set_ignore_eos(then_waits);
  return request;
}

void AwaitEnds(const Writer& writer, int ends) {
  while (writer.ended() < ends) absl::SleepFor(absl::Milliseconds(1));
}

class Recorder final : public StreamCall {
 public:
  Recorder(v1::GenerateRequest request, const std::shared_ptr<grpc::Channel>& channel,
           absl::Time deadline = absl::InfiniteFuture())
      : StreamCall(std::move(request), deadline, {}), channel_(channel) {}

  std::vector<uint32_t> indices;
  std::vector<absl::Time> times;
  grpc::Status status;
  long channel_users = 0;
  absl::Notification began, ended;

 private:
  Then OnMessage(v1::GenerateResponse& message, absl::Time arrived) override {
    indices.push_back(message.first_index());
    times.push_back(arrived);
    if (indices.size() == 1) began.Notify();
    return Then::kRead;
  }
  void OnEnd(const grpc::Status& end, absl::Time at) override {
    times.push_back(at);
    status = end;
    channel_users = channel_.use_count();
    ended.Notify();
  }

  // Weak: the last reference to this call may be released on gRPC's thread, which must not destroy the
  // channel that it serves.
  const std::weak_ptr<grpc::Channel> channel_;
};

TEST(StreamCall, ReportsEveryMessageAndItsTimeThenTheStatus) {
  const Writer writer;
  const auto channel = writer.Connect();
  const auto stub = v1::Inference::NewStub(channel);
  const auto call = std::make_shared<Recorder>(Messages(5), channel);
  call->Start(*stub);
  call->ended.WaitForNotification();
  EXPECT_EQ(call->indices, (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(std::is_sorted(call->times.begin(), call->times.end()));
  EXPECT_EQ(call->status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(call->status.error_message(), "done");
  call->Cancel();  // after the end, without effect
}

TEST(StreamCall, HasReleasedTheChannelWhenTheEndIsReported) {
  const Writer writer;
  const auto channel = writer.Connect();
  const auto stub = v1::Inference::NewStub(channel);
  const auto call = std::make_shared<Recorder>(Messages(1), channel);
  const long before = channel.use_count();
  call->Start(*stub);
  call->ended.WaitForNotification();
  EXPECT_EQ(call->channel_users, before);
}

TEST(StreamCall, EndsWhenCancelledAndAtItsDeadline) {
  const Writer writer;
  const auto channel = writer.Connect();
  const auto stub = v1::Inference::NewStub(channel);
  const auto call = std::make_shared<Recorder>(Messages(1, true), channel);
  call->Start(*stub);
  call->began.WaitForNotification();
  call->Cancel();
  call->ended.WaitForNotification();
  EXPECT_EQ(call->status.error_code(), grpc::StatusCode::CANCELLED);
  const auto late =
      std::make_shared<Recorder>(Messages(1, true), channel, absl::Now() + absl::Milliseconds(100));
  late->Start(*stub);
  late->ended.WaitForNotification();
  EXPECT_EQ(late->status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  AwaitEnds(writer, 2);
}

TEST(StreamReader, ReadsAtMostItsLimitAheadOfItsCaller) {
  const Writer writer;
  const auto stub = v1::Inference::NewStub(writer.Connect());
  constexpr uint32_t kMessages = 400;
  const auto reader = std::make_shared<StreamReader>(Messages(kMessages));
  reader->Start(*stub);
  for (uint32_t i = 0; i < kMessages; ++i) {
    const auto taken = reader->Take(absl::InfiniteDuration());
    ASSERT_TRUE(std::holds_alternative<v1::GenerateResponse>(taken));
    EXPECT_EQ(std::get<v1::GenerateResponse>(taken).first_index(), i);
    // Besides, messages in the flow-control windows of stream and connection.
    EXPECT_LE(writer.written(), i + StreamReader::kReadAhead + 30);
  }
  const auto taken = reader->Take(absl::InfiniteDuration());
  EXPECT_EQ(std::get<grpc::Status>(taken).error_message(), "done");
}

TEST(StreamReader, AnAbandonedCallEndsWithOrWithoutUnreadMessages) {
  const Writer writer;
  const auto stub = v1::Inference::NewStub(writer.Connect());
  for (const uint32_t messages : {1, 100}) {
    auto reader = std::make_shared<StreamReader>(Messages(messages, true));
    reader->Start(*stub);
    ASSERT_TRUE(std::holds_alternative<v1::GenerateResponse>(reader->Take(absl::InfiniteDuration())));
    reader->Abandon();
    const std::weak_ptr<StreamReader> call = reader;
    reader.reset();
    while (!call.expired()) absl::SleepFor(absl::Milliseconds(1));
  }
  AwaitEnds(writer, 2);
}

}  // namespace
}  // namespace bfio::client
