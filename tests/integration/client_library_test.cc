// The C++ client library with a real router: refused, killed, disconnected and cancelled requests, and a
// server that violates the API.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/net/status.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wall_clock/wall_clock.h"
#include "tools/client/client.h"

namespace bfio::testing {
namespace {

using client::CallOptions;
using client::Client;
using client::Generated;
using client::Tokens;
using client::TokenStream;

ClusterOptions Options(int workers, double step_s, std::vector<std::string> router_flags = {}) {
  return {.worker_processes = workers,
          .router_flags = std::move(router_flags),
          .worker_flags = {absl::StrCat("--c=", step_s * kSlowdown), "--tl=0", "--slots=4"}};
}

std::unique_ptr<Client> Connect(const std::string& address) {
  auto client = Client::Create({.target = address});
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

v1::GenerateRequest Request(uint32_t output, uint64_t seed = 7) {
  v1::GenerateRequest request = SyntheticRequest(10, output);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

CallOptions Resumable() {
  return {.timeout = kSlowdown * absl::Seconds(60), .resume = true};
}

// Reads until `tokens` tokens have arrived; false if the request ends before that.
bool ReadAsFarAs(TokenStream& stream, uint32_t tokens) {
  while (stream.received() < tokens) {
    const TokenStream::Event event = stream.Next(kSlowdown * absl::Seconds(30));
    if (!std::holds_alternative<Tokens>(event)) return false;
  }
  return true;
}

absl::Status EndOf(TokenStream& stream) {
  for (;;) {
    const TokenStream::Event event = stream.Next();
    if (const auto* status = std::get_if<absl::Status>(&event)) return *status;
    if (std::holds_alternative<v1::Finish>(event)) return absl::OkStatus();
  }
}

uint32_t Active(const v1::ClusterState& state) {
  return state.waiting_requests() + Running(state);
}

// The tokens that the sim engine generates for Request(output, seed) without faults.
std::vector<uint32_t> Undisturbed(uint32_t output, uint64_t seed) {
  Cluster cluster(Options(1, 0.0005));
  const auto result = Connect(cluster.address())->GenerateAll(Request(output, seed));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->token_ids : std::vector<uint32_t>();
}

// The tests share a cluster, and leave no request in it.
class ClientLibraryShared : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = std::make_unique<Cluster>(Options(1, 0.005, {"--client_timeout=600s"}));
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override {
    ASSERT_TRUE(cluster_->ok());
    client_ = Connect(cluster_->address());
    before_ = cluster_->State().requests();
  }
  void TearDown() override { EXPECT_TRUE(cluster_->WaitUntilIdle()); }

  static inline std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
  v1::RequestTotals before_;
};

TEST_F(ClientLibraryShared, GivesEveryTokenOnceAndTheFinish) {
  std::vector<uint32_t> seen;
  const absl::StatusOr<Generated> result =
      client_->GenerateAll(Request(50), {}, [&](uint32_t first_index, absl::Span<const uint32_t> ids) {
        EXPECT_EQ(first_index, seen.size());
        seen.insert(seen.end(), ids.begin(), ids.end());
      });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->token_ids.size(), 50u);
  EXPECT_EQ(result->token_ids, seen);
  EXPECT_EQ(result->finish.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(result->finish.usage().prompt_tokens(), 10u);
  EXPECT_FALSE(result->request_id.empty());
  const auto loads = client_->GetLoads();
  ASSERT_TRUE(loads.ok()) << loads.status();
  EXPECT_EQ(loads->dp_rank_count(), 1u);
  const auto refused = client_->GenerateAll(SyntheticRequest(0, 5));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("prompt_length"), std::string::npos);
}

TEST_F(ClientLibraryShared, CancelEndsARequestForTheRouterToo) {
  const auto stream = client_->Generate(Request(5000));
  const auto resumable = client_->Generate(Request(5000), Resumable());
  ASSERT_TRUE(ReadAsFarAs(*stream, 1));
  ASSERT_TRUE(ReadAsFarAs(*resumable, 1));
  std::thread other([&] {
    absl::SleepFor(absl::Milliseconds(20));
    stream->Cancel();
    resumable->Cancel();
  });
  EXPECT_EQ(EndOf(*stream).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(EndOf(*resumable).code(), absl::StatusCode::kCancelled);
  other.join();
  ASSERT_TRUE(cluster_->WaitFor("both to be gone", [&](const v1::ClusterState& s) {
    return s.requests().cancelled() == before_.cancelled() + 1 &&
           s.requests().aborted() == before_.aborted() + 1 && Active(s) == 0;
  })) << "a resumable one outlives its stream: only an Abort ends it";
  // Includes a stream that is dropped without Cancel.
  {
    const auto third = client_->Generate(Request(5000));
    ASSERT_TRUE(ReadAsFarAs(*third, 1));
  }
  ASSERT_TRUE(cluster_->WaitFor("the third", [&](const v1::ClusterState& s) {
    return s.requests().cancelled() == before_.cancelled() + 2 && Active(s) == 0;
  }));
}

TEST_F(ClientLibraryShared, OnlyRequestsEndedAtTheClientEndAtTheRouter) {
  v1::GenerateRequest request = Request(60000);
  request.set_request_id("same");
  const auto stream = client_->Generate(request, Resumable());
  ASSERT_TRUE(ReadAsFarAs(*stream, 1));
  EXPECT_EQ(client_->GenerateAll(request, Resumable()).status().code(), absl::StatusCode::kAlreadyExists);
  const uint32_t before = stream->received();
  EXPECT_TRUE(ReadAsFarAs(*stream, before + 20)) << "another of the same name is not aborted";
  const auto late =
      client_->GenerateAll(Request(60000), {.timeout = kSlowdown * absl::Milliseconds(300), .resume = true});
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(
      cluster_->WaitFor("the late one's slot", [](const v1::ClusterState& s) { return Active(s) == 1; }));
}

TEST(ClientLibrary, ARefusedRequestIsRetriedAfterTheRetryInfo) {
  Cluster cluster(Options(1, 0.005, {"--max_waiting=1"}));
  ASSERT_TRUE(cluster.ok());
  const auto client = Connect(cluster.address());
  std::vector<std::unique_ptr<TokenStream>> running;
  for (int i = 0; i < 5; ++i) {
    running.push_back(client->Generate(Request(10000)));
    EXPECT_TRUE(i == 4 || ReadAsFarAs(*running.back(), 1));
    if (i == 4) running.back()->Next(absl::ZeroDuration());  // sends the request
  }
  ASSERT_TRUE(cluster.WaitFor(
      "a full pool", [](const v1::ClusterState& s) { return s.waiting_requests() == 1 && Active(s) == 5; }));
  const auto once = client->GenerateAll(Request(5), {.retry = {.max_retries = 0}});
  EXPECT_EQ(once.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(GetRetryDelay(once.status()).has_value());
  const auto patient = client->Generate(Request(5), {.retry = {.max_retries = 1000}});
  while (patient->counts().retries < 1) {
    ASSERT_TRUE(std::holds_alternative<client::StillWaiting>(patient->Next(absl::Milliseconds(20))));
  }
  running.clear();  // cancels them
  EXPECT_TRUE(EndOf(*patient).ok());
  EXPECT_EQ(patient->received(), 5u);
  EXPECT_EQ(cluster.State().requests().completed(), 1u);
  EXPECT_GE(cluster.State().requests().refused_pool_full(), 2u);
}

TEST(ClientLibrary, AResumableRequestSurvivesKillingRouterAndAllWorkers) {
  const std::vector<uint32_t> wanted = Undisturbed(500, 11);
  Cluster cluster(Options(1, 0.005, {absl::StrCat("--restart_settle=", 500 * kSlowdown, "ms")}));
  ASSERT_TRUE(cluster.ok());
  const auto client = Connect(cluster.address());
  const auto plain = client->Generate(Request(5000));
  ASSERT_TRUE(ReadAsFarAs(*plain, 5));
  bool killed = false;
  const auto result = client->GenerateAll(Request(500, 11), Resumable(), [&](uint32_t first_index, auto) {
    if (first_index < 20 || killed) return;
    killed = true;
    cluster.KillRouter();
    cluster.workers()[0].Signal(SIGKILL);
    cluster.StartRouterAgain();
    cluster.StartWorker();
  });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->token_ids, wanted);
  EXPECT_EQ(cluster.State().requests().restarted(), 1u);
  EXPECT_LE(cluster.State().steps().generated_tokens(), 480u) << "those the client has are not made again";
  EXPECT_EQ(EndOf(*plain).code(), absl::StatusCode::kUnavailable) << "it had tokens, and was not resumable";
}

TEST(ClientLibrary, ADeadlineEndsARequestAndAnAbsentRouterIsAwaited) {
  Cluster cluster(Options(1, 0.005));
  ASSERT_TRUE(cluster.ok());
  const auto client = Connect(cluster.address());
  const auto late = client->GenerateAll(Request(50000), {.timeout = absl::Milliseconds(300)});
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  cluster.KillRouter();
  const auto nobody = client->GenerateAll(Request(5), {.retry = {.max_retries = 2}});
  EXPECT_EQ(nobody.status().code(), absl::StatusCode::kUnavailable);
  const auto stream = client->Generate(Request(5), Resumable());
  EXPECT_TRUE(std::holds_alternative<client::StillWaiting>(stream->Next(absl::Milliseconds(200))));
  cluster.StartRouterAgain();
  EXPECT_TRUE(EndOf(*stream).ok());
  EXPECT_EQ(stream->received(), 5u);
}

TEST(ClientLibrary, ShowsCertificateAndToken) {
  const std::string folder = absl::StrCat(TestDirectory(), "/certs");
  MakeCerts(folder, "--workers=w0 --for-tests");
  const std::string token = "acme-token-acme-token";
  std::ofstream(folder + "/tokens") << "acme token:" << token << "\n";
  Process router(
      "bfio_router",
      {"--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--worker_listen=127.0.0.1:0", "--http_listen=",
       absl::StrCat("--client_tls=cert=", folder, "/client-server.crt,key=", folder, "/client-server.key"),
       absl::StrCat("--client_tokens=", folder, "/tokens")});
  ASSERT_TRUE(router.WaitForOutput("waiting for", kSlowdown * absl::Seconds(30))) << router.Stderr();
  const std::string address = AddressAfter("serving on ", router.Stdout());
  const auto code = [&](client::ClientOptions options) {
    options.target = address;
    auto client = Client::Create(options);
    if (!client.ok()) return client.status().code();
    return (*client)->Abort("nobody", "", kSlowdown * absl::Seconds(10)).status().code();
  };
  const TlsFiles tls = {.ca = folder + "/client-ca.crt"};
  EXPECT_EQ(code({.tls = tls, .token = token}), absl::StatusCode::kOk);
  EXPECT_EQ(code({.tls = tls}), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code({.tls = {.ca = folder + "/worker-ca.crt"}, .token = token}), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code({.tls = {.ca = folder + "/nothing"}}), absl::StatusCode::kNotFound);
  EXPECT_EQ(Client::Create({.target = "10.0.0.1:50051", .token = token}).status().code(),
            absl::StatusCode::kInvalidArgument)
      << "a token does not leave the machine in plain text";
}

TEST(ClientLibrary, InvalidHeadersAreRefused) {
  EXPECT_EQ(Client::Create({.target = "127.0.0.1:1", .token = "a\nb"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto client = Connect("127.0.0.1:1");
  const auto code = [&](CallOptions options) {
    return client->GenerateAll(Request(5), std::move(options)).status().code();
  };
  EXPECT_EQ(code({.token = "a\r\nb"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.metadata = {{"Upper", "x"}}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.metadata = {{"name", "\x01"}}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.retry = {.max_retries = 0}, .metadata = {{"name-bin", "\x01"}}}),
            absl::StatusCode::kUnavailable);
}

// A server that breaks the guarantees of the API.
class MisbehavingRouter final : public v1::Inference::Service {
 public:
  MisbehavingRouter() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int aborts() const { return aborts_; }

 private:
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const std::string& lie = request->request_id();
    if (lie == "refused") return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
    v1::GenerateResponse response;
    response.set_resume_ticket("ticket");
    if (request->has_resume_from_index()) {
      if (request->resume_ticket() != "ticket") return grpc::Status(grpc::StatusCode::INTERNAL, "no ticket");
      response.clear_resume_ticket();
      response.set_first_index(request->resume_from_index());
      response.mutable_finish()->mutable_usage()->set_completion_tokens(2);
    }
    response.add_token_ids(1);
    writer->Write(response);
    while (lie == "silent" && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(10));
    if (lie == "slow") return response.has_finish() ? grpc::Status::OK : grpc::Status::CANCELLED;
    if (lie == "gap") response.set_first_index(2);
    if (lie == "count") {
      response.Clear();
      response.mutable_finish()->mutable_usage()->set_completion_tokens(2);
    }
    if (lie != "no finish") writer->Write(response);
    return grpc::Status::OK;
  }

  grpc::Status Abort(grpc::ServerContext*, const v1::AbortRequest*, v1::AbortResponse*) override {
    ++aborts_;
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::atomic<int> aborts_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(ClientLibrary, ARequestThatNeverBeganIsNotAborted) {
  MisbehavingRouter router;
  auto client = Connect(router.address());
  v1::GenerateRequest request = Request(5);
  request.set_request_id("refused");
  EXPECT_EQ(client->GenerateAll(request, Resumable()).status().code(), absl::StatusCode::kResourceExhausted);
  client->Generate(request, Resumable());  // Next is never called
  client.reset();                          // waits for the calls that it has started
  EXPECT_EQ(router.aborts(), 0) << "the id may be that of another client's request";
}

TEST(ClientLibrary, ADisconnectedSlowReaderResumesWithItsTicket) {
  MisbehavingRouter router;
  const auto client = Connect(router.address());
  v1::GenerateRequest request = Request(2);
  request.set_request_id("slow");
  const auto stream = client->Generate(request, Resumable());
  EXPECT_EQ(EndOf(*stream), absl::OkStatus());
  EXPECT_EQ(stream->received(), 2u);
  EXPECT_EQ(stream->counts().resumes, 1);
}

TEST(ClientLibrary, ARequestEndsInTimeThoughTheClockIsSetBack) {
  const std::unique_ptr<WallClock> clock = WallClockOfTest();
  if (clock == nullptr) return;
  MisbehavingRouter router;
  const auto client = Connect(router.address());
  v1::GenerateRequest request = Request(5);
  request.set_request_id("silent");
  const auto stream = client->Generate(request, {.timeout = absl::Seconds(2)});
  EXPECT_TRUE(ReadAsFarAs(*stream, 1));
  clock->Jump(-absl::Hours(6));
  EXPECT_EQ(EndOf(*stream).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ClientLibrary, FindsTokensMissingRepeatedOrMiscounted) {
  MisbehavingRouter router;
  const auto client = Connect(router.address());
  for (const char* lie : {"gap", "repeat", "count", "no finish"}) {
    v1::GenerateRequest request = Request(5);
    request.set_request_id(lie);
    EXPECT_EQ(client->GenerateAll(request).status().code(), absl::StatusCode::kDataLoss) << lie;
  }
}

TEST(Backoff, HonoursRetryInfoAndGrowsWithinItsBounds) {
  Backoff backoff(absl::Milliseconds(10), absl::Milliseconds(40), 1);
  absl::Duration longest;
  for (int i = 0; i < 200; ++i) {
    const absl::Duration told = backoff.Next(absl::Seconds(1));
    EXPECT_GE(told, absl::Seconds(1));
    EXPECT_LE(told, absl::Milliseconds(1500));
    const absl::Duration pause = backoff.Next(std::nullopt);
    EXPECT_LE(pause, absl::Milliseconds(i == 0 ? 10 : i == 1 ? 20 : 40));
    longest = std::max(longest, pause);
  }
  EXPECT_GT(longest, absl::Milliseconds(30)) << "not all of them small";
}

}  // namespace
}  // namespace bfio::testing
