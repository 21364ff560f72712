// The streams between the servers of a chain, over real gRPC on loopback, with peers that violate the
// protocol.
#include <chrono>

#include "absl/strings/str_cat.h"
#include "bfio/v1/pipeline.grpc.pb.h"
#include "chains/worker/convert_batch.h"
#include "chains/worker/pass_outlet.h"
#include "chains/worker/pass_service.h"
#include "common/base/mutex.h"
#include "common/net/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

MicroBatch SomeBatch(uint64_t number) {
  MicroBatch batch;
  batch.number = number;
  batch.plan.Clear();
  batch.plan.AddRun(0, 30, {1, 2}, {0, 3}, true);
  batch.plan.AddRun(1, 0, {1}, {2}, true);
  batch.hidden.assign(3 * 4, 0.5F + static_cast<float>(number));
  return batch;
}

// --- the messages ---

TEST(ConvertBatchTest, ABatchSurvivesTheRoundTrip) {
  const MicroBatch batch = SomeBatch(7);
  v1::Activations message;
  ToProto(batch, message);
  const auto back = FromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->number, 7u);
  EXPECT_EQ(back->hidden, batch.hidden);
  EXPECT_EQ(back->plan.positions, batch.plan.positions);
  EXPECT_EQ(back->plan.row_runs, batch.plan.row_runs);
  EXPECT_EQ(back->plan.run_rows, batch.plan.run_rows);
  EXPECT_EQ(back->plan.run_pages, batch.plan.run_pages);
  EXPECT_EQ(back->plan.pages, batch.plan.pages);
  EXPECT_EQ(back->plan.logit_rows, batch.plan.logit_rows);
}

TEST(ConvertBatchTest, InconsistentBatchesAreRefused) {
  v1::Activations good;
  ToProto(SomeBatch(1), good);
  const std::vector<std::pair<std::string, std::function<void(v1::Activations&)>>> faults = {
      {"not a multiple of 4", [](auto& m) { m.set_hidden("abc"); }},
      {"elements", [](auto& m) { m.add_run_rows(1); }},
      {"run_rows has more rows than hidden has values", [](auto& m) { m.set_run_rows(0, 4000000000U); }},
      {"run_positions[0]", [](auto& m) { m.set_run_positions(0, 4000000000U); }},
      {"run_pages counts more pages", [](auto& m) { m.set_run_pages(1, 4000000000U); }},
      {"pages has more pages", [](auto& m) { m.add_pages(1); }},
      {"pages[0]", [](auto& m) { m.set_pages(0, 4000000000U); }},
      {"wanted_rows has row 3, which must be below 3", [](auto& m) { m.set_wanted_rows(0, 3); }},
  };
  for (const auto& [what, spoil] : faults) {
    v1::Activations message = good;
    spoil(message);
    const auto batch = FromProto(message);
    EXPECT_TRUE(absl::IsInvalidArgument(batch.status())) << what;
    EXPECT_THAT(std::string(batch.status().message()), HasSubstr(what));
  }
}

// Found by fuzz_activations: memcpy from and to null pointers.
TEST(ConvertBatchTest, AnEmptyMessageIsABatchWithoutRows) {
  const auto batch = FromProto(v1::Activations());
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->plan.rows(), 0);
  EXPECT_FALSE(CheckMicroBatch(*batch, {2, 8, 6, 16, 16}).ok()) << "it is not run";
}

// --- the streams ---

// Collects the micro-batches that arrive.
class Collector final : public Inlet {
 public:
  absl::Status Take(MicroBatch batch) override {
    MutexLock lock(&mutex_);
    numbers_.push_back(batch.number);
    return absl::OkStatus();
  }
  void OnLost(const absl::Status& why) override {
    MutexLock lock(&mutex_);
    lost_ = why;
  }
  bool AwaitNumbers(size_t count) {
    MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return numbers_.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(30));
  }
  absl::Status AwaitLost() {
    MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !lost_.ok(); };
    mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(30));
    return lost_;
  }
  std::vector<uint64_t> numbers() {
    MutexLock lock(&mutex_);
    return numbers_;
  }

 private:
  Mutex mutex_;
  std::vector<uint64_t> numbers_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

class PassTest : public ::testing::Test {
 protected:
  PassTest() {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    builder.SetMaxReceiveMessageSize(kMaxPassBytes);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    service_.set_on_accepted([this](const std::string& peer) {
      EXPECT_THAT(peer, ::testing::StartsWith("ipv4:127.0.0.1:"));
      ++accepted_;
    });
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
    service_.Register(5, 2, &inlet_);
  }
  ~PassTest() override {
    service_.Unregister(5);
    server_->Shutdown(std::chrono::system_clock::now());
  }

