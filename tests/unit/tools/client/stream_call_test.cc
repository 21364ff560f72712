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

#include "absl/time/clock.h"
#include "tests/testing/latch.h"
#include "tests/testing/loopback_server.h"
#include "tests/testing/process.h"
#include "tools/client/client.h"

namespace bfio::client {
namespace {

// Writes max_new_tokens messages as fast as the client takes them. With ignore_eos it then waits for the
// cancellation.
class Writer final : public v1::Inference::Service {
 public:
  const std::shared_ptr<grpc::Channel>& channel() const { return server_.channel(); }
  uint32_t written() const { return written_; }
  bool AwaitEnds(int ends) const {
    return testing::Eventually([&] { return ended_ >= ends; });
  }

 private:
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    v1::GenerateResponse response;
    response.set_request_id(std::string(16 << 10, 'x'));
    for (uint32_t i = 0; i < request->max_new_tokens(); ++i, ++written_) {
      response.set_first_index(i);
      if (!writer->Write(response)) break;
    }
    while (request->ignore_eos() && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    ++ended_;
    return grpc::Status(grpc::StatusCode::ABORTED, "done");
  }

  std::atomic<uint32_t> written_ = 0;
  std::atomic<int> ended_ = 0;
  testing::LoopbackServer server_{this};
};

v1::GenerateRequest Messages(uint32_t count, bool then_waits = false) {
  v1::GenerateRequest request;
  request.set_max_new_tokens(count);
  request.set_ignore_eos(then_waits);
  return request;
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
  testing::Latch began{1}, ended{1};

 private:
  Then OnMessage(v1::GenerateResponse& message, absl::Time arrived) override {
    indices.push_back(message.first_index());
    times.push_back(arrived);
    if (indices.size() == 1) began.count_down();
    return Then::kRead;
  }
  void OnEnd(const grpc::Status& end, absl::Time at) override {
    times.push_back(at);
    status = end;
    channel_users = channel_.use_count();
    ended.count_down();
  }

  // Weak: the last reference to this call may be released on gRPC's thread, which must not destroy the
  // channel that it serves.
  const std::weak_ptr<grpc::Channel> channel_;
};

class StreamCallTest : public ::testing::Test {
 protected:
  std::shared_ptr<Recorder> Start(v1::GenerateRequest request, absl::Time deadline = absl::InfiniteFuture()) {
    const auto call = std::make_shared<Recorder>(std::move(request), writer_.channel(), deadline);
    call->Start(*stub_);
    return call;
  }

  const Writer writer_;
  const std::unique_ptr<v1::Inference::Stub> stub_ = v1::Inference::NewStub(writer_.channel());
};

TEST_F(StreamCallTest, ReportsEveryMessageAndItsTimeThenTheStatusWithoutTheChannel) {
  const long users = writer_.channel().use_count();
  const auto call = Start(Messages(5));
  call->ended.wait();
  EXPECT_EQ(call->indices, (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(std::is_sorted(call->times.begin(), call->times.end()));
  EXPECT_EQ(call->status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(call->status.error_message(), "done");
  EXPECT_EQ(call->channel_users, users);
  call->Cancel();  // after the end, without effect
}

TEST_F(StreamCallTest, EndsWhenCancelledAndAtItsDeadline) {
  const auto call = Start(Messages(1, true));
  call->began.wait();
  call->Cancel();
  call->ended.wait();
  EXPECT_EQ(call->status.error_code(), grpc::StatusCode::CANCELLED);
  const auto late = Start(Messages(1, true), absl::Now() + absl::Milliseconds(100));
  late->ended.wait();
  EXPECT_EQ(late->status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(writer_.AwaitEnds(2));
}

TEST_F(StreamCallTest, AReaderReadsAtMostItsLimitAheadOfItsCaller) {
  constexpr uint32_t kMessages = 400;
  const auto reader = std::make_shared<StreamReader>(Messages(kMessages));
  reader->Start(*stub_);
  for (uint32_t i = 0; i < kMessages; ++i) {
    const auto taken = reader->Take(absl::InfiniteDuration());
    ASSERT_TRUE(std::holds_alternative<v1::GenerateResponse>(taken));
    EXPECT_EQ(std::get<v1::GenerateResponse>(taken).first_index(), i);
    // Besides, messages in the flow-control windows of stream and connection.
    EXPECT_LE(writer_.written(), i + StreamReader::kReadAhead + 30);
  }
  const auto taken = reader->Take(absl::InfiniteDuration());
  EXPECT_EQ(std::get<grpc::Status>(taken).error_message(), "done");
}

// A client's channel goes with it, whatever gRPC's threads still do.
TEST(ClientTest, MayBeDestroyedWithACallUnderWay) {
  for (int i = 0; i < 1000; ++i) {
    // Nothing listens there.
    const auto client = *Client::Create({.target = "127.0.0.1:1"});
    const auto stream = client->Generate(Messages(1), {.retry = {.max_retries = 0}});
    if (i % 2 == 0) stream->Next();
  }
}

TEST_F(StreamCallTest, AnAbandonedReaderEndsWithOrWithoutUnreadMessages) {
  for (const uint32_t messages : {1, 100}) {
    auto reader = std::make_shared<StreamReader>(Messages(messages, true));
    reader->Start(*stub_);
    ASSERT_TRUE(std::holds_alternative<v1::GenerateResponse>(reader->Take(absl::InfiniteDuration())));
    reader->Abandon();
    const std::weak_ptr<StreamReader> call = reader;
    reader.reset();
    EXPECT_TRUE(testing::Eventually([&] { return call.expired(); }));
  }
  EXPECT_TRUE(writer_.AwaitEnds(2));
}

}  // namespace
}  // namespace bfio::client
