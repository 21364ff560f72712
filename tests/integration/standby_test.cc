// Two routers and a real etcd: requests continue when the leader is killed, stopped, shut down, or cut off
// from etcd.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "router/election/election.h"
#include "tests/testing/etcd_server.h"
#include "tests/testing/http_get.h"
#include "tests/testing/undisturbed.h"

namespace bfio::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60 * kSlowdown);
// Times to live of leases that must expire, and of leases that must not, even when the machine pauses.
constexpr absl::Duration kTtl = absl::Seconds(4 * kSlowdown), kLongTtl = absl::Minutes(10);

#define SKIP_WITHOUT_ETCD() \
  if (!EtcdServer::WhyNot().empty()) GTEST_SKIP() << EtcdServer::WhyNot()

router::ElectionOptions Options(const EtcdServer& etcd, const std::string& name, absl::Duration ttl) {
  router::ElectionOptions options;
  // No server listens at the first endpoint.
  options.etcd.endpoints = {"http://127.0.0.1:1/", etcd.endpoint()};
  options.name = name;
  options.ttl = ttl;
  return options;
}

std::unique_ptr<router::Election> Elect(const router::ElectionOptions& options) {
  auto election = router::Election::Create(options);
  EXPECT_TRUE(election.ok()) << election.status();
  return *std::move(election);
}

// A campaign on a separate thread.
class Candidate {
 public:
  Candidate(const EtcdServer& etcd, const std::string& name, absl::Duration ttl = kLongTtl)
      : Candidate(Options(etcd, name, ttl)) {}
  explicit Candidate(const router::ElectionOptions& options) : election(Elect(options)) {
    thread_ = std::thread([this] {
      const auto pause = [this](absl::Duration time) {
        absl::SleepFor(time);
        return give_up.load();
      };
      leads = election->Campaign(pause, [this](const std::string& leader) {
        MutexLock lock(&mutex_);
        leader_ = leader;
      });
      ended = true;
    });
  }
  ~Candidate() {
    give_up = true;
    thread_.join();
  }
  std::string leader() {
    MutexLock lock(&mutex_);
    return leader_;
  }

  const std::unique_ptr<router::Election> election;
  std::atomic<bool> give_up = false, leads = false, ended = false;

 private:
  Mutex mutex_;
  std::string leader_;
  std::thread thread_;
};

TEST(Election, ExactlyOneLeadsAndTermsGrow) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  std::vector<std::unique_ptr<Candidate>> candidates;
  for (int i = 0; i < 4; ++i)
    candidates.push_back(std::make_unique<Candidate>(etcd, absl::StrCat("router", i)));
  uint64_t term = 0;
  for (size_t left = candidates.size(); left > 0; --left) {
    ASSERT_TRUE(Eventually([&] {
      return std::any_of(candidates.begin(), candidates.end(), [](const auto& c) { return c->ended.load(); });
    }));
    const auto leader =
        std::find_if(candidates.begin(), candidates.end(), [](const auto& c) { return c->ended.load(); });
    EXPECT_TRUE((*leader)->leads);
    EXPECT_GT((*leader)->election->term(), term);
    term = (*leader)->election->term();
    EXPECT_TRUE((*leader)->election->lease()->Holds());
    const auto lease = (*leader)->election->lease();
    for (const auto& other : candidates) {
      if (other == *leader) continue;
      EXPECT_FALSE(other->ended) << "two lead";
    }
    candidates.erase(leader);
    EXPECT_FALSE(lease->Holds()) << "who has resigned does not lead";
  }
}

TEST(Election, AStandbyGetsTheLeaderAndMayGiveUp) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  Candidate first(etcd, "first");
  ASSERT_TRUE(Eventually([&] { return first.leads.load(); }));
  Candidate second(etcd, "second");
  ASSERT_TRUE(Eventually([&] { return second.leader() == "first"; }));
  second.give_up = true;
  ASSERT_TRUE(Eventually([&] { return second.ended.load(); }));
  EXPECT_FALSE(second.leads);
  EXPECT_EQ(second.election->lease(), nullptr);
}

