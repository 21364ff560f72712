// Workers' offers of tokenizers: which ones are accepted, and the errors for invalid ones.
#include "router/worker_link/tokenizer_upload.h"

#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "bfio/v1/worker.grpc.pb.h"
#include "common/net/status.h"
#include "common/net/tsan_edge.h"
#include "router/worker_link/worker_link_service.h"
#include "tests/testing/loopback_server.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Invites every worker into an epoch.
class Workers final : public WorkerHandler {
 public:
  void OnWorkerEvent(std::shared_ptr<WorkerChannel> channel, WorkerEvent event) override {
    if (std::holds_alternative<WorkerHello>(event)) channel->SendEpoch({});
    channel->Consumed();
  }
  core::RequestId NextId() override { return 0; }
};

constexpr uint64_t kInstance = 7;
const std::string kModel(64, 'a');

v1::TokenizerPart Part(const std::string& file, const std::string& data) {
  v1::TokenizerPart part;
  part.set_file(file);
  part.set_data(data);
  return part;
}

class TokenizerUploadTest : public ::testing::Test {
 protected:
  TokenizerUploadTest() { Attach(); }
  ~TokenizerUploadTest() override { Detach(); }
  // Attaches the worker; it is in a group once it has been sent an epoch.
  void Attach() {
    stream_ = stub_->Attach(&context_);
    v1::WorkerMessage message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_worker_id(worker_id_);
    hello.set_slots(1);
    hello.set_kv_tokens(10);
    hello.set_max_sequence_tokens(10);
    hello.set_worker_instance(kInstance);
    hello.set_model(kModel);
    stream_->Write(message);
    v1::RouterMessage sent;
    EXPECT_TRUE(stream_->Read(&sent));
    EXPECT_TRUE(sent.has_epoch());
  }
  void Detach() {
    if (stream_ == nullptr) return;
    stream_->WritesDone();
    stream_->Finish();
    stream_.reset();
  }
  // Sends the parts; the first states their total size, or `total` instead.
  absl::Status Send(std::vector<v1::TokenizerPart> parts, std::optional<uint64_t> total = std::nullopt) {
    uint64_t bytes = 0;
    for (const v1::TokenizerPart& part : parts) bytes += part.data().size();
    parts[0].set_total_bytes(total.value_or(bytes));
    parts[0].set_directory("/models/a");
    parts[0].set_worker_id(worker_id_);
    parts[0].set_worker_instance(instance_);
    grpc::ClientContext context;
    v1::TokenizerReceipt receipt;
    GrpcHandOver(this);
    const auto writer = stub_->OfferTokenizer(&context, &receipt);
    for (const v1::TokenizerPart& part : parts) {
      if (!writer->Write(part)) break;
    }
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    GrpcTakeOver(this);
    return FromGrpcStatus(status);
  }
  TokenizerReceiver Receiver() {
    return {[this](const std::string& model) {
              GrpcTakeOver(this);
              EXPECT_EQ(model, kModel);
              ++asked_;
              return wanted_;
            },
            [this](const std::string&, std::string directory, TokenizerFiles files,
                   std::function<void(const absl::Status&)> done) {
              GrpcTakeOver(this);
              directory_ = std::move(directory);
              files_ = std::move(files);
              GrpcHandOver(this);
              done(verdict_);
            }};
  }

  std::string worker_id_ = "w0";
  uint64_t instance_ = kInstance;
  bool wanted_ = true;
  std::atomic<int64_t> asked_ = 0;
  absl::Status verdict_;
  std::string directory_;
  TokenizerFiles files_;
  Workers workers_;
  WorkerLinkService service_{&workers_, false, RequestLimits(), nullptr, {}, Receiver()};
  testing::LoopbackServer server_{&service_};
  const std::unique_ptr<v1::WorkerLink::Stub> stub_ = v1::WorkerLink::NewStub(server_.channel());
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::RouterMessage>> stream_;
};

