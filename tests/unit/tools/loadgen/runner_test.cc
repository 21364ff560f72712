// A run against a server with test code for a router.
#include "tools/loadgen/runner.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/net/channel.h"
#include "tests/testing/loopback_server.h"

namespace bfio::loadgen {
namespace {

// Takes every request and never answers.
class SilentService final : public v1::Inference::CallbackService {
 private:
  class Reactor final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
   public:
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const v1::GenerateRequest*) override {
    return new Reactor;
  }
};

TEST(Runner, AnInterruptionAfterTheSendingTimeCancelsWhatIsUnderWay) {
  SilentService service;
  const testing::LoopbackServer server(&service);
  const Options options = {.trace = "x", .concurrency = 2, .duration_s = 0.1, .timeout = absl::Seconds(20)};
  auto schedule = Schedule::Create(options, {.source = "one", .format = "generic", .requests = {{0, 10, 5}}});
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  // The run's loop asks once per iteration. At the third time after the duration it has noticed the end.
  absl::Time end = absl::InfinitePast();
  int late = 0;
  const auto stop_requested = [&] {
    if (end == absl::InfinitePast()) end = MonotonicNow() + absl::Seconds(options.duration_s);
    return MonotonicNow() >= end && ++late > 2;
  };
  Progress progress(/*terminal=*/false);
  Runner runner(options, Login(), *schedule, server.channel(), "run", stop_requested, progress);
  const Results results = runner.Run();
  EXPECT_EQ(results.requests_sent, 2u);
  EXPECT_EQ(results.interrupted, 2u);
  EXPECT_EQ(ExitCode(results, /*interrupted=*/true), 130);
}

// The channel goes with the run, whatever gRPC's threads still do.
TEST(Runner, MayBeDestroyedWithCallsUnderWay) {
  SilentService service;
  const testing::LoopbackServer server(&service);
  const Options options = {.trace = "x", .concurrency = 2, .timeout = absl::Seconds(20)};
  auto schedule = Schedule::Create(options, {.source = "one", .format = "generic", .requests = {{0, 10, 5}}});
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  for (int i = 0; i < 1000; ++i) {
    int asked = 0;
    Progress progress(/*terminal=*/false);
    Runner runner(
        options, Login(), *schedule, NewChannel(i % 2 == 0 ? "127.0.0.1:1" : server.address()), "run",
        [&] { return ++asked > i % 4; }, progress);
    EXPECT_TRUE(runner.Run().interrupted <= 2u);
  }
}

}  // namespace
}  // namespace bfio::loadgen