TEST(Election, ALeaseIsKeptWhileEtcdAnswersAndEndsWhenItDoesNot) {
  SKIP_WITHOUT_ETCD();
  EtcdServer etcd;
  Candidate leader(etcd, "leader", kTtl);
  ASSERT_TRUE(Eventually([&] { return leader.leads.load(); }));
  const auto lease = leader.election->lease();
  const auto end = [&] { return router::Lease::Now() + lease->Left(); };
  const absl::Time first_end = end();
  ASSERT_TRUE(Eventually([&] { return end() > first_end + kTtl; })) << "it is renewed";
  EXPECT_TRUE(lease->Check());
  etcd.Kill();
  ASSERT_TRUE(Eventually([&] { return !lease->Holds(); }));
  EXPECT_FALSE(lease->Check());
  etcd.Start();
  // A router that has lost the lease may not use it again, although etcd keeps leases over a restart.
  Candidate next(etcd, "next", kTtl);
  ASSERT_TRUE(Eventually([&] { return next.leads.load(); }));
  EXPECT_FALSE(lease->Holds());
  EXPECT_GT(next.election->term(), leader.election->term());
}

// Actions of an operator on a leader's key.
class KeyTest : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(KeyTest, AKeyOfAnotherOwnerIsALostLease) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  Candidate leader(etcd, "leader");
  ASSERT_TRUE(Eventually([&] { return leader.leads.load(); }));
  std::vector<std::string> words = {"ETCDCTL_API=3", "etcdctl",
                                    absl::StrCat("--endpoints=", etcd.endpoint())};
  words.insert(words.end(), GetParam().begin(), GetParam().end());
  const RunResult run = RunProgram("/usr/bin/env", words);
  if (run.code == 127) GTEST_SKIP() << "etcdctl is not installed (etcd-client)";
  ASSERT_EQ(run.code, 0) << run.err;
  ASSERT_TRUE(Eventually([&] { return !leader.election->lease()->Holds(); }));
}

INSTANTIATE_TEST_SUITE_P(Election, KeyTest,
                         ::testing::Values(std::vector<std::string>{"del", "/bfio/router"},
                                           std::vector<std::string>{"put", "/bfio/router", "somebody"}),
                         [](const auto& test) { return test.param[0]; });

TEST(Election, ARouterThatNoLongerDecidesReleasesItsLeaseForTheNext) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  router::ElectionOptions options = Options(etcd, "stuck", kTtl);
  options.stuck_after = absl::ZeroDuration();
  std::atomic<bool> ended = false;
  options.end_process = [&] { ended = true; };
  Candidate leader(options);
  ASSERT_TRUE(Eventually([&] { return leader.leads.load(); }));
  ASSERT_TRUE(Eventually([&] { return ended.load(); }));
  EXPECT_FALSE(leader.election->lease()->Holds());
  Candidate next(etcd, "next");
  ASSERT_TRUE(Eventually([&] { return next.leads.load(); }));
}

TEST(Election, AnEtcdWithAWrongCertificateIsNotUsed) {
  SKIP_WITHOUT_ETCD();
  const std::string certs = absl::StrCat(TestDirectory(), "/certs");
  MakeCerts(certs, "");
  const EtcdServer etcd(certs);
  router::EtcdOptions options = {.endpoints = {etcd.endpoint()}};
  for (const bool right : {true, false}) {
    options.tls.ca = certs + (right ? "/admin-ca.crt" : "/client-ca.crt");
    auto client = router::Etcd::Create(options);
    ASSERT_TRUE(client.ok()) << client.status();
    const absl::Status status = (*client)->Grant(kTtl).status();
    EXPECT_EQ(status.code(), right ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable) << status;
  }
}

