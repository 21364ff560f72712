// The client of an engine, with servers that are slow, send too much or never end a stream, and a client that
// is destroyed during its calls.
#include "router/engine_link/protocol/protocol_client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/net/bounded_parse.h"
#include "gtest/gtest.h"
#include "router/engine_link/protocol/engine_protocol.h"
#include "tests/testing/engine_protocols.h"
#include "tests/testing/latch.h"
#include "tests/testing/sockets.h"

namespace bfio::router {
namespace {

constexpr absl::Duration kTimeout = absl::Milliseconds(400);

template <typename P>
class ProtocolClientTest : public ::testing::Test {
 public:
  static std::unique_ptr<EngineClient> ClientOf(const std::string& server) {
    const EngineAddress engine = {.server = *ParseAddress(server), .pinned = true};
    return std::is_same_v<P, testing::Vllm> ? NewVllmClient(engine) : NewSglangClient(engine);
  }
  static EngineCall Call() {
    EngineCall call;
    call.prompt = {1};
    call.max_new_tokens = 5;
    return call;
  }

  // A stream of the client that has brought its first message, until it ends.
  class Running {
   public:
    // `passes`: keeps its messages.
    explicit Running(EngineClient& client, bool passes = false) {
      EngineClient::StreamCallbacks callbacks;
      callbacks.on_tokens = [this](const EngineTokens& tokens) {
        kept_.push_back(tokens.message);
        if (!begun_.try_wait()) begun_.count_down();
      };
      callbacks.on_end = [this](absl::StatusOr<EngineEnd> end) {
        ended_ = std::move(end);
        if (!begun_.try_wait()) {
          failed_ = true;
          begun_.count_down();
        }
        done_.count_down();
      };
      EngineCall call = Call();
      call.passed.on = passes;
      stream_ = client.Generate(call, std::nullopt, absl::StrCat("name", reinterpret_cast<uintptr_t>(this)),
                                std::move(callbacks));
    }
    ~Running() {
      stream_->Cancel();
      done_.wait();
    }
    bool Begins() {
      begun_.wait();
      return !failed_;
    }
    bool running() const { return !done_.try_wait(); }
    absl::StatusOr<EngineEnd> End() {
      done_.wait();
      return ended_;
    }

   private:
    testing::Latch begun_{1}, done_{1};
    std::vector<PassedPtr> kept_;
    // It has ended before its first message.
    bool failed_ = false;
    absl::StatusOr<EngineEnd> ended_ = absl::UnknownError("");
    std::shared_ptr<EngineStream> stream_;
  };

  // Takes half of the timeout for each answer. Generate sends one message, and leaves the stream open; or it
  // is refused, while `refusal_bytes` is set, with a text of that length. `model_bytes`: of the model's name,
  // which comes at once.
  class Engine final : public P::Service::Service {
   public:
    std::atomic<size_t> refusal_bytes = 0, model_bytes = 0;

    explicit Engine(typename P::GenerateResponse response = {}) : response_(std::move(response)) {
      grpc::ServerBuilder builder;
      builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
      builder.RegisterService(this);
      server_ = builder.BuildAndStart();
    }
    ~Engine() override {
      closed_.count_down();
      server_->Shutdown();
    }
    std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

    // Makes a call; returns its end.
    absl::StatusOr<EngineEnd> End() {
      const std::unique_ptr<EngineClient> client = ClientOf(address());
      return Running(*client).End();
    }

   private:
    using Status = grpc::Status;
    using Context = grpc::ServerContext;
    Status Late() {
      closed_.wait_for(kTimeout / 2);
      return Status::OK;
    }
    Status GetServerInfo(Context*, const typename P::GetServerInfoRequest*,
                         typename P::GetServerInfoResponse*) override {
      return Late();
    }
    Status GetModelInfo(Context*, const typename P::GetModelInfoRequest*,
                        typename P::GetModelInfoResponse* model) override {
      model->set_served_model_name(std::string(model_bytes, 'x'));
      return model_bytes > 0 ? Status::OK : Late();
    }
    Status GetLoads(Context*, const typename P::GetLoadsRequest*, typename P::GetLoadsResponse*) override {
      return Late();
    }
    grpc::Status Generate(grpc::ServerContext*, const typename P::GenerateRequest*,
                          grpc::ServerWriter<typename P::GenerateResponse>* writer) override {
      if (const size_t bytes = refusal_bytes; bytes > 0)
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(bytes, 'x'));
      writer->Write(response_);
      closed_.wait();
      return grpc::Status::OK;
    }

