#include "common/net/stream_writer.h"

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/net/call_service.h"
#include "gtest/gtest.h"
#include "tests/testing/loopback_server.h"

namespace bfio {
namespace {

constexpr size_t kBig = testing::LoopbackServer::kBig;

// Writes numbers in the order in which they are queued, each with a payload of the given size.
class NumberStream final : public StreamWriter {
 public:
  enum class WhenBroken { kEnd, kWaitForCancel };

  static std::shared_ptr<NumberStream> Create(grpc::CallbackServerContext* context,
                                              WhenBroken when_broken = WhenBroken::kEnd) {
    std::shared_ptr<NumberStream> stream(new NumberStream(context, when_broken));
    stream->Open(stream);
    return stream;
  }

  void Queue(uint32_t number, size_t bytes = 0) {
    MutexLock lock(&mutex_);
    queue_.emplace_back(number, bytes);
    Advance();
  }
  bool End(grpc::Status status) {
    MutexLock lock(&mutex_);
    const bool first = SetEnd(std::move(status));
    Advance();
    return first;
  }
  absl::Duration UntakenAt(absl::Time now) {
    MutexLock lock(&mutex_);
    return Untaken(now);
  }
  // Sets the time from which the writes of the next messages count as begun.
  void BeginAt(absl::Time time) {
    MutexLock lock(&mutex_);
    begin_ = time;
  }
  bool Writing() {
    MutexLock lock(&mutex_);
    return writing();
  }
  bool Finished() {
    MutexLock lock(&mutex_);
    return finished();
  }
  int Pulled() {
    MutexLock lock(&mutex_);
    return pulled_;
  }
  bool Gone() {
    MutexLock lock(&mutex_);
    return gone_;
  }
  void AwaitGone() {
    MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&gone_));
  }

 private:
  NumberStream(grpc::CallbackServerContext* context, WhenBroken when_broken)
      : StreamWriter(context), when_broken_(when_broken) {}

  bool NextBytes(grpc::ByteBuffer& bytes) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    EXPECT_FALSE(writing() || broken() || finished());
    if (queue_.empty()) return false;
    v1::GenerateResponse message;
    message.set_first_index(queue_.front().first);
    message.set_request_id(std::string(queue_.front().second, 'x'));
    queue_.pop_front();
    ++pulled_;
    if (begin_) CountFrom(*begin_);
    const grpc::Slice slice(message.SerializeAsString());
    bytes = grpc::ByteBuffer(&slice, 1);
    return true;
  }
  void OnBroken() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (when_broken_ == WhenBroken::kEnd) StreamWriter::OnBroken();
  }
  void OnGone() override {
    MutexLock lock(&mutex_);
    gone_ = true;
  }

  const WhenBroken when_broken_;
  std::deque<std::pair<uint32_t, size_t>> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Time> begin_ ABSL_GUARDED_BY(mutex_);
  int pulled_ ABSL_GUARDED_BY(mutex_) = 0;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
};

// --- without a call: the test calls the reactions as gRPC would ---

class UnboundStream : public ::testing::Test {
 protected:
  // OnDone is gRPC's last reaction; until then the stream owns itself.
  ~UnboundStream() override { stream_->OnDone(); }

  std::shared_ptr<NumberStream> stream_ = NumberStream::Create(nullptr);
};

TEST_F(UnboundStream, PullsTheNextMessageWhenTheLastIsWrittenAndThenFinishes) {
  EXPECT_FALSE(stream_->BreakOffIfStuck(absl::UnixEpoch(), absl::ZeroDuration())) << "there is no context";
  for (uint32_t number = 0; number < 3; ++number) stream_->Queue(number);
  for (int pulled = 1; pulled <= 3; ++pulled) {
    EXPECT_EQ(stream_->Pulled(), pulled);
    stream_->OnWriteDone(true);
  }
  EXPECT_FALSE(stream_->Writing());
  stream_->Queue(3);
  EXPECT_TRUE(stream_->End(grpc::Status::OK));
  EXPECT_FALSE(stream_->End(grpc::Status::CANCELLED));
  EXPECT_FALSE(stream_->Finished());
  stream_->OnWriteDone(true);
  EXPECT_TRUE(stream_->Finished());
}

TEST_F(UnboundStream, AFailedOrCancelledWriteEndsTheStream) {
  stream_->Queue(0);
  stream_->Queue(1);
  stream_->OnCancel();
  EXPECT_FALSE(stream_->Finished());
  stream_->OnWriteDone(true);
  EXPECT_TRUE(stream_->Finished());
  EXPECT_EQ(stream_->Pulled(), 1);
  const auto broken = NumberStream::Create(nullptr);
  broken->Queue(0);
  broken->Queue(1);
  broken->OnWriteDone(false);
  EXPECT_TRUE(broken->Finished());
  EXPECT_EQ(broken->Pulled(), 1);
  broken->OnDone();
}

