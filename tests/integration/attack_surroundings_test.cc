// Faults around the programs: no process reads their log, etcd is slow. Real programs over loopback.
#include <gmock/gmock.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/testing/cluster.h"
#include "tests/testing/etcd_server.h"
#include "tests/testing/http_get.h"
#include "tests/testing/log_pipe.h"

namespace bfio::testing {
namespace {

constexpr absl::Duration kDayPatience = absl::Seconds(60 * kSlowdown);

// --- a blocked standard error ---

size_t LinesWith(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) count += absl::StrContains(line, part);
  return count;
}

// A router and a worker, whose standard error may each be a pipe.
class BlockedLog : public ::testing::Test {
 protected:
  void Start(const LogPipe* of_router, const LogPipe* of_worker,
             const std::vector<std::string>& router_flags = {}) {
    std::vector<std::string> args = {absl::StrCat("--listen=", port_.address()), "--admin_listen=127.0.0.1:0",
                                     "--http_listen="};
    args.insert(args.end(), router_flags.begin(), router_flags.end());
    router_ = std::make_unique<Process>("bfio_router", args, WrapperOf(of_router));
    ASSERT_TRUE(router_->WaitForOutput("waiting for", kDayPatience));
    worker_ = std::make_unique<Process>(
        "bfio_worker",
        std::vector<std::string>{absl::StrCat("--router=", port_.address()), "--c=0.0005", "--tl=0",
                                 "--slots=16", "--log_level=debug"},
        WrapperOf(of_worker));
    inference_ =
        v1::Inference::NewStub(grpc::CreateChannel(port_.address(), grpc::InsecureChannelCredentials()));
  }
  // Starts a resumable request and disconnects.
  void Abandon(int number) {
    v1::GenerateRequest request = SyntheticRequest(10, 10'000);
    request.set_request_id(absl::StrCat("abandoned-", number));
    request.set_resumable(true);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kDayPatience));
    const auto reader = inference_->Generate(&context, request);
    v1::GenerateResponse response;
    ASSERT_TRUE(reader->Read(&response)) << "request " << number << " gets no token";
    context.TryCancel();
  }
  void ExpectDecoding() {
    const GenerateResult result = Generate(*inference_, SyntheticRequest(10, 50), kDayPatience);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens.size(), 50u);
  }

  std::unique_ptr<Process> router_, worker_;
  std::unique_ptr<v1::Inference::Stub> inference_;

 private:
  static std::vector<std::string> WrapperOf(const LogPipe* pipe) {
    return pipe == nullptr ? std::vector<std::string>() : pipe->wrapper();
  }

  const HeldPort port_;
};

// Number of log lines, one per request; far more than a page holds.
constexpr int kLines = 80;

TEST_F(BlockedLog, OfTheRouterDoesNotStopDecoding) {
  LogPipe pipe;
  ASSERT_NO_FATAL_FAILURE(
      Start(&pipe, nullptr, {absl::StrCat("--client_timeout=", 300 * kSlowdown, "ms"), "--log_level=debug"}));
  for (int i = 0; i < kLines; ++i) ASSERT_NO_FATAL_FAILURE(Abandon(i));
  ExpectDecoding();
  // The lines were kept until the reader continued.
  EXPECT_TRUE(Eventually([&] { return LinesWith(pipe.Read(), "steps in the pool") >= kLines; }))
      << pipe.Read();
}

TEST_F(BlockedLog, OfAWorkerDoesNotStopDecoding) {
  LogPipe pipe;
  ASSERT_NO_FATAL_FAILURE(Start(nullptr, &pipe));
  for (int i = 0; i < kLines; ++i) {
    const GenerateResult result = Generate(*inference_, SyntheticRequest(10, 1), kDayPatience);
    ASSERT_TRUE(result.status.ok()) << i << ": " << result.status.error_message();
  }
  ExpectDecoding();
  EXPECT_TRUE(Eventually([&] { return LinesWith(pipe.Read(), " prompt tokens, token ") >= kLines; }))
      << pipe.Read();
}

TEST_F(BlockedLog, DelaysNoExit) {
  LogPipe of_router, of_worker;
  ASSERT_NO_FATAL_FAILURE(
      Start(&of_router, &of_worker,
            {absl::StrCat("--client_timeout=", 300 * kSlowdown, "ms"), "--log_level=debug"}));
  for (int i = 0; i < kLines; ++i) ASSERT_NO_FATAL_FAILURE(Abandon(i));
  worker_->Signal(SIGTERM);
  EXPECT_EQ(worker_->Wait(kDayPatience), 0);
  router_->Signal(SIGTERM);
  EXPECT_EQ(router_->Wait(kDayPatience), 0);
}

// --- slow etcd ---

class SlowEtcd : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!EtcdServer::WhyNot().empty()) GTEST_SKIP() << EtcdServer::WhyNot();
    etcd_ = std::make_unique<EtcdServer>();
    int number = 0;
    const std::string& address = etcd_->address();
    ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &number));
    proxy_ = std::make_unique<chaos::TcpProxy>("127.0.0.1", "127.0.0.1", static_cast<uint16_t>(number));
  }

  // Renewals of leases that etcd has counted; empty while it does not respond.
  std::optional<double> Renewals() const {
    const std::optional<std::string> page = HttpGet(etcd_->address(), "/metrics");
    if (!page.has_value()) return std::nullopt;
    for (const absl::string_view line : absl::StrSplit(*page, '\n')) {
      double value = 0;
      constexpr char kName[] = "etcd_debugging_lease_renewed_total ";
      if (absl::StartsWith(line, kName) && absl::SimpleAtod(line.substr(sizeof(kName) - 1), &value))
        return value;
    }
    return std::nullopt;
  }

  std::unique_ptr<EtcdServer> etcd_;
  std::unique_ptr<chaos::TcpProxy> proxy_;
};

INSTANTIATE_TEST_SUITE_P(Milliseconds, SlowEtcd, ::testing::Values(400, 900, 2500),
                         [](const auto& info) { return absl::StrCat("Of", info.param); });

TEST_P(SlowEtcd, LeavesAHealthyLeaderItsLease) {
  Process router("bfio_router", {"--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--http_listen=",
                                 absl::StrCat("--election_etcd=http://", proxy_->address())});
  ASSERT_TRUE(router.WaitForOutput("serving on", kDayPatience)) << router.Stderr();
  // Half of the delay in each direction.
  proxy_->Delay(absl::Milliseconds(GetParam()) / 2);
  const double before = Renewals().value_or(0);
  // Together these renewals take longer than the time to live of one lease.
  constexpr int kRenewals = 4;
  const auto ended = [&] { return router.Wait(absl::ZeroDuration()).has_value(); };
  ASSERT_TRUE(Eventually([&] { return ended() || Renewals().value_or(0) >= before + kRenewals; }))
      << router.Stderr();
  EXPECT_FALSE(ended()) << "the leader has ended: " << router.Stderr();
}

}  // namespace
}  // namespace bfio::testing