    const typename P::GenerateResponse response_;
    testing::Latch closed_{1};
    int port_ = 0;
    std::unique_ptr<grpc::Server> server_;
  };
};
TYPED_TEST_SUITE(ProtocolClientTest, testing::EngineProtocols, testing::ProtocolNames);

// A description takes three calls; the timeout is that of all of them.
TYPED_TEST(ProtocolClientTest, ADescriptionTakesNoLongerThanItsTimeout) {
  typename TestFixture::Engine engine;
  const std::unique_ptr<EngineClient> client = this->ClientOf(engine.address());
  testing::Latch done{1};
  absl::StatusOr<EngineDescription> described = absl::UnknownError("");
  client->Describe(kTimeout, [&](absl::StatusOr<EngineDescription> description) {
    described = std::move(description);
    done.count_down();
  });
  done.wait();
  EXPECT_EQ(described.status().code(), absl::StatusCode::kDeadlineExceeded) << described.status();
}

TYPED_TEST(ProtocolClientTest, AnOutputEndsWithItsLastMessageAndNotWithItsStream) {
  typename TypeParam::GenerateResponse last;
  last.mutable_complete()->set_finish_reason("stop");
  const absl::StatusOr<EngineEnd> end = typename TestFixture::Engine(std::move(last)).End();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->finish, EngineFinish::kStop);
}

// gRPC's own RESOURCE_EXHAUSTED must not look like a full engine: the request would be placed forever.
TYPED_TEST(ProtocolClientTest, AResponseThatIsTooLargeIsNotResourceExhausted) {
  typename TypeParam::GenerateResponse large;
  large.mutable_complete()->set_finish_reason(std::string((8 << 20) + 1, 'x'));
  EXPECT_EQ(typename TestFixture::Engine(std::move(large)).End().status().code(),
            absl::StatusCode::kOutOfRange);
}

// gRPC's default bound of a refusal, 8 KiB, is one of the connection: its other calls would end, too.
TYPED_TEST(ProtocolClientTest, ALongRefusalEndsOnlyItsCallAndIsCut) {
  typename TypeParam::GenerateResponse tokens;
  tokens.mutable_chunk()->add_token_ids(7);
  tokens.mutable_chunk()->set_completion_tokens(1);
  typename TestFixture::Engine engine(std::move(tokens));
  const std::unique_ptr<EngineClient> client = this->ClientOf(engine.address());
  typename TestFixture::Running other(*client);
  ASSERT_TRUE(other.Begins());
  for (const size_t bytes : {size_t{9000}, (size_t{1} << 20) - 1000}) {
    engine.refusal_bytes = bytes;
    const absl::Status refused = typename TestFixture::Running(*client).End().status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << bytes;
    EXPECT_LT(refused.message().size(), 2000u) << bytes;
    engine.refusal_bytes = 0;
    EXPECT_TRUE(typename TestFixture::Running(*client).Begins()) << "the same connection";
    EXPECT_TRUE(other.running()) << bytes;
  }
}

// gRPC 1.51 would abort the process.
TYPED_TEST(ProtocolClientTest, AConnectionMayEndWithinHeaders) {
  const int listener = testing::BoundTo("127.0.0.1:0");
  ASSERT_EQ(listen(listener, 1), 0);
  std::thread server([listener] {
    const int fd = accept(listener, nullptr, nullptr);
    const auto write = [fd](absl::string_view frame) { send(fd, frame.data(), frame.size(), MSG_NOSIGNAL); };
    write({"\0\0\0\4\0\0\0\0\0", 9});
    std::string got;
    char byte;
    while (!absl::StrContains(got, "/Generate") && recv(fd, &byte, 1, 0) == 1) got += byte;
    // :status 200 and a: b, and more to come.
    write({"\0\0\6\1\0\0\0\0\1\x88\0\1a\1b", 15});
    close(fd);
    close(listener);
  });
  const auto client = this->ClientOf(absl::StrCat("127.0.0.1:", testing::PortOf(listener)));
  EXPECT_EQ(typename TestFixture::Running(*client).End().status().code(), absl::StatusCode::kUnavailable);
  server.join();
}

// 2 bytes each on the wire, and 100 in memory.
TYPED_TEST(ProtocolClientTest, AMessageOfTooManyPartsEndsItsCall) {
  typename TypeParam::GenerateResponse tokens;
  auto& parts = *tokens.mutable_chunk()->mutable_output_logprobs()->mutable_top_logprobs();
  while (parts.size() < kMaxMessageParts) parts.Add();
  EXPECT_EQ(typename TestFixture::Engine(std::move(tokens)).End().status().code(),
            absl::StatusCode::kDataLoss);
}