TEST_F(UnboundStream, UntakenCountsFromTheFirstQueryDuringAWrite) {
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(stream_->UntakenAt(start), absl::ZeroDuration());
  stream_->Queue(0);
  stream_->Queue(1);
  EXPECT_EQ(stream_->UntakenAt(start + absl::Seconds(5)), absl::ZeroDuration());
  EXPECT_EQ(stream_->UntakenAt(start + absl::Seconds(8)), absl::Seconds(3));
  stream_->OnWriteDone(true);
  EXPECT_EQ(stream_->UntakenAt(start + absl::Seconds(9)), absl::ZeroDuration());
  EXPECT_EQ(stream_->UntakenAt(start + absl::Seconds(10)), absl::Seconds(1));
  stream_->OnWriteDone(true);
  EXPECT_EQ(stream_->UntakenAt(start + absl::Seconds(11)), absl::ZeroDuration());
  stream_->BeginAt(start + absl::Seconds(11));  // as the source reports
  stream_->Queue(2);
  EXPECT_EQ(stream_->UntakenAt(start + absl::Seconds(16)), absl::Seconds(5));
}

TEST(UnboundStreamTest, ABrokenStreamMayWaitForItsOwnerToEndIt) {
  const auto stream = NumberStream::Create(nullptr, NumberStream::WhenBroken::kWaitForCancel);
  stream->Queue(0);
  stream->OnWriteDone(false);
  stream->Queue(1);
  EXPECT_FALSE(stream->Finished());
  EXPECT_TRUE(stream->End(grpc::Status::OK));
  EXPECT_TRUE(stream->Finished());
  EXPECT_EQ(stream->Pulled(), 1);
  stream->OnDone();
}

// --- over real calls on loopback ---

class NumberService final : public CallService {
 public:
  NumberService() {
    Add("/bfio.v1.Inference/Generate", [this](grpc::CallbackServerContext* context) {
      const auto name = context->client_metadata().find("name")->second;
      auto stream = NumberStream::Create(context);
      MutexLock lock(&mutex_);
      streams_.emplace(std::string(name.data(), name.size()), stream);
      return stream.get();
    });
  }

