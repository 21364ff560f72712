// The client of an engine, with servers that are slow, send too much or never end a stream.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engines/vllm.grpc.pb.h"
#include "gtest/gtest.h"
#include "router/engine_link/vllm/vllm_client.h"

namespace bfio::router {
namespace {

namespace pb = ::vllm::grpc::engine;

constexpr absl::Duration kTimeout = absl::Milliseconds(400);

// A server that takes half of the timeout for each answer.
class SlowEngine final : public pb::VllmEngine::Service {
 public:
  SlowEngine() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~SlowEngine() override { server_->Shutdown(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status GetServerInfo(grpc::ServerContext*, const pb::GetServerInfoRequest*,
                             pb::GetServerInfoResponse*) override {
    absl::SleepFor(kTimeout / 2);
    return grpc::Status::OK;
  }
  grpc::Status GetModelInfo(grpc::ServerContext*, const pb::GetModelInfoRequest*,
                            pb::GetModelInfoResponse*) override {
    absl::SleepFor(kTimeout / 2);
    return grpc::Status::OK;
  }
  grpc::Status GetLoads(grpc::ServerContext*, const pb::GetLoadsRequest*, pb::GetLoadsResponse*) override {
    absl::SleepFor(kTimeout / 2);
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A description takes three calls; the timeout is that of all of them.
TEST(ProtocolClientTest, ADescriptionTakesNoLongerThanItsTimeout) {
  SlowEngine engine;
  const std::unique_ptr<EngineClient> client = vllm::NewVllmClient(engine.address());
  absl::Notification done;
  absl::StatusOr<EngineDescription> described = absl::UnknownError("");
  client->Describe(kTimeout, [&](absl::StatusOr<EngineDescription> description) {
    described = std::move(description);
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(described.status().code(), absl::StatusCode::kDeadlineExceeded) << described.status();
}

// Sends one message, and leaves the stream open.
class OneMessage final : public pb::VllmEngine::Service {
 public:
  explicit OneMessage(pb::GenerateResponse response) : response_(std::move(response)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~OneMessage() override {
    closed_.Notify();
    server_->Shutdown();
  }
  // Makes a call; returns its end.
  absl::StatusOr<EngineEnd> Call() {
    const std::unique_ptr<EngineClient> client = vllm::NewVllmClient(absl::StrCat("127.0.0.1:", port_));
    absl::Notification done;
    absl::StatusOr<EngineEnd> ended = absl::UnknownError("");
    EngineClient::StreamCallbacks callbacks;
    callbacks.on_tokens = [](const EngineTokens&) {};
    callbacks.on_end = [&](absl::StatusOr<EngineEnd> end) {
      ended = std::move(end);
      done.Notify();
    };
    EngineCall call;
    call.prompt = {1};
    call.max_new_tokens = 5;
    const auto stream = client->Generate(call, std::nullopt, "name", std::move(callbacks));
    done.WaitForNotification();
    stream->Cancel();
    // gRPC's threads must not be the ones that destroy the last channel: they would wait for themselves.
    while (stream.use_count() > 1) std::this_thread::yield();
    return ended;
  }

  grpc::Status Generate(grpc::ServerContext*, const pb::GenerateRequest*,
                        grpc::ServerWriter<pb::GenerateResponse>* writer) override {
    writer->Write(response_);
    closed_.WaitForNotification();
    return grpc::Status::OK;
  }

 private:
  const pb::GenerateResponse response_;
  absl::Notification closed_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(ProtocolClientTest, AnOutputEndsWithItsLastMessageAndNotWithItsStream) {
  pb::GenerateResponse last;
  last.mutable_complete()->set_finish_reason("stop");
  OneMessage engine(std::move(last));
  const absl::StatusOr<EngineEnd> end = engine.Call();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->finish, EngineFinish::kStop);
}

// gRPC's own RESOURCE_EXHAUSTED must not look like a full engine: the request would be placed forever.
TEST(ProtocolClientTest, AResponseThatIsTooLargeIsNotResourceExhausted) {
  pb::GenerateResponse large;
  large.mutable_complete()->set_finish_reason(std::string((64 << 20) + 1, 'x'));
  OneMessage engine(std::move(large));
  EXPECT_EQ(engine.Call().status().code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace bfio::router
