// Streams that break and are resumed: a client loses its connection, a router is killed. No token is lost or
// repeated, and all are those of a run without faults.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/net/status.h"
#include "nlohmann/json.hpp"
#include "tests/testing/cluster.h"
#include "tests/testing/undisturbed.h"

namespace bfio::testing {
namespace {

ClusterOptions Options(int workers, std::vector<std::string> router_flags = {}) {
  ClusterOptions options = {.worker_processes = workers};
  // Workers are lost by killing them, which is noticed at once; a long timeout, so that a machine that pauses
  // for a while loses no worker.
  options.router_flags = {absl::StrCat("--step_timeout=", 10 * kSlowdown, "s")};
  options.router_flags.insert(options.router_flags.end(), router_flags.begin(), router_flags.end());
  // Slow enough for requests to be under way even when the machine is busy.
  options.worker_flags = {absl::StrCat("--c=", 0.008 * kSlowdown), "--tl=0", "--slots=8"};
  return options;
}

// accepted = completed + cancelled + aborted + failed, and every token is accounted for.
void ExpectTally(const v1::RequestTotals& totals) {
  EXPECT_EQ(totals.tokens_lost(), 0u);
  EXPECT_EQ(totals.tokens_duplicated(), 0u);
  EXPECT_EQ(totals.accepted(), totals.completed() + totals.cancelled() + totals.aborted() + totals.failed());
}

TEST(Resume, AKilledRoutersRequestsGoOnWithTheNextOne) {
  Cluster cluster(Options(3));
  ASSERT_TRUE(cluster.ok());
  Clients clients = StartClients(cluster.address(), 24, 400);
  WaitForTokens(clients, 10);
  cluster.KillRouter();
  absl::SleepFor(absl::Milliseconds(100));  // the workers continue meanwhile
  cluster.StartRouterAgain();
  ExpectUndisturbed(clients, 400);
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.requests().recovered(), 24u);
  EXPECT_EQ(state.requests().resumed(), 24u);
  EXPECT_EQ(state.requests().restarted(), 0u);
  EXPECT_EQ(state.requests().completed(), 24u);
  EXPECT_EQ(state.requests().replayed(), 0u);
  ExpectTally(state.requests());
  EXPECT_EQ(state.steps().drift_tokens(), 0) << "the accounts began where the workers were";
}

TEST(Resume, LockstepWorkersStepOnWithoutTheirRouter) {
  Cluster cluster(Options(2, {"--plan_mode=lockstep"}));
  ASSERT_TRUE(cluster.ok());
  Clients clients = StartClients(cluster.address(), 8, 300);
  WaitForTokens(clients, 10);
  cluster.KillRouter();
  cluster.StartRouterAgain();
  ExpectUndisturbed(clients, 300);
  EXPECT_EQ(cluster.State().requests().recovered(), 8u);
  ExpectTally(cluster.State().requests());
}

// Number of requests that ended according to a worker's step log.
int64_t Finished(const std::string& step_log) {
  const std::vector<int64_t> finished = StepLogColumn(step_log, "finished");
  return std::accumulate(finished.begin(), finished.end(), int64_t{0});
}

TEST(Resume, RequestsThatEndWithoutARouterAreNotLost) {
  const std::string log = absl::StrCat(TestDirectory(), "/without_router.csv");
  ClusterOptions options = Options(1);  // 8 slots
  options.worker_flags.push_back(absl::StrCat("--step_log=", log));
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  Clients clients = StartClients(cluster.address(), 8, 200);
  WaitForTokens(clients, 5);
  cluster.KillRouter();
  ASSERT_TRUE(Eventually([&] { return Finished(log) == 8; }));
  cluster.StartRouterAgain();
  ExpectUndisturbed(clients, 200);
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.requests().recovered(), 8u);
  EXPECT_EQ(state.requests().completed(), 8u);
  EXPECT_EQ(state.steps().generated_tokens(), 0u) << "nothing was left to do, or done again";
  ExpectTally(state.requests());
}

TEST(Resume, RequestsThatWaitedAreStartedAgain) {
  Cluster cluster(Options(1));  // 8 slots
  ASSERT_TRUE(cluster.ok());
  Clients clients = StartClients(cluster.address(), 20, 250);
  ASSERT_TRUE(
      cluster.WaitFor("a pool", [](const v1::ClusterState& s) { return s.waiting_requests() == 12; }));
  cluster.KillRouter();
  cluster.StartRouterAgain();
  ExpectUndisturbed(clients, 250);
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.requests().recovered() + state.requests().restarted(), 20u);
  EXPECT_GE(state.requests().restarted(), 4u);
  ExpectTally(state.requests());
}