// Only messages with log-probabilities, of calls that pass, are large.
TYPED_TEST(ProtocolClientTest, AMessageHasABoundByItsKind) {
  typename TypeParam::GenerateResponse last;
  last.mutable_complete()->set_finish_reason(std::string(2 << 20, 'x'));
  typename TestFixture::Engine engine(std::move(last));
  const std::unique_ptr<EngineClient> client = this->ClientOf(engine.address());
  EXPECT_EQ(typename TestFixture::Running(*client).End().status().code(), absl::StatusCode::kDataLoss);
  engine.model_bytes = 2 << 20;
  testing::Latch done{1};
  absl::Status described;
  client->Describe(absl::Seconds(60), [&](const absl::StatusOr<EngineDescription>& description) {
    described = description.status();
    done.count_down();
  });
  done.wait();
  EXPECT_EQ(described.code(), absl::StatusCode::kDataLoss) << described;
}

TYPED_TEST(ProtocolClientTest, LargeMessagesThatAreKeptHaveABoundTogether) {
  typename TypeParam::GenerateResponse tokens;
  tokens.mutable_chunk()->add_token_ids(7);
  tokens.mutable_chunk()->set_completion_tokens(1);
  for (int i = 0; i < 1 << 18; ++i) tokens.mutable_chunk()->mutable_output_logprobs()->add_token_logprobs(-1);
  typename TestFixture::Engine engine(std::move(tokens));
  const std::unique_ptr<EngineClient> client = this->ClientOf(engine.address());
  std::vector<std::unique_ptr<typename TestFixture::Running>> streams;
  const auto begins = [&] {
    streams.push_back(std::make_unique<typename TestFixture::Running>(*client, /*passes=*/true));
    return streams.back()->Begins();
  };
  while (begins()) ASSERT_LT(streams.size(), 32u) << "of 1 MiB each";
  EXPECT_EQ(streams.back()->End().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(streams.front()->running());
  streams.clear();
  EXPECT_TRUE(begins());
}

TYPED_TEST(ProtocolClientTest, AProxyOfTheEnvironmentDoesNotHideTheEngine) {
  for (const char* name : {"no_proxy", "no_grpc_proxy"}) unsetenv(name);
  for (const char* name : {"http_proxy", "https_proxy", "grpc_proxy"}) setenv(name, "http://127.0.0.1:1", 1);
  typename TypeParam::GenerateResponse last;
  last.mutable_complete()->set_finish_reason("stop");
  const absl::Status status = typename TestFixture::Engine(std::move(last)).End().status();
  for (const char* name : {"http_proxy", "https_proxy", "grpc_proxy"}) unsetenv(name);
  EXPECT_TRUE(status.ok()) << status;
}

// The callbacks of calls are then the last to need the channel, which is the last of the process; gRPC's
// threads, on which they run, would wait for themselves if they destroyed it.
TYPED_TEST(ProtocolClientTest, AClientMayBeDestroyedDuringItsCalls) {
  for (int i = 0; i < 1000; ++i) {
    testing::Latch ended{4};
    // Nothing listens there: calls end soon.
    std::unique_ptr<EngineClient> client = this->ClientOf("127.0.0.1:1");
    EngineClient::StreamCallbacks outputs;
    outputs.on_tokens = [](const EngineTokens&) {};
    outputs.on_end = [&](const auto&) { ended.count_down(); };
    auto stream = client->Generate(this->Call(), std::nullopt, "name", std::move(outputs));
    auto records =
        client->Subscribe({.on_records = [] {}, .on_end = [&](const auto&) { ended.count_down(); }});
    client->Describe(absl::Seconds(60), [&](const auto&) { ended.count_down(); });
    client->CheckHealth(absl::Seconds(60), [&](const auto&) { ended.count_down(); });
    if (i % 2 == 0) stream->Cancel();
    stream.reset();
    records.reset();
    client.reset();
    ended.wait();
  }
}

TEST(EngineFinishTest, ATextIsNoReason) {
  EXPECT_EQ(EngineFinishOf("repetition"), EngineFinish::kStop);
  EXPECT_EQ(EngineFinishOf(std::string(100 << 10, 'x')), EngineFinish::kError);
  EXPECT_EQ(EngineFinishOf(""), EngineFinish::kError);
}

}  // namespace
}  // namespace bfio::router
