// Attacks by clients on the router and on other clients, with real programs over loopback.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/cluster.h"
#include "tests/testing/unfinished_calls.h"

namespace bfio::testing {
namespace {

// A call whose first token has been read, and which stays open until it goes out of scope.
class OpenCall {
 public:
  OpenCall(Cluster& cluster, const v1::GenerateRequest& request)
      : reader_(cluster.inference().Generate(&context_, request)) {}
  ~OpenCall() { context_.TryCancel(); }
  bool ReadOne() { return reader_->Read(&response_); }
  const v1::GenerateResponse& response() const { return response_; }
  // Reads to the end.
  grpc::Status End() {
    while (reader_->Read(&response_)) {
    }
    return reader_->Finish();
  }

 private:
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
};

ClusterOptions SlowWorker(std::vector<std::string> router_flags = {}) {
  return {.worker_processes = 1,
          .router_flags = std::move(router_flags),
          .worker_flags = {absl::StrCat("--c=", 0.008 * kSlowdown), "--tl=0", "--slots=64"}};
}

// --- memory before authentication ---

// Resident memory of the process, in MiB.
double ResidentMib(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    double kib = 0;
    if (line.rfind("VmRSS:", 0) != 0) continue;
    if (absl::SimpleAtod(line.substr(6, line.rfind(" kB") - 6), &kib)) return kib / 1024;
  }
  ADD_FAILURE() << "no VmRSS of process " << pid;
  return 0;
}

// A router without workers, and the addresses of its ports.
class LoneRouter {
 public:
  explicit LoneRouter(std::vector<std::string> flags) {
    for (const char* port : {"--listen=", "--worker_listen=", "--admin_listen="})
      flags.push_back(absl::StrCat(port, "127.0.0.1:0"));
    flags.emplace_back("--http_listen=");
    router_ = std::make_unique<Process>("bfio_router", flags);
    EXPECT_TRUE(router_->WaitForOutput("waiting for", kSlowdown * absl::Seconds(30))) << router_->Stderr();
    before_ = ResidentMib(router_->pid());
  }
  std::string After(const std::string& words) const { return AddressAfter(words, router_->Stdout()); }
  // Growth of its memory since its start.
  double GrownMib() const { return ResidentMib(router_->pid()) - before_; }