  // Waits for the call with this name. Returns its stream.
  std::shared_ptr<NumberStream> Take(const std::string& name) {
    MutexLock lock(&mutex_);
    const auto arrived = [&] { return streams_.contains(name); };
    mutex_.Await(absl::Condition(&arrived));
    return std::move(streams_.extract(name).mapped());
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<NumberStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

struct Call {
  explicit Call(v1::Inference::Stub& stub, const std::string& name) {
    context.AddMetadata("name", name);
    reader = stub.Generate(&context, {});
  }

  // Reads at most `limit` numbers; fewer when the stream ends.
  std::vector<uint32_t> Read(size_t limit = SIZE_MAX) {
    std::vector<uint32_t> numbers;
    v1::GenerateResponse message;
    while (numbers.size() < limit && reader->Read(&message)) numbers.push_back(message.first_index());
    return numbers;
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
};

class StreamWriterServer : public ::testing::Test {
 protected:
  NumberService service_;
  testing::LoopbackServer server_{&service_};
  std::unique_ptr<v1::Inference::Stub> stub_ = v1::Inference::NewStub(server_.channel());
};
class StreamWriterCalls : public StreamWriterServer {
 protected:
  Call call_{*stub_, "call"};
  std::shared_ptr<NumberStream> stream_ = service_.Take("call");
};

TEST_F(StreamWriterCalls, MessagesForASlowReaderStayWithTheSource) {
  for (uint32_t number = 0; number < 4; ++number) stream_->Queue(number, kBig);
  EXPECT_EQ(stream_->Pulled(), 1);
  EXPECT_EQ(call_.Read(1), std::vector<uint32_t>{0});
  EXPECT_LE(stream_->Pulled(), 2);
  stream_->End(grpc::Status::OK);
  EXPECT_EQ(call_.Read(), (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_TRUE(call_.reader->Finish().ok());
}

TEST_F(StreamWriterCalls, AnIdleCallEndsWhenItIsCancelled) {
  call_.context.TryCancel();
  stream_->AwaitGone();
}

TEST_F(StreamWriterCalls, AStuckCallIsBrokenOffAfterTheTimeout) {
  const absl::Time start = absl::UnixEpoch();
  const absl::Duration patience = absl::Seconds(10);
  EXPECT_FALSE(stream_->BreakOffIfStuck(start, absl::ZeroDuration())) << "nothing is being written";
  stream_->Queue(0, kBig);
  EXPECT_FALSE(stream_->BreakOffIfStuck(start, patience));
  EXPECT_FALSE(stream_->BreakOffIfStuck(start + absl::Seconds(9), patience));
  EXPECT_TRUE(stream_->BreakOffIfStuck(start + patience, patience));
  EXPECT_EQ(call_.Read(), std::vector<uint32_t>());
  EXPECT_EQ(call_.reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  stream_->AwaitGone();
  EXPECT_FALSE(stream_->BreakOffIfStuck(start + 2 * patience, patience)) << "the context is gone";
}

// What happens in one random call.
struct Script {
  explicit Script(std::mt19937& random) {
    const auto draw = [&](uint32_t below) { return static_cast<uint32_t>(random() % below); };
    messages = draw(8);
    bytes = draw(4) == 0 ? kBig / 4 : draw(100);
    code = static_cast<grpc::StatusCode>(draw(17));
    if (draw(4) == 0) cancel_after = draw(8);
    break_off = draw(4) == 0;
    end_by_other = draw(2) == 0;
  }

  uint32_t messages;
  size_t bytes;
  grpc::StatusCode code;
  // The client cancels once it has read this many numbers.
  std::optional<uint32_t> cancel_after;
  // The client stops reading after the first message until one of the threads that try to break the call off
  // has succeeded, or the call is over.
  bool break_off;
  bool end_by_other;
};

// The server's side: threads that race for the stream.
void Serve(const std::shared_ptr<NumberStream>& stream, const Script& script, std::atomic<bool>& read_on) {
  std::vector<std::thread> others;
  const auto break_off = [&] {
    while (!stream->Gone() && !read_on) {
      if (stream->BreakOffIfStuck(MonotonicNow(), absl::ZeroDuration())) read_on = true;
      std::this_thread::yield();
    }
    read_on = true;
  };
  if (script.break_off) {
    others.emplace_back(break_off);
    others.emplace_back(break_off);
  }
  for (uint32_t number = 0; number < script.messages; ++number) stream->Queue(number, script.bytes);
  const auto end = [&] { stream->End({script.code, "the end"}); };
  if (script.end_by_other) {
    others.emplace_back(end);
  } else {
    end();
  }
  for (std::thread& other : others) other.join();
}

TEST_F(StreamWriterServer, RandomCallsEndWithEveryMessageAndTheStatusOrCancelled) {
  const unsigned seed = std::random_device{}();
  constexpr int kThreads = 4, kCallsEach = 750;
  std::atomic<int> complete = 0, cut = 0;
  const auto client = [&](int thread) {
    std::mt19937 random(seed + static_cast<unsigned>(thread));
    for (int i = 0; i < kCallsEach; ++i) {
      const std::string name = absl::StrCat("seed ", seed, ", thread ", thread, ", call ", i);
      SCOPED_TRACE(name);
      const Script script(random);
      Call call(*stub_, name);
      std::shared_ptr<NumberStream> stream = service_.Take(name);
      std::atomic<bool> read_on = false;
      std::thread server([&] { Serve(stream, script, read_on); });
      std::vector<uint32_t> numbers;
      if (script.cancel_after) {
        numbers = call.Read(*script.cancel_after);
        call.context.TryCancel();
      } else if (script.break_off) {
        numbers = call.Read(1);
        while (!read_on) std::this_thread::yield();
      }
      const std::vector<uint32_t> rest = call.Read();
      numbers.insert(numbers.end(), rest.begin(), rest.end());
      const grpc::Status status = call.reader->Finish();
      server.join();
      stream->AwaitGone();
      EXPECT_FALSE(stream->End(grpc::Status::OK));

      ASSERT_LE(numbers.size(), script.messages);
      for (uint32_t n = 0; n < numbers.size(); ++n) ASSERT_EQ(numbers[n], n);
      const bool whole = status.error_code() == script.code && numbers.size() == script.messages;
      const bool may_be_cut = script.cancel_after || script.break_off;
      ASSERT_TRUE(whole || (may_be_cut && status.error_code() == grpc::StatusCode::CANCELLED))
          << status.error_code() << " after " << numbers.size() << " of " << script.messages;
      ++(whole ? complete : cut);

      const std::weak_ptr<NumberStream> weak = std::exchange(stream, nullptr);
      while (!weak.expired()) std::this_thread::yield();  // until OnDone returns
    }
  };
  std::vector<std::thread> clients;
  for (int thread = 0; thread < kThreads; ++thread) clients.emplace_back(client, thread);
  for (std::thread& one : clients) one.join();
  if (HasFatalFailure()) return;
  EXPECT_EQ(complete + cut, kThreads * kCallsEach);
  EXPECT_GT(complete, 0);
  EXPECT_GT(cut, 0);
}

}  // namespace
}  // namespace bfio
