// Authentication and TLS per port: real processes, certificates from deploy/make_certs.
//
// The other ends use gRPC's own SSL credentials with PEM texts instead of the code under test.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "bfio/v1/admin.pb.h"
#include "bfio/v1/worker.grpc.pb.h"
#include "nlohmann/json.hpp"
#include "tests/testing/cluster.h"
#include "tests/testing/gateway_calls.h"
#include "tests/testing/sockets.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Tokens of tenants and operators; no program may ever print one.
constexpr char kAcme[] = "acme-s3cr3t-acme-s3cr3t";
constexpr char kZeta[] = "zeta-s3cr3t-zeta-s3cr3t";
constexpr char kExpired[] = "gone-s3cr3t-gone-s3cr3t";
constexpr char kOperator[] = "oper-s3cr3t-oper-s3cr3t";
constexpr char kWrong[] = "nope-s3cr3t-nope-s3cr3t";

constexpr char kCerts[] = "--workers=w0,w1 --for-tests";

// New certificates and tokens for each test, so that it may change them.
class Security : public ::testing::Test {
 protected:
  void SetUp() override {
    static int number = 0;
    folder_ = absl::StrCat(TestDirectory(), "/certs", number++);
    MakeCerts(folder_, kCerts);
    Write("tokens", absl::StrCat("acme token:", kAcme, "\nzeta token:", kZeta, "\nacme token:", kExpired,
                                 " expires=2001-01-01\n"));
    Write("operators",
          absl::StrCat("root token:", kOperator, "\nroot token:", kExpired, " expires=2001-01-01\n"));
  }
  void TearDown() override {
    // All output of the programs of this test.
    for (const auto& entry : std::filesystem::directory_iterator(TestDirectory())) {
      if (entry.path().extension() != ".err" && entry.path().extension() != ".out") continue;
      const std::string text = ReadFile(entry.path());
      EXPECT_THAT(text, Not(HasSubstr("s3cr3t"))) << entry.path();
      EXPECT_THAT(text, Not(HasSubstr("PRIVATE KEY"))) << entry.path();
      for (const auto& file : std::filesystem::directory_iterator(folder_)) {
        if (file.path().extension() != ".key") continue;
        const std::vector<std::string> lines = absl::StrSplit(ReadFile(file.path()), '\n');
        EXPECT_THAT(text, Not(HasSubstr(lines.at(1)))) << entry.path() << " holds " << file.path();
      }
    }
  }

  std::string File(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  // Written completely before it replaces the old file, and readable only by its owner.
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(File("new")) << text;
    std::filesystem::permissions(File("new"),
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::filesystem::rename(File("new"), File(name));
  }
  std::string Tls(const std::string& link, const std::string& name) const {
    return absl::StrCat("--", link, "_tls=cert=", File(name + ".crt"), ",key=", File(name + ".key"),
                        ",ca=", File(link + "-ca.crt"));
  }
  static void Add(std::vector<std::string>& args, const std::string& flags) {
    for (const absl::string_view flag : absl::StrSplit(flags, '|')) args.emplace_back(flag);
  }

  // A router with authentication and TLS on all ports.
  void StartRouter(const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {"--listen=127.0.0.1:0",
                                     "--worker_listen=127.0.0.1:0",
                                     "--admin_listen=127.0.0.1:0",
                                     "--workers=1",
                                     "--bind_worker_id",
                                     absl::StrCat("--client_tokens=", File("tokens")),
                                     absl::StrCat("--admin_tokens=", File("operators"))};
    for (const std::string link : {"client", "worker", "admin"}) Add(args, Tls(link, link + "-server"));
    args.insert(args.end(), more.begin(), more.end());
    router_ = std::make_unique<Process>("bfio_router", args);
    ASSERT_TRUE(router_->WaitForOutput("waiting for", kSlowdown * absl::Seconds(30))) << router_->Stderr();
    const std::string line = router_->Stdout();
    client_ = AddressAfter("serving on ", line);
    worker_ = AddressAfter("workers on ", line);
    admin_ = AddressAfter("admin on ", line);
  }
  Process StartWorker(const std::string& id, const std::string& certificate,
                      const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {absl::StrCat("--router=", worker_),
                                     absl::StrCat("--worker_id=", id),
                                     "--c=0.0005",
                                     "--tl=0",
                                     "--slots=16",
                                     absl::StrCat("--connect_timeout=", 3 * kSlowdown, "s")};
    Add(args, Tls("worker", certificate));
    args.insert(args.end(), more.begin(), more.end());
    return Process("bfio_worker", args);
  }

  // A separate connection to an address. `name`: the certificate without ".crt", empty for none.
  std::shared_ptr<grpc::Channel> Connect(const std::string& address, const std::string& ca,
                                         const std::string& name) const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ReadFile(File(ca + ".crt"));
    if (!name.empty()) {
      options.pem_cert_chain = ReadFile(File(name + ".crt"));
      options.pem_private_key = ReadFile(File(name + ".key"));
    }
    return Channel(address, grpc::SslCredentials(options));
  }
  static std::shared_ptr<grpc::Channel> Channel(
      const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address, credentials, args);
  }

  // Calls any method, by default with an empty request.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& token, const std::string& request = "") {
    return RawCall(channel, method, request, 1 << 20, GRPC_COMPRESS_NONE, token).second;
  }

  grpc::Status Abort(const std::string& token, const std::string& id = "x") {
    v1::AbortRequest request;
    request.set_request_id(id);
    return Call(Connect(client_, "client-ca", "client"), "/bfio.v1.Inference/Abort", token,
                request.SerializeAsString());
  }

  std::string folder_, client_, worker_, admin_;
  std::unique_ptr<Process> router_;
};

