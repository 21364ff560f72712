// The programs' HTTP ports as scrapers, probes and browsers use them; authorisation at the router's port,
// with tokens and TLS.
#include <gmock/gmock.h>
#include <signal.h>
#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kOperator[] = "oper-s3cr3t-oper-s3cr3t";
constexpr char kWrong[] = "nope-s3cr3t-nope-s3cr3t";

// Where a worker's metrics are; waits until it has said so.
std::string WebOf(const Process& worker) {
  constexpr char kBefore[] = "metrics and probes on http://";
  Eventually([&] {
    const std::string log = worker.Stderr();
    return log.find('\n', log.find(kBefore)) != std::string::npos;
  });
  return AddressAfter(kBefore, worker.Stderr());
}

// Status -1 when there is no response.
httplib::Response Get(const std::string& address, const std::string& path) {
  httplib::Client client("http://" + address);
  client.set_read_timeout(10 * kSlowdown);
  const auto reply = client.Get(path);
  return reply ? *reply : httplib::Response();
}

bool WaitForReply(const std::string& address, const std::string& path, int status, const std::string& body) {
  httplib::Response last;
  const auto says = [&] {
    last = Get(address, path);
    return last.status == status && last.body.find(body) != std::string::npos;
  };
  if (Eventually(says)) return true;
  ADD_FAILURE() << path << " never said " << status << " " << body << ", but " << last.status << " "
                << last.body;
  return false;
}

// The value of a series: "name{label=...}" or "name".
double Value(const std::string& text, const std::string& series) {
  const size_t at = text.find("\n" + series + " ");
  double value = -1;
  if (at == std::string::npos) return value;
  const size_t start = at + series.size() + 2;
  EXPECT_TRUE(absl::SimpleAtod(text.substr(start, text.find('\n', start) - start), &value)) << series;
  return value;
}

