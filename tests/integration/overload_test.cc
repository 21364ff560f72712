// Overload: slow readers, floods, tenants beyond their limits, workers that do not read. Refusals have clear
// messages, and other requests are not affected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/net/status.h"
#include "tests/testing/cluster.h"
#include "tests/testing/resuming_client.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

ClusterOptions Fast(std::vector<std::string> router_flags) {
  ClusterOptions options;
  options.worker_processes = 1;
  options.router_flags = std::move(router_flags);
  options.worker_flags = {"--c=0.00005", "--tl=0", "--slots=16"};
  return options;
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

class SlowReader : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Resumable, SlowReader, ::testing::Bool());

TEST_P(SlowReader, IsPacedThenDisconnectedAndSlowsNoOther) {
  Cluster cluster(Fast({}));
  ASSERT_TRUE(cluster.ok());
  v1::GenerateRequest request = SyntheticRequest(10, 60000);
  request.set_request_id(std::string(128, 'x'));  // part of every message, so that the windows fill up sooner
  request.set_resumable(GetParam());
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
  if (!GetParam()) {
    EXPECT_TRUE(cluster.WaitFor("its slot", [](const v1::ClusterState& s) {
      return s.workers(0).active_requests() + s.workers(0).inflight_requests() == 0;
    }));
    EXPECT_EQ(cluster.State().requests().failed(), 1u);
    return;
  }
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

// Messages of clients and of workers, which share a port.
uint32_t Streams(const v1::ClusterState& state) {
  for (const v1::PortState& port : state.ports()) {
    if (port.port() == "client") return port.streams();
  }
  return 0;
}

TEST(Overload, AClientThatNeverReadsAgainIsDisconnected) {
  Cluster cluster(Fast({absl::StrCat("--client_timeout=", kSlowdown, "s"), "--drain_timeout=1s"}));
  ASSERT_TRUE(cluster.ok());
  v1::GenerateRequest request = SyntheticRequest(10, 60000);
  request.set_request_id(std::string(128, 'x'));
  const auto stub = WithASmallWindow(cluster);
  RequestStream slow(*stub, request);
  ASSERT_TRUE(slow.Read());
  const uint32_t open = Streams(cluster.State());
  ASSERT_TRUE(cluster.WaitFor("the slow reader to be cut off",
                              [](const v1::ClusterState& s) { return s.requests().slow_readers() == 1; }));
  // A client that reads again before its call is over still receives the status.
  ASSERT_TRUE(cluster.WaitFor("its call to be over",
                              [&](const v1::ClusterState& s) { return Streams(s) == open - 1; }));
  EXPECT_EQ(slow.End().status.error_code(), grpc::StatusCode::CANCELLED) << "too late for the status";
}

TEST(Overload, TenTimesTheLoadIsRefusedAndTheRestServed) {
  ClusterOptions options = Fast({"--max_waiting=32"});
  options.worker_flags = {absl::StrCat("--c=", 0.002 * kSlowdown), "--tl=0", "--slots=8"};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  // 8 slots of 20 steps each: capacity for 40 clients, and 400 send.
  std::atomic<int> served = 0, refused = 0, other = 0, without_delay = 0;
  std::vector<std::thread> clients;
  const absl::Time end = MonotonicNow() + kSlowdown * absl::Seconds(3);
  for (int i = 0; i < 400; ++i) {
    clients.emplace_back([&] {
      while (MonotonicNow() < end) {
        const GenerateResult result = Generate(cluster.inference(), SyntheticRequest(10, 20));
        if (result.status.ok()) {
          ++served;
          if (result.tokens.size() != 20 || !result.contiguous) ++other;
        } else if (result.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
          ++refused;
          if (!GetRetryDelay(result.status)) ++without_delay;
          absl::SleepFor(absl::Milliseconds(100));
        } else {
          ++other;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(served, 0);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(other, 0);
  EXPECT_EQ(without_delay, 0);
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.requests().refused_pool_full(), static_cast<uint64_t>(refused));
  EXPECT_EQ(state.requests().completed(), static_cast<uint64_t>(served));
  EXPECT_EQ(state.requests().accepted(), static_cast<uint64_t>(served));
}

TEST(Overload, ARequestThatFindsNoSlotInTimeEndsAndARunningOneDoesNot) {
  ClusterOptions options = Fast({"--max_queue_time=1s"});
  options.worker_flags = {"--c=0.01", "--tl=0", "--slots=1"};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  RequestStream running(cluster.inference(), SyntheticRequest(10, 60000));
  ASSERT_TRUE(running.Read());
  const grpc::Status full = Generate(cluster.inference(), SyntheticRequest(10, 5)).status;
  EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << full.error_message();
  EXPECT_THAT(full.error_message(), HasSubstr("--max_queue_time"));
  EXPECT_TRUE(GetRetryDelay(full).has_value());
  EXPECT_TRUE(running.Read());
  running.Cancel();
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.requests().queue_timeouts(), 1u);
  EXPECT_EQ(state.requests().failed(), 1u);
}

TEST(Overload, WithoutAWorkerNewRequestsEndInTimeAndThoseThatRanAreReplayed) {
  ClusterOptions options = Fast({"--max_queue_time=1s"});
  options.worker_flags = {"--c=0.001", "--tl=0", "--slots=4"};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  RequestStream running(cluster.inference(), SyntheticRequest(10, 3000));
  ASSERT_TRUE(running.Read());
  cluster.workers().front().Signal(SIGKILL);
  ASSERT_TRUE(cluster.WaitFor("the worker to be gone",
                              [](const v1::ClusterState& s) { return s.workers_size() == 0; }));
  // When this one ends, the lost one has waited longer.
  const grpc::Status unserved = Generate(cluster.inference(), SyntheticRequest(10, 5)).status;
  EXPECT_EQ(unserved.error_code(), grpc::StatusCode::UNAVAILABLE) << unserved.error_message();
  EXPECT_THAT(unserved.error_message(), HasSubstr("no rank is serving"));
  EXPECT_TRUE(GetRetryDelay(unserved).has_value());
  cluster.StartWorker();
  const GenerateResult result = running.End();
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens.size(), 3000u);
  EXPECT_TRUE(result.contiguous);
}

TEST(Overload, TenantLimitsAffectNoOtherTenant) {
  ClusterOptions options = Fast({"--tenant_limits=small:concurrent=2;slow:rps=0.001"});
  options.worker_flags[0] = "--c=0.01";  // two streams without a reader must not end because of a full buffer
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  v1::GenerateRequest request = SyntheticRequest(10, 50000);
  request.set_tenant("small");
  RequestStream first(cluster.inference(), request), second(cluster.inference(), request);
  ASSERT_TRUE(first.Read());
  ASSERT_TRUE(second.Read());
  const auto code = [&](const std::string& tenant) {
    v1::GenerateRequest one = SyntheticRequest(10, 5);
    one.set_tenant(tenant);
    const grpc::Status status = Generate(cluster.inference(), one).status;
    EXPECT_TRUE(status.ok() || GetRetryDelay(status).has_value()) << status.error_message();
    return status.error_code();
  };
  EXPECT_EQ(code("small"), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(code("large"), grpc::StatusCode::OK);
  EXPECT_EQ(code("slow"), grpc::StatusCode::OK);
  EXPECT_EQ(code("slow"), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(cluster.State().requests().refused_tenant(), 2u);
  first.Cancel();
  ASSERT_TRUE(cluster.WaitFor("the first to be cancelled",
                              [](const v1::ClusterState& s) { return s.requests().cancelled() == 1; }));
  EXPECT_EQ(code("small"), grpc::StatusCode::OK) << "its place is free again";
}

TEST(Overload, RequestsBeyondTheWorkersKvAreRefusedOnArrival) {
  // 1,000 KV tokens, and 64 times as many may wait.
  ClusterOptions options = Fast({});
  options.worker_flags = {"--c=0.05", "--tl=0", "--slots=16", "--kv_tokens=1000"};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (int i = 0; i < 65; ++i) {
    streams.push_back(std::make_unique<RequestStream>(cluster.inference(), SyntheticRequest(100, 890)));
  }
  ASSERT_TRUE(cluster.WaitFor("as many as fit to be accepted",
                              [](const v1::ClusterState& s) { return s.requests().accepted() == 65; }));
  const grpc::Status status = Generate(cluster.inference(), SyntheticRequest(100, 890)).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("64350 KV tokens"));
  EXPECT_TRUE(GetRetryDelay(status).has_value());
  // A request with a short predicted length still fits.
  v1::GenerateRequest brief = SyntheticRequest(100, 890);
  brief.set_predicted_output_tokens(50);
  streams.push_back(std::make_unique<RequestStream>(cluster.inference(), brief));
  ASSERT_TRUE(cluster.WaitFor("the brief one to be accepted",
                              [](const v1::ClusterState& s) { return s.requests().accepted() == 66; }));
  EXPECT_EQ(cluster.State().requests().refused_memory(), 1u);
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

// The router admits whatever fits now, and the workers refuse what would leave too little: such requests
// return to the pool and are placed again, without a difference for the clients.
TEST(Overload, WorkersThatRefuseRequestsLoseNone) {
  v1::RequestTotals reserved, watermark;
  const auto whole = TokensOfACrowd({}, false, reserved);
  EXPECT_EQ(TokensOfACrowd({"--admission=protection:alpha=0"}, false, watermark, "--kv_watermark=0.2"),
            whole);
  EXPECT_EQ(reserved.refused_by_workers(), 0u);
  EXPECT_GT(watermark.refused_by_workers(), 0u) << "nothing was put to the test";
}

// Requests leave the pool in batches; all end with the same tokens, however few arrive.
TEST(Overload, WaitingForBatchesLosesNoRequestAndEndsWithTheLast) {
  v1::RequestTotals at_once, waited;
  const auto whole = TokensOfACrowd({}, true, at_once);
  for (const char* admission : {"wait", "nested_wait:most=100,tokens=5000", "kv_feasible+wait"}) {
    SCOPED_TRACE(admission);
    EXPECT_EQ(
        TokensOfACrowd({absl::StrCat("--admission=", admission), "--lookahead=max_tokens"}, true, waited),
        whole);
    EXPECT_EQ(waited.preempted(), 0u);
  }
}

// One request runs all the time, while short ones arrive, several in a step.
TEST(Overload, RequestsWaitForABatchWhileOthersRun) {
  for (const char* admission : {"none", "wait", "nested_wait", "kv_feasible+wait"}) {
    SCOPED_TRACE(admission);
    ClusterOptions options;
    options.router_flags = {absl::StrCat("--admission=", admission), "--lookahead=max_tokens"};
    options.worker_flags = {"--c=0.005", "--tl=0", "--slots=32", "--kv_tokens=100000"};
    Cluster cluster(options);
    if (!cluster.ok()) return;
    RequestStream long_one(cluster.inference(), SyntheticRequest(20, 4000));
    std::thread reader([&] { EXPECT_EQ(long_one.End().status.error_code(), grpc::StatusCode::CANCELLED); });
    EXPECT_TRUE(cluster.WaitFor("one that runs", [](const v1::ClusterState& state) {
      return state.workers_size() > 0 && state.workers(0).active_requests() == 1;
    }));
    const bool waits = absl::string_view(admission) != "none";
    std::atomic<bool> enough = false;
    std::vector<std::thread> clients;
    for (int i = 0; i < 24; ++i) {
      clients.emplace_back([&] {
        for (int n = 0; n < 15 || (waits && !enough); ++n) {
          const GenerateResult result = Generate(cluster.inference(), SyntheticRequest(20, 3));
          EXPECT_TRUE(result.status.ok()) << result.status.error_message();
        }
      });
    }
    EXPECT_TRUE(!waits || cluster.WaitFor("requests held back", [](const v1::ClusterState& state) {
      return state.requests().held_back() > 0;
    }));
    enough = true;
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(cluster.State().requests().held_back() > 0, waits);
    long_one.Cancel();
    reader.join();
    cluster.StopCleanly();
  }
}

// Eight workers with KV memory for 60 % of what their slots would hold, and requests that may generate four
// times as many tokens as they do, with unknown lengths: learned lengths keep workers within their memory,
// except for the share that the confidence allows.
TEST(Overload, LearnedLengthsKeepEightWorkersWithinTheirKv) {
  const auto preempted = [](const std::vector<std::string>& router_flags) {
    ClusterOptions options;
    options.worker_processes = 1;
    options.ranks_per_process = 8;
    options.router_flags = router_flags;
    // A request holds 40 tokens of prompt and, on average over its steps, 50 generated tokens.
    options.worker_flags = {"--c=0.001", "--tl=0", "--slots=12", "--kv_tokens=650",
                            "--sim=eos_probability=0.02"};
    Cluster cluster(options);
    if (!cluster.ok()) return uint64_t{0};
    std::atomic<uint32_t> next = 0;
    std::vector<std::thread> clients;
    constexpr uint32_t kRequests = 600;
    for (int i = 0; i < 120; ++i) {
      clients.emplace_back([&] {
        for (uint32_t n = next++; n < kRequests; n = next++) {
          v1::GenerateRequest request = SyntheticRequest(30 + n % 21, 200);
          request.mutable_sampling()->set_seed(5000 + n);
          request.set_ignore_eos(false);
          const GenerateResult result = Generate(cluster.inference(), request);
          EXPECT_TRUE(result.status.ok()) << result.status.error_message();
          EXPECT_TRUE(result.contiguous);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    const v1::RequestTotals totals = cluster.State().requests();
    EXPECT_EQ(totals.completed(), kRequests);
    cluster.StopCleanly();
    return totals.preempted();
  };
  EXPECT_GT(preempted({"--admission=protection:alpha=0"}), 60u) << "nothing was put to the test";
  EXPECT_LE(preempted({"--admission=kv_feasible:confidence=0.99", "--lookahead=survival"}), 6u);
  EXPECT_LE(preempted({"--admission=mc_sf", "--lookahead=survival"}), 6u);
}

TEST(Overload, AdmissionByLearnedLengthsChangesNoToken) {
  v1::RequestTotals reserved, learnt;
  const auto whole = TokensOfACrowd({}, true, reserved);
  EXPECT_EQ(TokensOfACrowd({"--admission=kv_feasible", "--lookahead=survival"}, true, learnt), whole);
}

}  // namespace
}  // namespace bfio::testing