TEST_F(TokenizerUploadTest, OnlyAnAttachedWorkerIsHeard) {
  const std::vector<v1::TokenizerPart> parts = {Part("tokenizer.json", "abc")};
  for (const auto& [worker_id, instance] :
       {std::pair("another", kInstance), {"w0", kInstance + 1}, {"w0", uint64_t{0}}, {"", uint64_t{0}}}) {
    worker_id_ = worker_id;
    instance_ = instance;
    EXPECT_TRUE(absl::IsFailedPrecondition(Send(parts))) << worker_id << " " << instance;
  }
  worker_id_ = "w0";
  instance_ = kInstance;
  EXPECT_EQ(asked_, 0);
  EXPECT_TRUE(Send(parts).ok());
  Detach();
  while (Send(parts).ok()) std::this_thread::yield();
  EXPECT_TRUE(absl::IsFailedPrecondition(Send(parts))) << "it has left";
}

TEST_F(TokenizerUploadTest, FilesArePutTogetherFromTheirParts) {
  EXPECT_TRUE(
      Send({Part("config.json", "{}"), Part("tokenizer.json", "abc"), Part("tokenizer.json", "def")}).ok());
  EXPECT_EQ(directory_, "/models/a");
  EXPECT_THAT(files_, ElementsAre(Pair("config.json", "{}"), Pair("tokenizer.json", "abcdef")));
}

TEST_F(TokenizerUploadTest, UnneededFilesAreNotReceived) {
  wanted_ = false;
  // More than the connection's window holds: the call ends before everything is sent.
  const std::string data(size_t{1} << 20, 'x');
  EXPECT_TRUE(Send(std::vector(20, Part("tokenizer.json", data))).ok());
  EXPECT_THAT(files_, IsEmpty());
}

TEST_F(TokenizerUploadTest, TheReceiversVerdictIsTheStatus) {
  verdict_ = absl::InvalidArgumentError("config.json is not a JSON object");
  const absl::Status status = Send({Part("tokenizer.json", "x")});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("not a JSON object"));
}

TEST_F(TokenizerUploadTest, OtherFilesAndUntrueSizesAreRefused) {
  const auto part = Part("tokenizer.json", "xyz");
  for (const char* name : {"model.safetensors", "../tokenizer.json", "/etc/tokenizer.model", "a/b.jinja"})
    EXPECT_TRUE(absl::IsInvalidArgument(Send({Part(name, "x")}))) << name;
  EXPECT_TRUE(absl::IsInvalidArgument(Send({part, Part("config.json", "x"), part}))) << "a file comes twice";
  // None, more than allowed, fewer and more than come.
  for (const uint64_t total :
       {uint64_t{0}, uint64_t{kMaxOfferedTokenizerBytes} + 1, uint64_t{2}, uint64_t{4}})
    EXPECT_TRUE(absl::IsInvalidArgument(Send({part}, total))) << total;
  EXPECT_THAT(files_, IsEmpty());
  EXPECT_TRUE(Send({part}, 3).ok());
}

TEST_F(TokenizerUploadTest, AnAddressMaySendItsShareAtOnce) {
  struct Open {
    grpc::ClientContext context;
    v1::TokenizerReceipt receipt;
    std::unique_ptr<grpc::ClientWriter<v1::TokenizerPart>> writer;
  };
  std::vector<std::unique_ptr<Open>> open;
  constexpr int64_t kShare = TokenizerUpload::kMostAtOnce / 2;
  for (int64_t i = 0; i < kShare; ++i) {
    Open& one = *open.emplace_back(std::make_unique<Open>());
    one.writer = stub_->OfferTokenizer(&one.context, &one.receipt);
    v1::TokenizerPart part = Part("tokenizer.json", "x");
    part.set_total_bytes(2);
    part.set_worker_id(worker_id_);
    part.set_worker_instance(instance_);
    EXPECT_TRUE(one.writer->Write(part));
  }
  while (asked_ < kShare) std::this_thread::yield();
  const absl::Status status = Send({Part("tokenizer.json", "x")});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  for (auto& one : open) {
    one->writer->Write(Part("tokenizer.json", "y"));
    one->writer->WritesDone();
    EXPECT_TRUE(one->writer->Finish().ok());
  }
  GrpcTakeOver(this);
  EXPECT_THAT(files_, ElementsAre(Pair("tokenizer.json", "xy")));
}

}  // namespace
}  // namespace bfio::router