// Ends the program first, because a separate thread writes the log.
std::string LogOfEnded(Process& process) {
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(kSlowdown * absl::Seconds(40)), 0);
  return process.Stderr();
}

TEST_F(Security, ACorrectSetUpServesALoadOverMutualTls) {
  StartRouter();
  Write("token", absl::StrCat(kAcme, "\n"));
  Write("operator", kOperator);
  Process w0 = StartWorker("w0", "w0"), w1 = StartWorker("w1", "w1", {"--ranks_per_process=2"});
  std::vector<std::string> args = {"--target=" + client_,
                                   "--admin=" + admin_,
                                   "--requests=200",
                                   "--concurrency=32",
                                   "--json=-",
                                   "--client_token_file=" + File("token"),
                                   "--admin_token_file=" + File("operator")};
  Add(args, Tls("client", "client"));
  Add(args, Tls("admin", "admin"));
  const RunResult run = RunProgram("bfio_loadgen", args);
  ASSERT_EQ(run.code, 0) << run.err << router_->Stderr();
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json.at("completed"), 200);
  EXPECT_THAT(router_->Stderr(), Not(HasSubstr("refused")));
  EXPECT_THAT(run.err, Not(HasSubstr("warning"))) << "of files' rights, for instance";
  for (Process* worker : {&w0, &w1}) worker->Signal(SIGTERM);
  for (Process* worker : {&w0, &w1})
    EXPECT_EQ(worker->Wait(kSlowdown * absl::Seconds(40)), 0) << worker->Stderr();
  router_->Signal(SIGTERM);
  EXPECT_EQ(router_->Wait(kSlowdown * absl::Seconds(40)), 0);
}