TEST(Resume, AWorkerLostAfterTheRestartIsReplayed) {
  Cluster cluster(Options(2));
  ASSERT_TRUE(cluster.ok());
  Clients clients = StartClients(cluster.address(), 12, 500);
  WaitForTokens(clients, 10);
  cluster.KillRouter();
  cluster.StartRouterAgain();
  ASSERT_TRUE(cluster.WaitFor("the requests to be back", [](const v1::ClusterState& s) {
    return s.requests().recovered() == 12 && s.requests().resumed() == 12;
  }));
  cluster.workers()[1].Signal(SIGKILL);
  ExpectUndisturbed(clients, 500);
  EXPECT_GT(cluster.State().requests().replayed(), 0u);
  ExpectTally(cluster.State().requests());
}

// One of two workers dies, and then the router: no other worker joins, so the next router's first epoch
// begins restart_settle after the remaining worker has reconnected.
class OneOfTwo : public ::testing::Test {
 protected:
  OneOfTwo() : cluster_(Options(2, {absl::StrCat("--restart_settle=", 3 * kSlowdown, "s")})) {}
  void SetUp() override {
    ASSERT_TRUE(cluster_.ok());
    clients_ = StartClients(cluster_.address(), 8, kTokens);
    WaitForTokens(clients_, 10);
    cluster_.workers()[1].Signal(SIGKILL);
    ASSERT_TRUE(cluster_.WaitFor("all on one worker", [](const v1::ClusterState& s) {
      return s.workers_size() == 1 && s.workers(0).active_requests() == 8;
    }));
    cluster_.KillRouter();
    cluster_.StartRouterAgain();
    ASSERT_TRUE(
        cluster_.WaitFor("it to come back", [](const v1::ClusterState& s) { return s.workers_size() == 1; }));
  }

  static constexpr uint32_t kTokens = 1200;
  Cluster cluster_;
  Clients clients_;
};

TEST_F(OneOfTwo, ClientsThatComeBackBeforeTheFirstEpochFindTheirRequests) {
  ExpectUndisturbed(clients_, kTokens);
  EXPECT_EQ(cluster_.State().requests().recovered(), 8u);
  EXPECT_EQ(cluster_.State().requests().restarted(), 0u);
  ExpectTally(cluster_.State().requests());
}

TEST_F(OneOfTwo, ADrainBeforeTheFirstEpochFinishesRequests) {
  v1::DrainWorkerRequest request;
  v1::DrainWorkerResponse response;
  request.set_worker_id(cluster_.State().workers(0).worker_id());
  grpc::ClientContext context;
  ASSERT_TRUE(cluster_.admin().DrainWorker(&context, request, &response).ok());
  ExpectUndisturbed(clients_, kTokens);
  EXPECT_EQ(cluster_.State().requests().recovered(), 8u);
  ExpectTally(cluster_.State().requests());
  EXPECT_EQ(cluster_.workers()[0].Wait(kSlowdown * absl::Seconds(30)), 0);
}

TEST(Resume, ARouterKilledTwiceInARowLosesNothing) {
  Cluster cluster(Options(2));
  ASSERT_TRUE(cluster.ok());
  Clients clients = StartClients(cluster.address(), 12, 200);
  WaitForTokens(clients, 5);
  for (int kill = 0; kill < 2; ++kill) {
    cluster.KillRouter();
    cluster.StartRouterAgain();
    absl::SleepFor(kSlowdown * absl::Milliseconds(kill == 0 ? 150 : 0));
  }
  ExpectUndisturbed(clients, 200);
  ExpectTally(cluster.State().requests());
}

TEST(Resume, BrokenStreamsAreResumed) {
  Cluster cluster(Options(1));
  ASSERT_TRUE(cluster.ok());
  Clients clients = StartClients(cluster.address(), 4, 400);
  for (int broken = 0; broken < 3; ++broken) {
    // Tokens of the new streams, wherever the clients are by now.
    size_t most = 0;
    for (auto& client : clients) most = std::max(most, client->tokens_seen());
    WaitForTokens(clients, most + 10);
    for (auto& client : clients) client->Break();
  }
  ExpectUndisturbed(clients, 400);
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.requests().resumed(), 12u);
  EXPECT_EQ(state.requests().completed(), 4u);
  ExpectTally(state.requests());
}

// A stream whose first token has been read.
struct Begun : RequestStream {
  Begun(Cluster& cluster, const v1::GenerateRequest& request) : RequestStream(cluster.inference(), request) {
    EXPECT_TRUE(Read());
  }
};