TEST(Election, SettingsAreCheckedByName) {
  const auto error = [](std::vector<std::string> endpoints, absl::Duration ttl, const std::string& ca) {
    router::ElectionOptions options;
    options.etcd.endpoints = std::move(endpoints);
    options.etcd.tls.ca = ca;
    options.name = "router";
    options.ttl = ttl;
    return std::string(router::Election::Create(options).status().message());
  };
  EXPECT_EQ(error({"http://127.0.0.1:2379"}, kTtl, ""), "");
  EXPECT_THAT(error({"127.0.0.1:2379"}, kTtl, ""), HasSubstr("'127.0.0.1:2379'"));
  EXPECT_THAT(error({"http://127.0.0.1"}, kTtl, ""), HasSubstr("has no port"));
  EXPECT_THAT(error({"http://etcd:99999999999"}, kTtl, ""), HasSubstr("port out of range"));
  EXPECT_THAT(error({"http://etcd:2379/v3"}, kTtl, ""), HasSubstr("etcd:2379/v3"));
  EXPECT_THAT(error({"http://127.0.0.1:2379"}, absl::Seconds(1), ""), HasSubstr("2s..1h"));
  EXPECT_THAT(error({"http://127.0.0.1:2379"}, kTtl, "ca.pem"), HasSubstr("no etcd endpoint is https"));
  EXPECT_THAT(error({"https://127.0.0.1:2379"}, kTtl, "/no/such.pem"),
              HasSubstr("--election_tls: cannot read"));
}

// Two routers of one election, and workers with both addresses.
class Pair {
 public:
  explicit Pair(const EtcdServer& etcd) : etcd_(etcd) {
    StartRouter(0);
    EXPECT_TRUE(WaitServing(0));
    StartRouter(1);
    EXPECT_TRUE(WaitStanding(1, 0));
    for (int i = 0; i < kWorkers; ++i) {
      workers_.emplace_back(
          "bfio_worker",
          std::vector<std::string>{absl::StrCat("--router=", both()), absl::StrCat("--c=", 0.008 * kSlowdown),
                                   "--tl=0", "--slots=8", absl::StrCat("--worker_id=w", i)});
    }
  }

  void StartRouter(int i) {
    routers_[i] = std::make_unique<Process>(
        "bfio_router", std::vector<std::string>{
                           absl::StrCat("--listen=", ports_[i].address()), "--admin_listen=127.0.0.1:0",
                           "--http_listen=", absl::StrCat("--workers=", kWorkers),
                           absl::StrCat("--election_etcd=", etcd_.endpoint()),
                           absl::StrCat("--election_ttl=", absl::FormatDuration(kTtl)),
                           absl::StrCat("--step_timeout=", 10 * kSlowdown, "s"), "--drain_timeout=1ms"});
  }
  bool WaitServing(int i) { return routers_[i]->WaitForOutput("serving on", kPatience); }
  bool WaitStanding(int i, int leader) {
    return routers_[i]->WaitForOutput(
        absl::StrCat("standing by for the router at ", ports_[leader].address()), kPatience);
  }
  Process& router(int i) { return *routers_[i]; }
  std::string both() const { return absl::StrCat(ports_[0].address(), ",", ports_[1].address()); }
  // A target for both, in gRPC's syntax.
  std::string target() const { return absl::StrCat("ipv4:", both()); }

 private:
  static constexpr int kWorkers = 3;
  const EtcdServer& etcd_;
  const HeldPort ports_[2];
  std::unique_ptr<Process> routers_[2];
  std::vector<Process> workers_;
};

TEST(Standby, AKilledLeadersRequestsGoOnUnderTheNextAndBack) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  Pair pair(etcd);
  constexpr uint32_t kTokens = 2000;
  Clients clients = StartClients(pair.target(), 24, kTokens);
  WaitForTokens(clients, 10);
  pair.router(0).Signal(SIGKILL);
  ASSERT_TRUE(pair.WaitServing(1)) << pair.router(1).Stderr();
  pair.StartRouter(0);
  ASSERT_TRUE(pair.WaitStanding(0, 1)) << pair.router(0).Stderr();
  // Back to the first, without waiting for a lease to expire: a router that is shut down resigns.
  EXPECT_TRUE(std::any_of(clients.begin(), clients.end(),
                          [](const auto& client) { return client->tokens_seen() < kTokens; }));
  pair.router(1).Signal(SIGTERM);
  EXPECT_EQ(pair.router(1).Wait(kPatience), 0);
  ASSERT_TRUE(pair.WaitServing(0)) << pair.router(0).Stderr();
  ExpectUndisturbed(clients, kTokens);
}