TEST_F(Security, NoPortTakesAWrongCertificate) {
  StartRouter();
  struct PortUnderTest {
    std::string address, ca, good, expired, method;
  };
  const std::vector<PortUnderTest> ports = {
      {client_, "client-ca", "client", "expired", "/bfio.v1.Inference/GetLoads"},
      {worker_, "worker-ca", "w0", "expired-worker", "/bfio.v1.WorkerLink/Attach"},
      {admin_, "admin-ca", "admin", "expired-admin", "/bfio.v1.Admin/GetClusterState"}};
  for (const PortUnderTest& port : ports) {
    // The health service answers every authenticated caller.
    const std::string health = "/grpc.health.v1.Health/Check";
    EXPECT_TRUE(Call(Connect(port.address, port.ca, port.good), health, "").ok()) << port.method;
    std::vector<std::string> intruders = {"", port.expired, "wrong"};
    for (const PortUnderTest& other : ports) {
      if (other.good != port.good) intruders.push_back(other.good);
    }
    for (const std::string& intruder : intruders) {
      for (const std::string& method : {health, port.method}) {
        const grpc::Status status = Call(Connect(port.address, port.ca, intruder), method, kAcme);
        EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << port.method << " took " << intruder;
      }
    }
    EXPECT_EQ(
        Call(Channel(port.address, grpc::InsecureChannelCredentials()), port.method, kAcme).error_code(),
        grpc::StatusCode::UNAVAILABLE)
        << "plain text at " << port.method;
    // A server with another CA's certificate is refused.
    EXPECT_EQ(Call(Connect(port.address, "wrong-ca", port.good), health, "").error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  const std::string log = LogOfEnded(*router_);
  EXPECT_EQ(CountOf(log, "refused: TLS handshake: certificate verify failed"), 1u) << log;
  EXPECT_EQ(CountOf(log, "refused: TLS handshake: peer did not return a certificate"), 1u) << log;
  EXPECT_EQ(CountOf(log, "refused: TLS handshake: wrong version number"), 1u) << log;
}

TEST_F(Security, EveryMethodRequiresAToken) {
  StartRouter();
  const auto client = Connect(client_, "client-ca", "client"), admin = Connect(admin_, "admin-ca", "admin");
  // Generated from the descriptors, so that future methods are tested too.
  const auto try_all = [](const std::string& service, const std::shared_ptr<grpc::Channel>& channel,
                          const std::string& intruder) {
    const auto* descriptor = grpc::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
    ASSERT_NE(descriptor, nullptr);
    for (int i = 0; i < descriptor->method_count(); ++i) {
      const std::string method = absl::StrCat("/", service, "/", descriptor->method(i)->name());
      for (const std::string& token : {std::string(), std::string(kWrong), std::string(kExpired), intruder}) {
        EXPECT_EQ(Call(channel, method, token).error_code(), grpc::StatusCode::UNAUTHENTICATED)
            << method << token;
      }
    }
  };
  try_all("bfio.v1.Inference", client, kOperator);
  try_all("bfio.v1.Admin", admin, kAcme);
  EXPECT_TRUE(Call(admin, "/bfio.v1.Admin/GetClusterState", kOperator).ok());
  EXPECT_TRUE(Call(client, "/bfio.v1.Inference/Abort", kAcme).ok());
  v1::GenerateRequest foreign = SyntheticRequest(10, 3);
  foreign.set_tenant("zeta");
  EXPECT_EQ(Call(client, "/bfio.v1.Inference/Generate", kAcme, foreign.SerializeAsString()).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  const std::string log = LogOfEnded(*router_);
  for (const char* api : {"client API", "admin API"}) {
    for (const char* why : {"no bearer token", "unknown bearer token", "the bearer token has expired"}) {
      EXPECT_EQ(CountOf(log, absl::StrCat("refused: ", api, ": ", why)), 1u) << log;
    }
  }
  EXPECT_EQ(CountOf(log, "refused: client API: the bearer token belongs to another tenant"), 1u) << log;
}

// By token and by certificate; the log names the operator of each action.
TEST_F(Security, RoleReadMayNotOperate) {
  Write("operators", absl::StrCat("root token:", kOperator, "\nscraper token:", kWrong,
                                  " role=read\nprobe cert:admin role=read\n"));
  StartRouter();
  const auto admin = Connect(admin_, "admin-ca", "admin");
  v1::SetPolicyRequest policy;
  policy.mutable_policy()->set_name("lpt");
  v1::UndrainWorkerRequest undrain;
  undrain.set_worker_id(std::string(5000, 'w'));
  for (const std::string& token : {std::string(kWrong), std::string()}) {
    EXPECT_TRUE(Call(admin, "/bfio.v1.Admin/GetClusterState", token).ok());
    for (const char* method : {"SetPolicy", "DrainWorker", "UndrainWorker"}) {
      EXPECT_EQ(Call(admin, absl::StrCat("/bfio.v1.Admin/", method), token).error_code(),
                grpc::StatusCode::PERMISSION_DENIED)
          << method;
    }
  }
  EXPECT_TRUE(Call(admin, "/bfio.v1.Admin/SetPolicy", kOperator, policy.SerializeAsString()).ok());
  EXPECT_EQ(Call(admin, "/bfio.v1.Admin/UndrainWorker", kOperator, undrain.SerializeAsString()).error_code(),
            grpc::StatusCode::NOT_FOUND);
  const std::string log = LogOfEnded(*router_);
  EXPECT_EQ(CountOf(log, "operator root: set policy lpt: done"), 1u) << log;
  EXPECT_EQ(
      CountOf(log, absl::StrCat("operator root: undrain worker ", std::string(256, 'w'), "... (5000 bytes)")),
      1u)
      << log;
  EXPECT_EQ(CountOf(log, "operator scraper"), 0u);
}

TEST_F(Security, CertificatesAreReplacedUnderARunningRouter) {
  StartRouter();
  const std::string health = "/grpc.health.v1.Health/Check";
  ASSERT_TRUE(Call(Connect(client_, "client-ca", "client"), health, "").ok());
  // Another CA for clients, and another for the router's own certificate.
  const std::string old = folder_;
  folder_ = old + "-new";
  MakeCerts(folder_, kCerts);
  for (const std::string file : {"client-ca.crt", "client-server.crt", "client-server.key"}) {
    std::filesystem::copy_file(File(file), absl::StrCat(old, "/next"));
    // For a while the pair is half old and half new, which must have no effect.
    std::filesystem::rename(absl::StrCat(old, "/next"), absl::StrCat(old, "/", file));
    absl::SleepFor(absl::Milliseconds(700));
  }
  ASSERT_TRUE(Eventually([&] { return Call(Connect(client_, "client-ca", "client"), health, "").ok(); }))
      << "the new certificates are not taken up: " << router_->Stderr();
  EXPECT_TRUE(Call(Connect(client_, "client-ca", "client"), "/bfio.v1.Inference/Abort", kAcme).ok());
  // The old client's certificate is now refused, also where the client trusts the router.
  grpc::SslCredentialsOptions stale;
  stale.pem_root_certs = ReadFile(File("client-ca.crt"));
  stale.pem_cert_chain = ReadFile(old + "/client.crt");
  stale.pem_private_key = ReadFile(old + "/client.key");
  EXPECT_EQ(Call(Channel(client_, grpc::SslCredentials(stale)), health, "").error_code(),
            grpc::StatusCode::UNAVAILABLE);
  // The other ports have kept their certificates.
  folder_ = old;
  EXPECT_TRUE(Call(Connect(admin_, "admin-ca", "admin"), health, "").ok());
}

// A pipe would keep the thread that reads it waiting, and so the router's exit; 1 TiB would be read.
TEST_F(Security, WhileCertificateFilesAreUnusableThePreviousOnesAreInUse) {
  StartRouter();
  const auto text = [&] { std::ofstream(File("new")) << "no certificate\n"; };
  const auto pipe = [&] { ASSERT_EQ(mkfifo(File("new").c_str(), 0600), 0); };
  const auto huge = [&] {
    text();
    std::filesystem::resize_file(File("new"), uint64_t{1} << 40);
  };
  const std::vector<std::pair<std::string, std::function<void()>>> damages = {{"admin-server.crt", text},
                                                                              {"admin-server.key", huge},
                                                                              {"admin-server.crt", pipe},
                                                                              {"admin-ca.crt", pipe}};
  grpc::SslCredentialsOptions admin = {.pem_root_certs = ReadFile(File("admin-ca.crt")),
                                       .pem_private_key = ReadFile(File("admin.key")),
                                       .pem_cert_chain = ReadFile(File("admin.crt"))};
  std::string damaged, good;
  for (size_t told = 0; told < damages.size();) {
    const auto& [file, make] = damages[told];
    if (!damaged.empty()) Write(damaged, good);
    good = ReadFile(File(damaged = file));
    make();
    std::filesystem::rename(File("new"), File(file));
    ++told;
    EXPECT_TRUE(Eventually([&] {
      return CountOf(router_->Stderr(), "the previous certificate remains in use") == told;
    })) << router_->Stderr();
    const auto channel = Channel(admin_, grpc::SslCredentials(admin));
    EXPECT_TRUE(Call(channel, "/grpc.health.v1.Health/Check", "").ok()) << file;
  }
  router_->Signal(SIGTERM);
  EXPECT_EQ(router_->Wait(kSlowdown * absl::Seconds(40)), 0);
  Write(damaged, good);
}

TEST_F(Security, TokensAreReplacedUnderARunningRouter) {
  std::filesystem::permissions(File("tokens"), std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  StartRouter();
  EXPECT_EQ(CountOf(router_->Stderr(), "readable by every user of this machine"), 1u) << router_->Stderr();
  ASSERT_TRUE(Abort(kAcme).ok());
  ASSERT_EQ(Abort(kWrong).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  const auto becomes = [&](const std::string& token, grpc::StatusCode code) {
    return Eventually([&] { return Abort(token).error_code() == code; });
  };
  Write("tokens", absl::StrCat("acme token:", kAcme, "\nacme token:", kWrong, "\n"));
  EXPECT_TRUE(becomes(kWrong, grpc::StatusCode::OK)) << router_->Stderr();
  EXPECT_TRUE(Abort(kAcme).ok()) << "both at once: that is how tokens are rotated";
  Write("tokens", absl::StrCat("acme token:", kWrong, "\n"));
  EXPECT_TRUE(becomes(kAcme, grpc::StatusCode::UNAUTHENTICATED)) << router_->Stderr();
  Write("tokens", absl::StrCat("acme token:", kAcme, "\nzeta ", kZeta, "\n"));
  Eventually([&] { return CountOf(router_->Stderr(), "tokens:2: ") > 0; });
  EXPECT_EQ(CountOf(router_->Stderr(), "the previous ones remain in use"), 1u) << router_->Stderr();
  EXPECT_TRUE(Abort(kWrong).ok());
  EXPECT_EQ(Abort(kAcme).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(Security, AWorkerJoinsOnlyUnderItsCertificatesName) {
  StartRouter();
  Process impostor = StartWorker("w1", "w0");
  EXPECT_EQ(impostor.Wait(kSlowdown * absl::Seconds(60)), 1) << impostor.Stderr();
  EXPECT_THAT(impostor.Stderr(), HasSubstr("the certificate does not name this worker_id"));
  EXPECT_EQ(CountOf(router_->Stderr(), "refused: worker link: the certificate does not name the worker_id"),
            1u);
  // Unauthenticated workers give up after --connect_timeout, or continue to try; they never join.
  for (const char* certificate : {"expired-worker", "wrong", "client"}) {
    Process intruder = StartWorker("w0", certificate);
    intruder.Wait(absl::Seconds(2));
    intruder.Signal(SIGKILL);
  }
  EXPECT_EQ(CountOf(router_->Stderr(), " attached "), 0u) << router_->Stderr();
  Process honest = StartWorker("w0", "w0");
  Eventually([&] { return CountOf(router_->Stderr(), "worker w0 attached") > 0; });
  EXPECT_EQ(CountOf(router_->Stderr(), "worker w0 attached"), 1u) << router_->Stderr();
}

TEST_F(Security, OversizedMessagesAreRefused) {
  StartRouter({"--max_prompt_tokens=1000"});
  const auto client = Connect(client_, "client-ca", "client");
  v1::GenerateRequest request = SyntheticRequest(10, 3);
  for (int i = 0; i < 200'000; ++i) request.mutable_token_ids()->add_ids(70'000);
  EXPECT_EQ(Call(client, "/bfio.v1.Inference/Generate", kAcme, request.SerializeAsString()).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::GenerateRequest resume = SyntheticRequest(10, 3);
  resume.set_resume_from_index(60'000);
  for (int i = 0; i < 60'000; ++i) resume.add_received_token_ids(70'000);
  EXPECT_EQ(Call(client, "/bfio.v1.Inference/Generate", kAcme, resume.SerializeAsString()).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT)
      << "a message has space for the tokens that came before; what is wrong here is their number";
  v1::DrainWorkerRequest drain;
  drain.set_worker_id(std::string(100'000, 'w'));
  EXPECT_EQ(Call(Connect(admin_, "admin-ca", "admin"), "/bfio.v1.Admin/DrainWorker", kOperator,
                 drain.SerializeAsString())
                .error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_FALSE(Call(client, "/bfio.v1.Inference/Abort", std::string(20'000, 't')).ok());
  // That connection may be closed because of it; another one is served.
  EXPECT_TRUE(Call(Connect(client_, "client-ca", "client"), "/bfio.v1.Inference/Abort", kAcme).ok());
}

TEST_F(Security, UnprotectedPortsNeedTheInsecureFlag) {
  const auto refused = [](const std::vector<std::string>& args, const std::string& why) {
    const RunResult run = RunProgram("bfio_router", args);
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_THAT(run.err, HasSubstr(why));
    EXPECT_EQ(CountOf(run.err, "\n"), 1u) << run.err;
  };
  const std::string loopback = "--listen=127.0.0.1:0", admin = "--admin_listen=127.0.0.1:0";
  std::vector<std::string> encrypted = {
      "--listen=0.0.0.0:0", admin, "--worker_listen=127.0.0.1:0",
      "--client_tls=cert=" + File("client-server.crt") + ",key=" + File("client-server.key")};
  // Which ports need what: tests/unit/common/net/net_test.cc.
  refused({loopback, "--admin_listen=0.0.0.0:0"}, "give --admin_tls=cert=FILE,key=FILE");
  refused(encrypted,
          "callers are not authenticated: give --client_tls=ca=FILE or --client_tokens, or --insecure");
  refused({loopback, admin, "--client_tokens=" + File("tokens")}, "workers must have a port of their own");
  refused({loopback, admin, "--worker_listen=127.0.0.1:0",
           "--client_tls=cert=" + File("client-server.crt") + ",key=" + File("client.key")},
          "is not the key of the certificate");
  refused({loopback, admin, "--worker_listen=127.0.0.1:0", "--client_tokens=" + File("client.key")},
          "client.key:1: ");
  refused({loopback, admin, "--bind_worker_id"}, "--bind_worker_id needs --worker_tls with ca=FILE");
  // With --insecure, or with the missing file, it serves.
  for (const std::string& last : {std::string("--insecure"), "--client_tokens=" + File("tokens")}) {
    std::vector<std::string> args = encrypted;
    args.push_back(last);
    Process router("bfio_router", args);
    EXPECT_TRUE(router.WaitForOutput("waiting for", kSlowdown * absl::Seconds(30))) << router.Stderr();
  }
}

// By config file, the only place of these settings. The token is replaced while the router runs.
TEST_F(Security, EnginesAreCalledWithCertificateAndToken) {
  const HeldPort port;
  const std::string tls = Tls("worker", "worker-server").substr(strlen("--worker_tls="));
  Process engine("bfio_test_engine", {absl::StrCat("--listen=", port.address()), absl::StrCat("--tls=", tls),
                                      absl::StrCat("--token=", kAcme)});
  ASSERT_TRUE(engine.WaitForOutput("API at", kSlowdown * absl::Seconds(30))) << engine.Stderr();
  Write("token", kAcme);
  Write("wrong", kWrong);
  const auto config = [&](const std::string& name, const std::string& ca, const std::string& token) {
    Write(name, absl::StrCat("engines:\n- {url: \"vllm://", port.address(), "\", tls: \"ca=", File(ca),
                             ",cert=", File("w0.crt"), ",key=", File("w0.key"), "\"",
                             token.empty() ? "" : absl::StrCat(", token_file: ", File(token)), "}\n"));
    return absl::StrCat("--config=", File(name));
  };
  for (const auto& [ca, token, expected] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"worker-ca.crt", "token", "slots"},
           {"worker-ca.crt", "wrong", "the token is wrong"},
           {"worker-ca.crt", "", "the token is wrong"},
           {"client-ca.crt", "token", "certificate verify failed"},
           {"nothing.crt", "token", "cannot read"},
           {"worker-ca.crt", "nothing", "cannot read"}}) {
    const RunResult check = RunProgram("bfio_router", {"--check_config", config("checked.yaml", ca, token)});
    EXPECT_EQ(check.code == 0, expected == "slots") << ca << " " << token;
    EXPECT_THAT(check.out + check.err, HasSubstr(expected)) << ca << " " << token;
  }
  Process router("bfio_router", {"--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
                                 "--http_listen=", config("router.yaml", "worker-ca.crt", "wrong")});
  const auto logs = [&](const char* text) {
    return Eventually([&] { return absl::StrContains(router.Stderr(), text); });
  };
  ASSERT_TRUE(logs("the token is wrong")) << router.Stderr();
  Write("wrong", kAcme);
  EXPECT_TRUE(logs("ranks of")) << router.Stderr();
}

}  // namespace
}  // namespace bfio::testing