  std::unique_ptr<PassOutlet> Outlet(uint64_t chain = 5, uint32_t stage = 2) {
    return std::make_unique<PassOutlet>(PassTarget{address_, chain, stage}, nullptr,
                                        [this](const absl::Status& why) { lost_.OnLost(why); });
  }
  // One whose first micro-batch has arrived.
  std::unique_ptr<PassOutlet> Connected() {
    auto outlet = Outlet();
    outlet->Open();
    EXPECT_TRUE(outlet->Send(SomeBatch(1)).ok());
    EXPECT_TRUE(inlet_.AwaitNumbers(1));
    return outlet;
  }
  // The status with which the server ends a stream of these messages; a stream that the server leaves open is
  // half-closed.
  grpc::Status Say(const std::vector<v1::PassMessage>& messages) {
    const auto stub = v1::Pipeline::NewStub(NewChannel(address_));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const auto stream = stub->Pass(&context);
    for (const v1::PassMessage& message : messages) stream->Write(message);
    stream->WritesDone();
    return stream->Finish();
  }
  static v1::PassMessage Open(uint64_t chain, uint32_t stage) {
    v1::PassMessage message;
    message.mutable_open()->set_chain(chain);
    message.mutable_open()->set_stage(stage);
    return message;
  }

  Collector inlet_, lost_;
  std::atomic<int> accepted_{0};
  PassService service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(PassTest, MicroBatchesArriveInOrderEvenIfSentBeforeTheStream) {
  const auto outlet = Outlet();
  for (uint64_t i = 1; i <= 10; ++i) ASSERT_TRUE(outlet->Send(SomeBatch(i)).ok());
  EXPECT_TRUE(inlet_.numbers().empty());
  outlet->Open();
  ASSERT_TRUE(inlet_.AwaitNumbers(10));
  outlet->Open();  // a restarted router may send "start" again
  ASSERT_TRUE(outlet->Send(SomeBatch(11)).ok());
  ASSERT_TRUE(inlet_.AwaitNumbers(11));
  EXPECT_THAT(inlet_.numbers(), ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
}

TEST_F(PassTest, UndeliveredBatchesAreBounded) {
  const auto outlet = Outlet();
  absl::Status status;
  uint64_t sent = 0;
  while ((status = outlet->Send(SomeBatch(sent + 1))).ok()) ++sent;
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(sent, static_cast<uint64_t>(kMaxInFlight));
}

TEST_F(PassTest, ALostPredecessorIsReported) {
  Connected().reset();
  EXPECT_TRUE(absl::IsUnavailable(inlet_.AwaitLost()));
}

TEST_F(PassTest, AChainThatTheReceiverDropsIsReportedToTheSender) {
  const auto outlet = Connected();
  service_.Unregister(5);
  EXPECT_THAT(std::string(lost_.AwaitLost().message()), HasSubstr("the chain has ended"));
  EXPECT_TRUE(absl::IsUnavailable(outlet->Send(SomeBatch(2))));
}

TEST_F(PassTest, AMissingNeighbourIsReported) {
  const auto outlet = std::make_unique<PassOutlet>(PassTarget{"127.0.0.1:1", 5, 2}, nullptr,
                                                   [this](const absl::Status& why) { lost_.OnLost(why); });
  outlet->Open();
  EXPECT_TRUE(absl::IsUnavailable(lost_.AwaitLost()));
}

TEST_F(PassTest, UnauthenticatedPeersAreRefusedAndBreakNothing) {
  const auto outlet = Connected();
  v1::PassMessage batch;
  ToProto(SomeBatch(2), *batch.mutable_activations());
  EXPECT_EQ(Say({Open(6, 2)}).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Say({Open(5, 1)}).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Say({Open(5, 2), batch}).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Say({batch}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Say({v1::PassMessage()}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const int accepted = accepted_;
  EXPECT_EQ(Say({}).error_code(), grpc::StatusCode::OK);
  EXPECT_EQ(accepted_, accepted + 1) << "each call reports its connection";
  ASSERT_TRUE(outlet->Send(SomeBatch(2)).ok());
  ASSERT_TRUE(inlet_.AwaitNumbers(2));
  EXPECT_THAT(inlet_.numbers(), ::testing::ElementsAre(1, 2));
}

TEST_F(PassTest, AnInvalidMessageBreaksOnlyItsChain) {
  v1::PassMessage wrong;
  wrong.mutable_activations()->set_hidden("abc");
  EXPECT_EQ(Say({Open(5, 2), wrong}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(inlet_.AwaitLost().message()), HasSubstr("not a multiple of 4"));
}

}  // namespace
}  // namespace bfio::worker