TEST(Standby, HasProbesAndReportsThatItDoesNotLead) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  auto leader = std::make_unique<Candidate>(etcd, "10.0.0.1:50051");
  ASSERT_TRUE(Eventually([&] { return leader->leads.load(); }));
  const HeldPort http;
  Process standby("bfio_router", {"--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
                                  absl::StrCat("--http_listen=", http.address()),
                                  absl::StrCat("--election_etcd=", etcd.endpoint())});
  ASSERT_TRUE(standby.WaitForOutput("probes on http://", kPatience)) << standby.Stderr();
  const std::string web = AddressAfter("probes on http://", standby.Stdout());
  EXPECT_EQ(web, http.address());
  const auto says = [&](const std::string& path, const std::string& text) {
    return Eventually([&] { return absl::StrContains(HttpGet(web, path).value_or(""), text); });
  };
  EXPECT_TRUE(says("/healthz", "standing by for the router at 10.0.0.1:50051"));
  EXPECT_EQ(HttpGet(web, "/readyz"), std::nullopt) << "clients belong to the leader";
  EXPECT_TRUE(says("/metrics", "\nbfio:is_leader 0\n"));
  // The same port serves the leader, once it leads.
  leader.reset();
  ASSERT_TRUE(standby.WaitForOutput("serving on", kPatience)) << standby.Stderr();
  EXPECT_TRUE(says("/metrics", "\nbfio:is_leader 1\n"));
  EXPECT_TRUE(says("/readyz", "ok"));
}

// When the standby starts, not when it takes over.
TEST(Standby, AWrongSettingIsFoundWhenItIsStarted) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  Candidate leader(etcd, "leader");
  ASSERT_TRUE(Eventually([&] { return leader.leads.load(); }));
  const RunResult run =
      RunProgram("bfio_router", {absl::StrCat("--election_etcd=", etcd.endpoint()), "--listen=127.0.0.1:0",
                                 "--admin_listen=127.0.0.1:0", "--http_listen=", "--policy=best"});
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("best"));
}

TEST(Standby, AStoppedLeaderEndsWhenItWakes) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  Pair pair(etcd);
  Clients clients = StartClients(pair.target(), 12, 600);
  WaitForTokens(clients, 10);
  pair.router(0).Signal(SIGSTOP);
  ASSERT_TRUE(pair.WaitServing(1)) << pair.router(1).Stderr();
  pair.router(0).Signal(SIGCONT);
  EXPECT_EQ(pair.router(0).Wait(kPatience), EXIT_FAILURE);
  EXPECT_THAT(pair.router(0).Stderr(), HasSubstr("the election lease is lost"));
  ExpectUndisturbed(clients, 600);
}

TEST(Standby, ARouterWithoutEtcdLeadsNoLongerThanItsLease) {
  SKIP_WITHOUT_ETCD();
  EtcdServer etcd;
  Pair pair(etcd);
  Clients clients = StartClients(pair.target(), 6, 1200);
  WaitForTokens(clients, 10);
  etcd.Kill();
  EXPECT_EQ(pair.router(0).Wait(kPatience), EXIT_FAILURE);
  EXPECT_THAT(pair.router(0).Stderr(),
              AllOf(HasSubstr("cannot renew the lease"), HasSubstr("the election lease is lost")));
  etcd.Start();
  ASSERT_TRUE(pair.WaitServing(1)) << pair.router(1).Stderr();
  ExpectUndisturbed(clients, 1200);
}

}  // namespace
}  // namespace bfio::testing
