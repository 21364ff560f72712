// A run against a server with test code for a router.
#include "tools/loadgen/runner.h"

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/net/channel.h"
#include "gmock/gmock.h"
#include "tests/testing/loopback_server.h"
#include "tools/loadgen/client_stream.h"
#include "tools/loadgen/options.h"
#include "tools/loadgen/schedule.h"

namespace bfio::loadgen {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

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

// --- streams that are checked ---

v1::GenerateResponse Tokens(uint32_t first_index, int count, const std::string& id = "") {
  v1::GenerateResponse message;
  message.set_request_id(id);
  message.set_first_index(first_index);
  for (int i = 0; i < count; ++i) message.add_token_ids(7);
  return message;
}

v1::GenerateResponse Finish(uint32_t prompt, uint32_t completion,
                            v1::FinishReason reason = v1::FINISH_REASON_LENGTH,
                            v1::GenerateResponse message = {}) {
  message.mutable_finish()->set_reason(reason);
  message.mutable_finish()->mutable_usage()->set_prompt_tokens(prompt);
  message.mutable_finish()->mutable_usage()->set_completion_tokens(completion);
  return message;
}

// The breach of a request of 100 prompt tokens and 4 tokens to generate.
std::string BreachOf(const std::vector<v1::GenerateResponse>& messages, std::optional<Code> end,
                     bool open_ended = false) {
  StreamChecker checker("r1", 100, 4, 0, open_ended);
  for (const v1::GenerateResponse& message : messages) checker.OnMessage(message);
  if (end) checker.OnEnd(*end);
  return checker.breach();
}

TEST(StreamChecker, AValidStreamPasses) {
  const v1::GenerateResponse empty, finish = Finish(100, 4);
  EXPECT_EQ(BreachOf({Tokens(0, 1, "r1"), Tokens(1, 2), empty, Tokens(3, 1), finish}, Code::kOk), "");
  EXPECT_EQ(BreachOf({Finish(100, 4, v1::FINISH_REASON_LENGTH, Tokens(0, 4))}, Code::kOk), "");
  EXPECT_EQ(BreachOf({Tokens(0, 2)}, Code::kInternal), "") << "an error is no breach by itself";
  EXPECT_EQ(BreachOf({Tokens(0, 4), finish}, Code::kUnavailable), "") << "the connection was lost";
}

TEST(StreamChecker, TheModelMayEndAnOpenEndedRequestAfterAtLeastOneToken) {
  const auto breach = [](int tokens, v1::FinishReason reason) {
    return BreachOf({Finish(100, static_cast<uint32_t>(tokens), reason, Tokens(0, tokens))}, Code::kOk, true);
  };
  EXPECT_EQ(breach(2, v1::FINISH_REASON_STOP), "");
  EXPECT_EQ(breach(4, v1::FINISH_REASON_LENGTH), "");
  EXPECT_EQ(breach(4, v1::FINISH_REASON_STOP), "") << "its last token was the end";
  EXPECT_THAT(breach(2, v1::FINISH_REASON_LENGTH), HasSubstr("finished after 2 tokens"));
  EXPECT_THAT(breach(0, v1::FINISH_REASON_STOP), HasSubstr("finished after 0 tokens"));
  EXPECT_THAT(breach(5, v1::FINISH_REASON_STOP), HasSubstr("5 tokens came, 4 were requested"));
}

TEST(StreamChecker, EveryMessageOrEndThatDoesNotFollowIsABreach) {
  const v1::GenerateResponse all = Tokens(0, 4), finish = Finish(100, 4);
  v1::GenerateResponse no_usage = finish;
  no_usage.mutable_finish()->clear_usage();
  const struct {
    std::vector<v1::GenerateResponse> messages;
    std::optional<Code> end;
    std::string want;
  } cases[] = {
      {{Tokens(0, 1), Tokens(2, 1)}, {}, "request r1: token index 2 came where 1 was expected"},
      {{Tokens(0, 2), Tokens(1, 1)}, {}, "token index 1 came where 2 was expected"},
      {{Tokens(1, 1)}, {}, "token index 1 came where 0 was expected"},
      {{Tokens(0, 5)}, {}, "5 tokens came, 4 were requested"},
      {{Tokens(0, 3), Finish(100, 3)}, {}, "finished after 3 tokens, 4 were requested"},
      {{all, Finish(100, 4, v1::FINISH_REASON_STOP)}, {}, "not the requested length limit"},
      {{all, no_usage}, {}, "usage"},
      {{all, Finish(0, 4)}, {}, "usage"},
      {{all, Finish(100, 5)}, {}, "usage"},
      {{all, finish, finish}, {}, "a message came after the finish"},
      {{all}, Code::kOk, "without a finish"},
      {{all, finish}, Code::kInternal, "error after the finish"},
      {{Tokens(0, 1, "r2")}, {}, "another request, r2"},
      // The first is kept.
      {{Tokens(1, 1), Tokens(9, 1)}, Code::kOk, "token index 1 "},
  };
  for (const auto& broken : cases) {
    EXPECT_THAT(BreachOf(broken.messages, broken.end), HasSubstr(broken.want));
  }
}

// --- schedules and options ---

Trace ThreeRows() {
  return {.source = "three",
          .format = "generic",
          .has_arrivals = true,
          .requests = {{0, 10, 1}, {1, 20, 2}, {4, 30, 3}}};
}

std::vector<PlannedRequest> All(const Options& options, Trace trace = ThreeRows()) {
  auto schedule = Schedule::Create(options, std::move(trace));
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  std::vector<PlannedRequest> out;
  while (auto planned = schedule->Next()) {
    EXPECT_EQ(planned->index, out.size());
    out.push_back(*planned);
  }
  EXPECT_FALSE(schedule->Next().has_value()) << "the end stays the end";
  return out;
}

TEST(ScheduleTest, ATraceIsReplayedOnceOrRepeatedUntilTheNumberOfRequests) {
  const auto once = All({.trace = "x", .arrival = "trace", .time_scale = 2});
  ASSERT_EQ(once.size(), 3u);
  EXPECT_EQ(once[2].due_s, 2);
  EXPECT_EQ(once[2].prompt_tokens, 30u);
  EXPECT_EQ(once[2].output_tokens, 3u);
  const auto repeated = All({.trace = "x", .arrival = "trace", .requests = 5});
  ASSERT_EQ(repeated.size(), 5u);
  EXPECT_EQ(repeated[3].prompt_tokens, 10u);
  EXPECT_EQ(repeated[3].due_s, 6);
  EXPECT_EQ(repeated[4].due_s, 7);
  Trace no_times = ThreeRows();
  no_times.has_arrivals = false;
  EXPECT_EQ(Schedule::Create({.trace = "x", .arrival = "trace"}, no_times).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ScheduleTest, RequestsOrDurationEndAnOpenLoopWhicheverIsFirst) {
  EXPECT_EQ(All({.trace = "x", .arrival = "trace", .duration_s = 4}).size(), 2u) << "4 s is the end";
  const auto planned = All({.arrival = "poisson", .rate = 100, .duration_s = 20});
  EXPECT_NEAR(static_cast<double>(planned.size()), 2000, 200);
  EXPECT_LT(planned.back().due_s, 20);
  EXPECT_EQ(All({.arrival = "poisson", .rate = 100, .requests = 7, .duration_s = 20}).size(), 7u);
  EXPECT_TRUE(All({.arrival = "poisson", .rate = 1e-6, .requests = 7, .duration_s = 1}).empty());
}

TEST(OptionsTest, InvalidOptionsNameTheFlag) {
  const struct {
    Options options;
    const char* flag;
  } kCases[] = {
      {{.arrival = "uniform"}, "--arrival"},
      {{.arrival = "poisson"}, "--rate"},
      {{.arrival = "closed", .rate = 1}, "--rate"},
      {{.arrival = "closed", .time_scale = 2}, "--time_scale"},
      {{.arrival = "poisson", .rate = 1, .burstiness = 2}, "--burstiness"},
      {{.arrival = "trace"}, "--trace"},
      {{.trace = "x", .profile = "code"}, "--profile"},
      {{.target = "router"}, "--target"},
      {{.admin = "router"}, "--admin"},
      {{.json = "/nowhere/x"}, "--json"},
      {{.report = "/nowhere/x"}, "--html"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Validate(c.options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.flag;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.flag));
  }
}

}  // namespace
}  // namespace bfio::loadgen