 private:
  std::unique_ptr<Process> router_;
  double before_ = 0;
};

std::string TokensFile() {
  const std::string tokens = absl::StrCat(TestDirectory(), "/tokens");
  std::ofstream(tokens) << "acme token:acme-s3cr3t-acme-s3cr3t\n";
  return tokens;
}

TEST(BeforeAuthentication, OneConnectionPinsNoMoreThan64Mib) {
  const LoneRouter router({absl::StrCat("--client_tokens=", TokensFile())});
  // No token, and no complete message.
  UnfinishedCalls attack(router.After("serving on "));
  constexpr int kCalls = 300;
  ASSERT_TRUE(attack.Send("/bfio.v1.Inference/Generate", kCalls, 1 << 20, 10 * kSlowdown * absl::Seconds(1)));
  EXPECT_LT(router.GrownMib(), 64 * kSlowdown)
      << "MiB after " << (attack.sent_bytes() >> 20) << " MiB were let in and " << attack.refused() << " of "
      << kCalls << " calls refused";
}

// Other methods that a caller without a token can call, at both ports that require one: few calls with
// messages whose stated size exceeds every limit, and many connections.
TEST(BeforeAuthentication, NoMethodAndNoNumberOfConnectionsPinsMore) {
  const std::string tokens = TokensFile();
  const LoneRouter router(
      {absl::StrCat("--client_tokens=", tokens), absl::StrCat("--admin_tokens=", tokens)});
  const std::string client = router.After("serving on "), admin = router.After("admin on ");
  constexpr uint32_t kHuge = 200 << 20;
  std::vector<std::unique_ptr<UnfinishedCalls>> attacks;
  for (const auto& [address, method] :
       {std::pair<std::string, const char*>{client, "/bfio.v1.Inference/Generate"},
        {client, "/bfio.v1.Inference/GetLoads"},
        {client, "/bfio.v1.Inference/Abort"},
        {client, "/vllm.grpc.engine.VllmEngine/Generate"},
        {client, "/vllm.grpc.engine.VllmEngine/GetTokenizer"},
        {client, "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents"},
        {client, "/grpc.health.v1.Health/Check"},
        {client, "/grpc.health.v1.Health/Watch"},
        {client, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"},
        {client, "/bfio.v1.WorkerLink/Attach"},
        {admin, "/bfio.v1.Admin/GetClusterState"},
        {admin, "/bfio.v1.Admin/WatchSteps"},
        {admin, "/bfio.v1.Admin/DrainWorker"},
        {admin, "/grpc.health.v1.Health/Watch"}}) {
    for (const auto& [calls, bytes] : {std::pair<int, uint32_t>{4, kHuge}, {100, 1 << 20}}) {
      attacks.push_back(std::make_unique<UnfinishedCalls>(address));
      // A call that stays open (a watch) only occupies its window, and does not delay other calls for long.
      ASSERT_TRUE(attacks.back()->Send(method, calls, bytes, kSlowdown * absl::Seconds(1))) << method;
      EXPECT_LT(router.GrownMib(), 64 * kSlowdown) << method << ", " << calls << " calls";
    }
  }
}

// gRPC 1.51 checks the size of a header only when it has all of it.
TEST(BeforeAuthentication, HeadersWithoutAnEndPinNoMoreThan64Mib) {
  const LoneRouter router({absl::StrCat("--client_tokens=", TokensFile())});
  UnfinishedCalls attack(router.After("serving on "));
  ASSERT_TRUE(attack.SendHeaders(uint64_t{512} << 20, 10 * kSlowdown * absl::Seconds(1)));
  EXPECT_TRUE(attack.ended());
  EXPECT_LT(router.GrownMib(), 64 * kSlowdown);
}

// A worker that serves parts of a model listens for its neighbours.
TEST(BeforeAuthentication, APortOfAWorkerHasTheSameBound) {
  const Process worker("bfio_worker", {"--router=127.0.0.1:1", "--engine=cpu", "--model=tests/golden/llama",
                                       "--token_budget=48", "--memory_limit_mb=64",
                                       "--pipeline_listen=127.0.0.1:0", "--connect_timeout=10m"});
  ASSERT_TRUE(Eventually([&] { return CountOf(worker.Stderr(), "measured time of a block") > 0; }))
      << worker.Stderr();
  const double before = ResidentMib(worker.pid());
  UnfinishedCalls attack(AddressAfter("listening for chains at ", worker.Stderr()));
  ASSERT_TRUE(attack.SendHeaders(uint64_t{512} << 20, 10 * kSlowdown * absl::Seconds(1)));
  EXPECT_TRUE(attack.ended());
  EXPECT_LT(ResidentMib(worker.pid()) - before, 64 * kSlowdown);
}

// Without authentication another bound applies: 64 MiB of messages that are received at the same time, and a
// window of 64 KiB for each call that waits until it may be received.
// Each attack sends up to 600 MiB. How much of it a bounded router holds depends on when its threads run;
// half of one attack is far above that, and far below what a router without a bound would hold.
TEST(WithoutAuthentication, UnfinishedCallsHaveABoundToo) {
  const LoneRouter router({});
  constexpr double kHalfMib = 300;
  UnfinishedCalls attack(router.After("serving on "));
  ASSERT_TRUE(attack.Send("/bfio.v1.Inference/Generate", 600, 1 << 20, 3 * kSlowdown * absl::Seconds(1)));
  EXPECT_LT(router.GrownMib(), kHalfMib * kSlowdown) << (attack.sent_bytes() >> 20) << " MiB were let in";
  // The port's other API, while the first attack is still connected.
  UnfinishedCalls other(router.After("serving on "));
  ASSERT_TRUE(
      other.Send("/vllm.grpc.engine.VllmEngine/Generate", 600, 1 << 20, kSlowdown * absl::Seconds(1)));
  EXPECT_LT(router.GrownMib(), kHalfMib * kSlowdown) << (other.sent_bytes() >> 20) << " MiB were let in";
}

// --- limits after a restart ---

TEST(AfterARestart, AResumeOfAnUnknownRequestCountsLikeAnyOther) {
  Cluster cluster(SlowWorker({"--tenant_limits=acme:concurrent=2"}));
  ASSERT_TRUE(cluster.ok());
  cluster.KillRouter();
  cluster.StartRouterAgain();
  constexpr int kRequests = 12;
  std::vector<std::unique_ptr<OpenCall>> calls;
  for (int i = 0; i < kRequests; ++i) {
    v1::GenerateRequest request = SyntheticRequest(20, 20'000);
    request.set_request_id(absl::StrCat("never-seen-", i));
    request.set_tenant("acme");
    request.set_resumable(true);
    request.mutable_token_ids()->add_ids(1);
    request.set_resume_from_index(2);
    request.add_received_token_ids(1);
    request.add_received_token_ids(2);
    calls.push_back(std::make_unique<OpenCall>(cluster, request));
  }
  v1::ClusterState state;
  ASSERT_TRUE(cluster.WaitFor("an answer to each", [&](const v1::ClusterState& now) {
    state = now;
    uint64_t running = 0;
    for (const v1::WorkerState& worker : now.workers()) running += worker.active_requests();
    return running + now.requests().refused_tenant() == kRequests;
  }));
  EXPECT_EQ(state.requests().refused_tenant(), static_cast<uint64_t>(kRequests - 2));
}

// Requests that were interrupted by the router's death continue, regardless of the other requests of their
// tenant.
TEST(AfterARestart, AResumeWithItsTicketGoesAhead) {
  const std::string keys = absl::StrCat(TestDirectory(), "/resume_keys");
  std::ofstream(keys) << std::string(32, 'k') << "\n";
  Cluster cluster(SlowWorker({"--tenant_limits=acme:concurrent=2", absl::StrCat("--resume_key_file=", keys),
                              "--restart_settle=0s"}));
  ASSERT_TRUE(cluster.ok());
  const auto request = [](const std::string& id) {
    v1::GenerateRequest request = SyntheticRequest(20, 20'000);
    request.set_request_id(id);
    request.set_tenant("acme");
    request.set_resumable(true);
    return request;
  };
  std::vector<v1::GenerateRequest> resumes;
  {
    std::vector<std::unique_ptr<OpenCall>> begun;
    for (const char* id : {"a", "b"}) {
      begun.push_back(std::make_unique<OpenCall>(cluster, request(id)));
      ASSERT_TRUE(begun.back()->ReadOne());
      EXPECT_FALSE(begun.back()->response().resume_ticket().empty());
      v1::GenerateRequest& resume = resumes.emplace_back(request(id));
      resume.set_resume_ticket(begun.back()->response().resume_ticket());
      resume.set_resume_from_index(begun.back()->response().token_ids_size());
      *resume.mutable_received_token_ids() = begun.back()->response().token_ids();
    }
    // Killing the worker too removes all state of the requests.
    cluster.KillRouter();
    cluster.workers()[0].Signal(SIGKILL);
  }
  cluster.StartRouterAgain();
  cluster.StartWorker(0);
  ASSERT_TRUE(cluster.WaitFor("the worker", [](const v1::ClusterState& s) { return s.workers_size() == 1; }));
  // Now the tenant is at its limit.
  OpenCall first(cluster, request("c")), second(cluster, request("d"));
  ASSERT_TRUE(first.ReadOne() && second.ReadOne());
  v1::GenerateRequest forged = resumes[0];
  forged.set_max_new_tokens(20'001);
  EXPECT_EQ(Generate(cluster.inference(), forged).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  forged = resumes[0];
  forged.set_resume_ticket(resumes[1].resume_ticket());
  EXPECT_EQ(Generate(cluster.inference(), forged).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (const v1::GenerateRequest& resume : resumes) {
    OpenCall again(cluster, resume);
    ASSERT_TRUE(again.ReadOne()) << again.End().error_message();
    EXPECT_EQ(again.response().first_index(), resume.resume_from_index());
    EXPECT_FALSE(again.response().resume_ticket().empty()) << "for the next restart";
  }
  EXPECT_EQ(cluster.State().requests().refused_tenant(), 2u);
}

// Another model would continue the request with different tokens.
TEST(AfterARestart, AResumeGoesOnWithTheModelThatItBeganOnOrEnds) {
  const std::string keys = absl::StrCat(TestDirectory(), "/resume_keys");
  std::ofstream(keys) << std::string(32, 'k') << "\n";
  ClusterOptions options =
      SlowWorker({"--workers=1", absl::StrCat("--resume_key_file=", keys), "--restart_settle=0s"});
  options.worker_processes = 0;
  // The flags of a sim engine are part of its model.
  options.more_flags = {{}, {"--sim=eos_probability=0.00001"}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  const auto await_serving = [&](int workers) {
    return cluster.WaitFor("serving workers", [workers](const v1::ClusterState& state) {
      return workers == std::count_if(state.workers().begin(), state.workers().end(), [](const auto& worker) {
               return worker.phase() == v1::WORKER_PHASE_SERVING;
             });
    });
  };
  cluster.StartWorker();
  ASSERT_TRUE(await_serving(1));
  v1::GenerateRequest request = SyntheticRequest(20, 20'000);
  request.set_request_id("a");
  request.set_resumable(true);
  v1::GenerateRequest resume = request;
  {
    OpenCall begun(cluster, request);
    ASSERT_TRUE(begun.ReadOne());
    resume.set_resume_ticket(begun.response().resume_ticket());
    resume.set_resume_from_index(begun.response().token_ids_size());
    *resume.mutable_received_token_ids() = begun.response().token_ids();
    // Killing the worker too removes all state of the request.
    cluster.KillRouter();
    cluster.workers()[0].Signal(SIGKILL);
  }
  cluster.StartRouterAgain();
  cluster.StartWorker();
  ASSERT_TRUE(await_serving(1));
  const grpc::Status gone = Generate(cluster.inference(), resume).status;
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << gone.error_message();
  EXPECT_THAT(gone.error_message(), ::testing::HasSubstr("the model that began this request"));
  cluster.StartWorker(0);
  ASSERT_TRUE(await_serving(2));
  OpenCall again(cluster, resume);
  ASSERT_TRUE(again.ReadOne()) << again.End().error_message();
  EXPECT_EQ(again.response().first_index(), resume.resume_from_index());
}

// --- isolation of tenants ---

TEST(Tenants, MayNotGoBeyondTheirPriority) {
  Cluster cluster(SlowWorker({"--tenant_limits=acme:priority=5;*:priority=0"}));
  ASSERT_TRUE(cluster.ok());
  const auto code = [&](const std::string& tenant, int32_t priority, bool resume = false) {
    v1::GenerateRequest request = SyntheticRequest(10, 1);
    request.set_tenant(tenant);
    request.set_priority(priority);
    if (resume) request.set_resume_from_index(0);
    return Generate(cluster.inference(), request).status.error_code();
  };
  EXPECT_EQ(code("acme", 5), grpc::StatusCode::OK);
  EXPECT_EQ(code("acme", 6), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("acme", 6, true), grpc::StatusCode::INVALID_ARGUMENT) << "nor by a resume";
  EXPECT_EQ(code("zeta", 1), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("zeta", -100), grpc::StatusCode::OK);
}

// Ids that the router generates are not counters, so they reveal neither the number of requests nor the time.
TEST(Tenants, CannotGuessGeneratedRequestIds) {
  Cluster cluster(SlowWorker());
  ASSERT_TRUE(cluster.ok());
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    OpenCall call(cluster, SyntheticRequest(10, 1));
    ASSERT_TRUE(call.ReadOne());
    ids.push_back(call.response().request_id());
    EXPECT_TRUE(call.End().ok());
  }
  // At least 64 random bits, in any encoding.
  for (const std::string& id : ids) EXPECT_GE(id.size(), 16u) << id;
  const auto shared = [](const std::string& a, const std::string& b) {
    return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  };
  // The ids may share a prefix that is a word; 8 of 16 random hex digits agree with probability 1/4e9.
  EXPECT_LT(shared(ids[0], ids[1]), static_cast<int64_t>(ids[0].size()) - 8) << ids[0] << " " << ids[1];
  EXPECT_LT(shared(ids[1], ids[2]), static_cast<int64_t>(ids[1].size()) - 8) << ids[1] << " " << ids[2];
}

}  // namespace
}  // namespace bfio::testing