TEST(Resume, AnUnknownRequestIsStartedAgainOnlyWithItsPrompt) {
  Cluster cluster(Options(1, {"--restart_settle=0s"}));
  ASSERT_TRUE(cluster.ok());
  v1::GenerateRequest request = ResumableRequest(4, 20);
  const GenerateResult whole = Generate(cluster.inference(), request);
  ASSERT_EQ(whole.tokens.size(), 20u);
  v1::AbortRequest abort;
  v1::AbortResponse response;
  abort.set_request_id(request.request_id());
  abort.set_resume_token(request.resume_token());
  grpc::ClientContext context;
  ASSERT_TRUE(cluster.inference().Abort(&context, abort, &response).ok());
  EXPECT_FALSE(response.found()) << "it has ended; but now its id is free";
  v1::GenerateRequest bare;
  bare.set_request_id(request.request_id());
  bare.set_resume_token("secret");
  bare.set_resume_from_index(12);
  EXPECT_EQ(Generate(cluster.inference(), bare).status.error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_resume_from_index(12);
  const GenerateResult rest = Generate(cluster.inference(), request);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(rest.tokens, std::vector<uint32_t>(whole.tokens.begin() + 12, whole.tokens.end()));
  EXPECT_EQ(cluster.State().requests().restarted(), 1u);
}

TEST(Resume, ReceivedTokensAreNotGeneratedAgain) {
  Cluster cluster(Options(1, {"--restart_settle=0s"}));
  ASSERT_TRUE(cluster.ok());
  uint64_t made = 0;
  for (const int i : {3, 4}) {  // with prompt ids, and without
    const v1::GenerateRequest request = ResumableRequest(i, 20);
    v1::GenerateRequest first = request;
    first.set_resumable(false);
    first.mutable_sampling()->set_seed(7);
    const std::vector<uint32_t> whole = Generate(cluster.inference(), first).tokens;
    ASSERT_EQ(whole.size(), 20u);
    made += 20;
    for (const uint32_t received : {1u, 12u, 20u}) {
      for (const uint32_t from : {received, received / 2}) {
        v1::GenerateRequest resume = first;
        resume.set_resume_from_index(from);
        *resume.mutable_received_token_ids() = {whole.begin(), whole.begin() + received};
        const GenerateResult rest = Generate(cluster.inference(), resume);
        EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
        EXPECT_EQ(rest.tokens, std::vector<uint32_t>(whole.begin() + from, whole.end())) << received;
        EXPECT_EQ(rest.finish.usage().completion_tokens(), 20u);
        EXPECT_EQ(rest.finishes, 1);
        made += 20 - received + 1;  // the last received token is generated again
      }
    }
  }
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.steps().generated_tokens(), made);
  EXPECT_EQ(state.requests().restarted(), 12u);
  ExpectTally(state.requests());
}

TEST(Resume, ARecoveredRequestThatNoClientResumesIsCancelled) {
  Cluster cluster(Options(1, {absl::StrCat("--client_timeout=", 300 * kSlowdown, "ms")}));
  ASSERT_TRUE(cluster.ok());
  {
    Begun begun(cluster, ResumableRequest(2, 5000));
    cluster.KillRouter();
    begun.End();
  }
  cluster.StartRouterAgain();
  ASSERT_TRUE(cluster.WaitFor("the recovered request to be cancelled", [](const v1::ClusterState& s) {
    return s.requests().recovered() == 1 && s.requests().resume_expired() == 1 &&
           s.workers(0).active_requests() == 0;
  }));
  ExpectTally(cluster.State().requests());
}

TEST(Resume, TheLoadGeneratorResumesWithoutMissingTokens) {
  Cluster cluster(Options(2));
  ASSERT_TRUE(cluster.ok());
  const std::string json = absl::StrCat(TestDirectory(), "/resume.json");
  Process generator("bfio_loadgen",
                    {absl::StrCat("--target=", cluster.address()), "--resume", "--concurrency=24",
                     "--requests=60", "--profile=code", absl::StrCat("--json=", json)});
  ASSERT_TRUE(cluster.WaitFor("requests under way", [](const v1::ClusterState& s) {
    return s.requests().completed() >= 5 && s.waiting_requests() > 0;
  }));
  cluster.KillRouter();
  cluster.StartRouterAgain();
  EXPECT_EQ(generator.Wait(kSlowdown * absl::Seconds(120)), 0) << generator.Stdout() << generator.Stderr();
  std::ifstream file(json);
  const auto report = nlohmann::json::parse(file);
  EXPECT_EQ(report["completed"], 60);
  EXPECT_GT(report["resumed"], 0);
  EXPECT_EQ(report["token_mismatches"], 0);
  EXPECT_EQ(report["stream_breaches"], 0);
  ExpectTally(cluster.State().requests());
}

}  // namespace
}  // namespace bfio::testing
