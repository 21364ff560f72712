// Overload: slow readers, floods, tenants beyond their limits, workers that do not read. Refusals have clear
// messages, and other requests are not affected.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/status.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

ClusterOptions Fast(std::vector<std::string> router_flags) {
  return {.worker_processes = 1,
          .router_flags = std::move(router_flags),
          .worker_flags = {"--c=0.00005", "--tl=0", "--slots=16"}};
}

// A stub with its own connection, whose windows stay at 64 KiB however fast it is.
std::unique_ptr<v1::Inference::Stub> WithASmallWindow(Cluster& cluster) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
  return v1::Inference::NewStub(
      grpc::CreateCustomChannel(cluster.address(), grpc::InsecureChannelCredentials(), args));
}

TEST(Overload, ASlowReaderIsPacedThenDisconnectedAndSlowsNoOther) {
  Cluster cluster(Fast({}));
  ASSERT_TRUE(cluster.ok());
  v1::GenerateRequest request = SyntheticRequest(10, 60000);
  request.set_request_id(std::string(128, 'x'));  // part of every message, so that the windows fill up sooner
  request.set_resumable(true);
  const auto stub = WithASmallWindow(cluster);
  RequestStream slow(*stub, request);
  ASSERT_TRUE(slow.Read());
  // Other streams continue meanwhile.
  std::atomic<bool> done = false;
  std::thread others([&] {
    while (!done) {
      const GenerateResult result = Generate(cluster.inference(), SyntheticRequest(10, 200));
      EXPECT_TRUE(result.status.ok()) << result.status.error_message();
      EXPECT_EQ(result.tokens.size(), 200u);
    }
  });
  EXPECT_TRUE(cluster.WaitFor("the slow reader to be cut off",
                              [](const v1::ClusterState& s) { return s.requests().slow_readers() == 1; }));
  done = true;
  others.join();
  GenerateResult result = slow.End();
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << result.status.error_message();
  EXPECT_THAT(result.status.error_message(), HasSubstr("reads too slowly"));
  EXPECT_LT(result.tokens.size(), 60000u);
  // A resumable request continues without its client, and its tokens are kept; on a busy machine the client
  // may be too slow again.
  do {
    request.set_resume_from_index(static_cast<uint32_t>(result.tokens.size()));
    result = RequestStream(*stub, request, {.so_far = result}).End();
  } while (result.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(result.contiguous);
  EXPECT_EQ(result.tokens.size(), 60000u);
}

// Tokens of 24 concurrent requests, by request, on workers with KV memory for three or four that reserve
// their maximum. `ends_early`: only the engine determines where a request ends.
std::vector<std::vector<uint32_t>> TokensOfACrowd(const std::vector<std::string>& router_flags,
                                                  bool ends_early, v1::RequestTotals& totals,
                                                  const std::string& worker_flag = "--token_budget=0") {
  ClusterOptions options;
  options.router_flags = router_flags;
  options.worker_flags = {"--c=0.0002",
                          "--tl=0",
                          "--slots=16",
                          "--kv_tokens=600",
                          ends_early ? "--sim=eos_probability=0.02" : "--sim=eos_probability=0",
                          worker_flag};
  Cluster cluster(options);
  std::vector<std::vector<uint32_t>> tokens(24);
  if (!cluster.ok()) return tokens;
  std::vector<std::thread> clients;
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    clients.emplace_back([&, i] {
      v1::GenerateRequest request = SyntheticRequest(20 + i, 60 + 5 * i);
      request.mutable_sampling()->set_seed(1000 + i);
      request.set_ignore_eos(!ends_early);
      const GenerateResult result = Generate(cluster.inference(), request);
      EXPECT_TRUE(result.status.ok()) << result.status.error_message();
      EXPECT_TRUE(result.contiguous);
      EXPECT_EQ(result.finishes, 1);
      tokens[i] = result.tokens;
    });
  }
  for (std::thread& client : clients) client.join();
  totals = cluster.State().requests();
  EXPECT_EQ(totals.completed(), 24u);
  EXPECT_EQ(totals.tokens_lost() + totals.tokens_duplicated(), 0u);
  cluster.StopCleanly();
  return tokens;
}

TEST(Overload, WorkersThatRunOutOfKvPreemptAndNoTokenIsLost) {
  v1::RequestTotals reserved, watermark, foreseen, sorted;
  const auto whole = TokensOfACrowd({}, false, reserved);
  EXPECT_EQ(TokensOfACrowd({"--admission=protection:alpha=0"}, false, watermark), whole);
  EXPECT_EQ(TokensOfACrowd({"--admission=kv_feasible", "--lookahead=max_tokens"}, false, foreseen), whole);
  EXPECT_EQ(TokensOfACrowd({"--admission=mc_sf", "--lookahead=max_tokens"}, false, sorted), whole);
  EXPECT_EQ(reserved.preempted(), 0u);
  EXPECT_GT(watermark.preempted(), 0u) << "nothing was put to the test";
  EXPECT_EQ(watermark.replays_refused(), 0u);
  // 0, unless the machine pauses for so long that plans arrive later than the admission rule assumes.
  EXPECT_LE(10 * foreseen.preempted(), watermark.preempted());
  EXPECT_LE(10 * sorted.preempted(), watermark.preempted());
}

// The router admits whatever fits now, and the workers refuse what would leave too little; or requests leave
// the pool in batches, and the end of each is known to the engine alone. All return to the pool or wait
// without a difference for clients.
TEST(Overload, RequestsThatWorkersRefuseOrThatWaitForABatchEndAsAll) {
  v1::RequestTotals totals;
  const auto whole = TokensOfACrowd({}, false, totals);
  EXPECT_EQ(totals.refused_by_workers(), 0u);
  EXPECT_EQ(TokensOfACrowd({"--admission=protection:alpha=0"}, false, totals, "--kv_watermark=0.2"), whole);
  EXPECT_GT(totals.refused_by_workers(), 0u) << "nothing was put to the test";
  const auto early = TokensOfACrowd({}, true, totals);
  for (const char* admission : {"wait", "nested_wait:most=100,tokens=5000", "kv_feasible+wait"}) {
    SCOPED_TRACE(admission);
    EXPECT_EQ(
        TokensOfACrowd({absl::StrCat("--admission=", admission), "--lookahead=max_tokens"}, true, totals),
        early);
    EXPECT_EQ(totals.preempted(), 0u);
  }
  EXPECT_EQ(TokensOfACrowd({"--admission=kv_feasible", "--lookahead=survival"}, true, totals), early);
}

}  // namespace
}  // namespace bfio::testing
