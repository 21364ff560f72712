// Two routers and a real etcd: requests continue when the leader is killed, stopped or shut down. A leader
// whose etcd is slow or fails is tested in tests/unit/router/election.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "router/election/election.h"
#include "tests/testing/bad_input.h"
#include "tests/testing/etcd_server.h"
#include "tests/testing/sockets.h"
#include "tests/testing/token_clients.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60 * kSlowdown);
constexpr absl::Duration kTtl = absl::Seconds(4 * kSlowdown);

#define SKIP_WITHOUT_ETCD() \
  if (!EtcdServer::WhyNot().empty()) GTEST_SKIP() << EtcdServer::WhyNot()

// A campaign on a separate thread.
class Candidate {
 public:
  Candidate(const EtcdServer& etcd, const std::string& name, absl::Duration ttl = absl::Minutes(10),
            router::ElectionOptions options = {}) {
    // No server listens at the first endpoint.
    options.etcd.endpoints = {"http://127.0.0.1:1/", etcd.endpoint()};
    options.name = name;
    options.ttl = ttl;
    auto created = router::Election::Create(options);
    EXPECT_TRUE(created.ok()) << created.status();
    election = *std::move(created);
    thread_ = std::thread([this] {
      const auto pause = [this](absl::Duration time) {
        absl::SleepFor(time);
        return give_up_.load();
      };
      leads = election->Campaign(pause, [](const std::string&) {});
    });
  }
  ~Candidate() {
    give_up_ = true;
    thread_.join();
  }

  std::unique_ptr<router::Election> election;
  std::atomic<bool> leads = false;

 private:
  std::atomic<bool> give_up_ = false;
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
      return std::any_of(candidates.begin(), candidates.end(), [](const auto& c) { return c->leads.load(); });
    }));
    const auto leader =
        std::find_if(candidates.begin(), candidates.end(), [](const auto& c) { return c->leads.load(); });
    EXPECT_GT((*leader)->election->term(), term);
    term = (*leader)->election->term();
    EXPECT_TRUE((*leader)->election->lease()->Holds());
    const auto lease = (*leader)->election->lease();
    for (const auto& other : candidates) {
      if (other == *leader) continue;
      EXPECT_FALSE(other->leads) << "two lead";
    }
    candidates.erase(leader);
    EXPECT_FALSE(lease->Holds()) << "who has resigned does not lead";
  }
}

// Actions of an operator on a leader's key.
TEST(Election, AKeyOfAnotherOwnerIsALostLease) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  for (const auto& action :
       {std::vector<std::string>{"del", "/bfio/router"}, {"put", "/bfio/router", "somebody"}}) {
    SCOPED_TRACE(action[0]);
    Candidate leader(etcd, "leader");
    ASSERT_TRUE(Eventually([&] { return leader.leads.load(); }));
    std::vector<std::string> words = {"ETCDCTL_API=3", "etcdctl",
                                      absl::StrCat("--endpoints=", etcd.endpoint())};
    words.insert(words.end(), action.begin(), action.end());
    const RunResult run = RunProgram("/usr/bin/env", words);
    if (run.code == 127) GTEST_SKIP() << "etcdctl is not installed (etcd-client)";
    ASSERT_EQ(run.code, 0) << run.err;
    ASSERT_TRUE(Eventually([&] { return !leader.election->lease()->Holds(); }));
  }
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

TEST(Election, ARouterThatNoLongerDecidesReleasesItsLeaseForTheNext) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  std::atomic<bool> ended = false;
  router::ElectionOptions options;
  options.stuck_after = absl::ZeroDuration();
  options.end_process = [&] { ended = true; };
  Candidate leader(etcd, "stuck", kTtl, options);
  ASSERT_TRUE(Eventually([&] { return leader.leads.load(); }));
  ASSERT_TRUE(Eventually([&] { return ended.load(); }));
  EXPECT_FALSE(leader.election->lease()->Holds());
  Candidate next(etcd, "next");
  ASSERT_TRUE(Eventually([&] { return next.leads.load(); })) << "long before the lease would end";
}

// Two routers of one election, and workers with both addresses.
class Pair {
 public:
  explicit Pair(const EtcdServer& etcd) : etcd_(etcd) {
    StartRouter(0);
    EXPECT_TRUE(WaitServing(0));
    StartRouter(1);
    EXPECT_TRUE(WaitStandby(1, 0));
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
                           "--config=" + WriteFile("standby.yaml", absl::StrCat("election_ttl: ",
                                                                                absl::FormatDuration(kTtl))),
                           absl::StrCat("--step_timeout=", 10 * kSlowdown, "s"), "--drain_timeout=1ms"});
  }
  bool WaitServing(int i) { return routers_[i]->WaitForOutput("serving on", kPatience); }
  bool WaitStandby(int i, int leader) {
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

TEST(Standby, RequestsGoOnWhenLeadersAreKilledShutDownAndStopped) {
  SKIP_WITHOUT_ETCD();
  const EtcdServer etcd;
  Pair pair(etcd);
  constexpr uint32_t kTokens = 3000;
  TokenClients clients(pair.target(), ResumableRequests(24, kTokens));
  ASSERT_TRUE(clients.AwaitEach(10));
  pair.router(0).Signal(SIGKILL);
  ASSERT_TRUE(pair.WaitServing(1)) << pair.router(1).Stderr();
  pair.StartRouter(0);
  ASSERT_TRUE(pair.WaitStandby(0, 1)) << pair.router(0).Stderr();
  // Back to the first, without waiting for a lease to expire: a router that is shut down resigns.
  EXPECT_LT(clients.least_seen(), kTokens);
  pair.router(1).Signal(SIGTERM);
  EXPECT_EQ(pair.router(1).Wait(kPatience), 0);
  ASSERT_TRUE(pair.WaitServing(0)) << pair.router(0).Stderr();
  pair.StartRouter(1);
  ASSERT_TRUE(pair.WaitStandby(1, 0)) << pair.router(1).Stderr();
  pair.router(0).Signal(SIGSTOP);
  ASSERT_TRUE(pair.WaitServing(1)) << pair.router(1).Stderr();
  pair.router(0).Signal(SIGCONT);
  EXPECT_EQ(pair.router(0).Wait(kPatience), EXIT_FAILURE);
  EXPECT_THAT(pair.router(0).Stderr(), HasSubstr("the election lease is lost"));
  ExpectUndisturbed(clients, kTokens);
}

TEST(Standby, HasProbesReportsThatItDoesNotLeadAndChecksItsSettings) {
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
  // A wrong setting is found when a standby starts, not when it takes over.
  const RunResult wrong =
      RunProgram("bfio_router", {absl::StrCat("--election_etcd=", etcd.endpoint()), "--listen=127.0.0.1:0",
                                 "--admin_listen=127.0.0.1:0", "--http_listen=", "--policy=best"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("best"));
  // The same port serves the leader, once it leads.
  leader.reset();
  ASSERT_TRUE(standby.WaitForOutput("serving on", kPatience)) << standby.Stderr();
  EXPECT_TRUE(says("/metrics", "\nbfio:is_leader 1\n"));
  EXPECT_TRUE(says("/readyz", "ok"));
}

}  // namespace
}  // namespace bfio::testing