// The engine does not return from a step. The router has disconnected the worker by then; the failing probe
// lets a supervisor restart it.
TEST(WorkerWeb, AStuckStepLoopIsNotHealthy) {
  ClusterOptions options = {.worker_processes = 0,
                            .router_flags = {"--workers=1", "--http_listen=", "--step_timeout=1s"}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  Process worker("bfio_worker",
                 {"--router=" + cluster.address(), "--c=3600", "--worker_id=w", "--http_listen=127.0.0.1:0"});
  const std::string web = WebOf(worker);
  ASSERT_TRUE(WaitForReply(web, "/healthz", 200, "1 serving"));
  std::thread client([&] { Generate(cluster.inference(), SyntheticRequest(10, 5), absl::Seconds(60)); });
  EXPECT_TRUE(WaitForReply(web, "/healthz", 503, "w: stuck computing step 1 for "));
  EXPECT_TRUE(WaitForReply(web, "/readyz", 503, "the limit is 5s"));
  cluster.KillRouter();
  client.join();
}

TEST(WorkerWeb, PhasesAndMeasurementsFromStartToEnd) {
  ClusterOptions options = {.worker_processes = 0, .router_flags = {"--workers=2", "--http_listen="}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  const std::vector<std::string> flags = {"--router=" + cluster.address(), "--c=0.0005", "--tl=1e-8",
                                          "--slots=16", "--kv_tokens=50000"};
  const auto start = [&](const std::string& id) {
    std::vector<std::string> args = flags;
    args.push_back("--worker_id=" + id);
    args.push_back("--http_listen=127.0.0.1:0");
    return Process("bfio_worker", args);
  };
  Process first = start("w0");
  const std::string web = WebOf(first);
  ASSERT_TRUE(WaitForReply(web, "/readyz", 503, "1 joined"));
  EXPECT_EQ(Get(web, "/healthz").status, 200) << "alive, though nothing to do";
  EXPECT_EQ(Value(Get(web, "/metrics").body, "bfio:worker_connected{worker=\"w0\"}"), 1);
  EXPECT_EQ(Value(Get(web, "/metrics").body, "bfio:worker_serving{worker=\"w0\"}"), 0);

  Process second = start("w1");
  ASSERT_TRUE(WaitForReply(web, "/readyz", 200, "1 serving"));
  for (int i = 0; i < 40; ++i) {
    const GenerateResult result = Generate(cluster.inference(), SyntheticRequest(100 + i, 5));
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  }
  // The measurements of the last step are updated after its report.
  double steps = 0;
  const std::string other = WebOf(second);
  const absl::Time deadline = MonotonicNow() + kSlowdown * absl::Seconds(30);
  while (steps < 40 * 5 && MonotonicNow() < deadline) {
    steps = 0;
    for (const auto& [address, id] : {std::pair(web, "w0"), std::pair(other, "w1")}) {
      const std::string text = Get(address, "/metrics").body;
      const std::string label = absl::StrCat("{worker=\"", id, "\"}");
      steps += Value(text, "bfio:worker_steps_total" + label);
      EXPECT_EQ(Value(text, "bfio:worker_kv_capacity_tokens" + label), 50000);
    }
  }
  EXPECT_GE(steps, 40 * 5);
  const std::string text = Get(web, "/metrics").body;
  EXPECT_GT(Value(text, "bfio:worker_step_cost_fixed_seconds{worker=\"w0\"}"), 0) << "hundreds of steps tell";
  EXPECT_EQ(Value(text, "bfio:worker_kv_reserved_tokens{worker=\"w0\"}"), 0);
  EXPECT_THAT(text, Not(HasSubstr("joules"))) << "nothing was measured";

  cluster.KillRouter();
  ASSERT_TRUE(WaitForReply(web, "/metrics", 200, "bfio:worker_connected{worker=\"w0\"} 0"));
  cluster.StartRouterAgain();
  ASSERT_TRUE(WaitForReply(web, "/metrics", 200, "bfio:worker_connected{worker=\"w0\"} 1"));
  ASSERT_TRUE(WaitForReply(web, "/readyz", 200, "1 serving"));
  for (Process* worker : {&first, &second}) {
    worker->Signal(SIGTERM);
    EXPECT_EQ(worker->Wait(kSlowdown * absl::Seconds(40)), 0) << worker->Stderr();
  }
}

// A load balancer that checks /readyz must send no new requests to a router that refuses them.
TEST(RouterProbes, OnlyReadinessFailsWhileRequestsDrain) {
  Cluster cluster({.worker_processes = 1,
                   .router_flags = {"--http_listen=127.0.0.1:0", "--drain_timeout=1h"},
                   .worker_flags = {"--c=0.01", "--tl=0", "--slots=16"}});
  ASSERT_TRUE(cluster.ok());
  const std::string web = AddressAfter("metrics on http://", cluster.router().Stdout());
  RequestStream stream(cluster.inference(), SyntheticRequest(10, 60000));
  ASSERT_TRUE(stream.Read());
  EXPECT_EQ(Get(web, "/readyz").status, 200);
  cluster.router().Signal(SIGTERM);
  EXPECT_TRUE(WaitForReply(web, "/readyz", 503, "the router is shutting down"));
  EXPECT_EQ(Get(web, "/healthz").status, 200) << "a supervisor must not end the requests that still run";
  EXPECT_TRUE(stream.Read()) << "the request runs on";
  stream.Cancel();
  EXPECT_EQ(cluster.router().Wait(kSlowdown * absl::Seconds(60)), 0) << cluster.router().Stderr();
}

// A router whose HTTP port requires operators' tokens and TLS.
class RouterWeb : public ::testing::Test {
 protected:
  void SetUp() override {
    // A client may still be writing when it is refused.
    signal(SIGPIPE, SIG_IGN);
    folder_ = absl::StrCat(TestDirectory(), "/web_certs");
    MakeCerts(folder_);
    std::ofstream(folder_ + "/operators")
        << "root token:" << kOperator << "\nroot token:gone-s3cr3t-gone-s3cr3t expires=2001-01-01\n";
    std::filesystem::permissions(folder_ + "/operators",
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }

  void StartWithTls() {
    Start({absl::StrCat("--admin_tls=cert=", folder_, "/admin-server.crt,key=", folder_,
                        "/admin-server.key,ca=", folder_, "/admin-ca.crt")});
  }

  void Start(const std::vector<std::string>& more) {
    std::vector<std::string> args = {"--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
                                     "--http_listen=127.0.0.1:0", "--policy=fcfs",
                                     absl::StrCat("--admin_tokens=", folder_, "/operators")};
    args.insert(args.end(), more.begin(), more.end());
    router_ = std::make_unique<Process>("bfio_router", args);
    ASSERT_TRUE(router_->WaitForOutput("waiting for", kSlowdown * absl::Seconds(30))) << router_->Stderr();
    const std::string scheme = more.empty() ? "http://" : "https://";
    address_ = scheme + AddressAfter(absl::StrCat("metrics on ", scheme), router_->Stdout());
  }

  // `certificate`: a name in folder_, without ".crt"; empty for none.
  std::unique_ptr<httplib::Client> Caller(const std::string& token,
                                          const std::string& certificate = "") const {
    const std::string path = absl::StrCat(folder_, "/", certificate);
    auto client = certificate.empty()
                      ? std::make_unique<httplib::Client>(address_)
                      : std::make_unique<httplib::Client>(address_, path + ".crt", path + ".key");
    client->set_ca_cert_path((folder_ + "/admin-ca.crt").c_str());
    client->enable_server_certificate_verification(true);
    client->set_read_timeout(10 * kSlowdown);
    if (!token.empty()) client->set_bearer_token_auth(token);
    return client;
  }
  // Waits for a log line; calls repeatedly, because files are checked on new connections.
  bool LogComesToSay(const std::string& text) const {
    return Eventually([&] {
      (void)Caller("", "admin")->Get("/healthz");
      return absl::StrContains(router_->Stderr(), text);
    });
  }
  std::string Policy() const { return Caller(kOperator)->Get("/metrics")->body; }

  std::string folder_, address_;
  std::unique_ptr<Process> router_;
};

// Stops one thread of another process, as a debugger does.
class StoppedThread {
 public:
  // Waits for a thread of this name, because a thread names itself.
  StoppedThread(pid_t process, const std::string& name) {
    const auto find = [&] {
      Find(process, name);
      return found();
    };
    if (!Eventually(find)) return;
    stopped_ = ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) == 0 &&
               ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0 &&
               waitpid(thread_, nullptr, __WALL) == thread_;
  }
  ~StoppedThread() {
    if (stopped_) ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
  }

  bool found() const { return thread_ != 0; }
  bool stopped() const { return stopped_; }

 private:
  void Find(pid_t process, const std::string& name) {
    for (const auto& task : std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/task"))) {
      std::ifstream file(task.path() / "comm");
      std::string comm;
      if (!std::getline(file, comm) || comm != name) continue;
      thread_ = std::stoi(task.path().filename());
    }
  }

  pid_t thread_ = 0;
  bool stopped_ = false;
};

TEST_F(RouterWeb, ProbesFailWhileTheDecisionThreadIsStuck) {
  Start({});
  const std::string web = address_.substr(std::string("http://").size());
  for (const char* const probe : {"/healthz", "/readyz"}) {
    EXPECT_EQ(Get(web, probe).status, 200) << "no worker need be there";
  }
  {
    const StoppedThread thread(router_->pid(), "bfio-decide");
    ASSERT_TRUE(thread.found());
    if (!thread.stopped()) GTEST_SKIP() << "no process may trace another here";
    EXPECT_TRUE(WaitForReply(web, "/healthz", 503, "the decision thread has been stuck"));
    EXPECT_EQ(Get(web, "/readyz").status, 503);
  }
  EXPECT_TRUE(WaitForReply(web, "/healthz", 200, "ok"));
}

TEST_F(RouterWeb, AProgramMayOpenAsManyFilesAsItsHardLimitAllows) {
  rlimit files;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlim_t before = std::exchange(files.rlim_cur, 512);
  ASSERT_LT(files.rlim_cur, files.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  Start({});
  files.rlim_cur = before;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  rlimit routers;
  ASSERT_EQ(prlimit(router_->pid(), RLIMIT_NOFILE, nullptr, &routers), 0);
  EXPECT_EQ(routers.rlim_cur, files.rlim_max);
}

TEST_F(RouterWeb, TokensGuardMetricsAndActions) {
  Start({});
  const auto nobody = Caller(""), intruder = Caller(kWrong), expired = Caller("gone-s3cr3t-gone-s3cr3t"),
             root = Caller(kOperator);
  for (const char* path : {"/", "/live.css", "/figures.js", "/charts.js", "/live.js", "/healthz"}) {
    EXPECT_EQ(nobody->Get(path)->status, 200)
        << path << " has no figure in it; a browser asks for the token with it";
  }
  for (const char* path : {"/metrics", "/api/state", "/api/page", "/api/policies", "/api/events"}) {
    EXPECT_EQ(nobody->Get(path)->status, 401) << path;
    EXPECT_EQ(nobody->Get(path)->get_header_value("WWW-Authenticate"), "Bearer");
    EXPECT_GE(intruder->Get(path)->status, 401) << path;
    EXPECT_GE(expired->Get(path)->status, 401) << path;
  }
  EXPECT_EQ(root->Get("/api/state")->status, 200);
  EXPECT_THAT(Policy(), HasSubstr("policy_info{policy=\"fcfs\"}"));
  const std::string to_lpt = R"({"name": "lpt"})", drain = R"({"worker_id": "w0"})";
  for (const auto* caller : {nobody.get(), intruder.get(), expired.get()}) {
    for (const auto& [path, body] : {std::pair("/api/policy", to_lpt), std::pair("/api/drain", drain)}) {
      const auto reply = const_cast<httplib::Client*>(caller)->Post(path, body, "application/json");
      EXPECT_TRUE(reply->status == 401 || reply->status == 403) << path << ": " << reply->status;
    }
  }
  EXPECT_THAT(Policy(), HasSubstr("policy_info{policy=\"fcfs\"}")) << "no operator has switched it";
  EXPECT_EQ(root->Post("/api/policy", to_lpt, "text/plain")->status, 415)
      << "what a form of another site can send";
  EXPECT_EQ(root->Post("/api/policy", R"({"name": "best"})", "application/json")->status, 400);
  EXPECT_EQ(root->Post("/api/drain", drain, "application/json")->status, 404);
  EXPECT_EQ(root->Post("/api/policy", to_lpt, "application/json")->status, 200);
  EXPECT_THAT(Policy(), HasSubstr("policy_info{policy=\"lpt\"}"));
  EXPECT_THAT(router_->Stderr(), Not(HasSubstr("s3cr3t")));
}

TEST_F(RouterWeb, WithTlsACertificateIsRequiredAndAScrapersOnlyReads) {
  std::ofstream(folder_ + "/operators", std::ios::app) << "\nscraper cert:admin role=read\n";
  StartWithTls();
  EXPECT_FALSE(Caller(kOperator)->Get("/healthz")) << "without a certificate";
  httplib::Client plain("http://" + address_.substr(8));
  EXPECT_FALSE(plain.Get("/healthz") && plain.Get("/healthz")->status == 200) << "without TLS";
  for (const char* intruder : {"expired-admin", "wrong", "client"})
    EXPECT_FALSE(Caller(kOperator, intruder)->Get("/healthz")) << intruder;
  const auto scraper = Caller("", "admin"), root = Caller(kOperator, "admin");
  EXPECT_EQ(scraper->Get("/metrics")->status, 200);
  const std::string to_lpt = R"({"name": "lpt"})", worker = R"({"worker_id": "w0"})";
  EXPECT_EQ(scraper->Post("/api/policy", to_lpt, "application/json")->status, 403);
  EXPECT_EQ(scraper->Post("/api/drain", worker, "application/json")->status, 403);
  EXPECT_EQ(scraper->Post("/api/undrain", worker, "application/json")->status, 403);
  EXPECT_EQ(root->Post("/api/policy", to_lpt, "application/json")->status, 200);
  EXPECT_EQ(root->Post("/api/undrain", worker, "application/json")->status, 404);
  EXPECT_THAT(scraper->Get("/metrics")->body, HasSubstr("bfio:logins_refused_total{port=\"admin\"} "));
  // Ends the router first, because a separate thread writes the log.
  router_->Signal(SIGTERM);
  EXPECT_EQ(router_->Wait(kSlowdown * absl::Seconds(40)), 0);
  const std::string log = router_->Stderr();
  EXPECT_THAT(log, HasSubstr(": set policy lpt: done"));
  EXPECT_THAT(log, HasSubstr(": undrain worker w0: no worker w0"));
  for (const char* why : {"certificate verify failed", "peer did not return a certificate", "http request"}) {
    EXPECT_THAT(log, HasSubstr(absl::StrCat("refused: HTTP port: TLS handshake: ", why)));
  }
}

TEST_F(RouterWeb, CertificatesAreReplacedUnderARunningRouter) {
  StartWithTls();
  ASSERT_EQ(Caller("", "admin")->Get("/healthz")->status, 200);
  const std::string old = folder_;
  folder_ = old + "-new";
  MakeCerts(folder_);
  EXPECT_FALSE(Caller("", "admin")->Get("/healthz")) << "not yet";
  const auto replace = [&](const std::string& file) {
    std::filesystem::copy_file(folder_ + file, old + "/next");
    std::filesystem::rename(old + "/next", old + file);
  };
  replace("/admin-server.crt");
  EXPECT_TRUE(LogComesToSay("the previous certificate remains in use"))
      << "no key of this certificate is there yet";
  replace("/admin-ca.crt");
  replace("/admin-server.key");
  EXPECT_TRUE(LogComesToSay("reloaded the certificate")) << router_->Stderr();
  EXPECT_EQ(Caller(kOperator, "admin")->Get("/metrics")->status, 200) << router_->Stderr();
  // A client that trusts the new router, with a certificate of the old CA.
  httplib::Client stale(address_, old + "/admin.crt", old + "/admin.key");
  stale.set_ca_cert_path((folder_ + "/admin-ca.crt").c_str());
  stale.enable_server_certificate_verification(true);
  EXPECT_FALSE(stale.Get("/healthz"));
}

}  // namespace
}  // namespace bfio::testing
