// Requests from arrival to end, with a real scheduler and without sockets.
#include "router/requests/request_lifecycle.h"

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/retry_delay.h"
#include "common/base/spdlog.h"
#include "common/telemetry/log_fields.h"
#include "spdlog/sinks/sink.h"
#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(RequestLifecycleTest, TokensAndFinishReachTheClient) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a", 3));
  EXPECT_EQ(cluster_->waiting(), 1);
  const std::vector<Assignment> assignments = Place();
  ASSERT_EQ(assignments.size(), 1u);
  EXPECT_EQ(assignments[0].id, sink.id());
  EXPECT_EQ(assignments[0].first_index, 0u);
  EXPECT_THAT(assignments[0].request->prompt, ElementsAre(11, 12, 13));
  now_ += absl::Seconds(2);
  Tokens(sink, {1});
  Tokens(sink, {2, 3});
  requests_->OnFinished(sink.id(), FinishReason::kLength, now_);
  EXPECT_THAT(sink.tokens, ElementsAre(1, 2, 3));
  ASSERT_TRUE(sink.finish.has_value());
  EXPECT_TRUE(sink.status->ok());
  EXPECT_EQ(sink.finish->completion_tokens, 3u);
  EXPECT_EQ(sink.finish->prompt_tokens, 3u);
  EXPECT_EQ(sink.finish->time_to_first_token, absl::Seconds(2));
  EXPECT_EQ(requests_->live(), 0);
  EXPECT_EQ(requests_->totals().completed, 1);
  EXPECT_EQ(overload_->committed_kv(), 0);
}

TEST_F(RequestLifecycleTest, FirstTokensThatMeetAndMissTheirObjectivesAreCounted) {
  OpenEpoch();
  ClientRequest in_time = Request("a"), late = Request("b");
  in_time.ttft_objective = absl::Seconds(2);
  late.ttft_objective = absl::Seconds(1.9);
  RecordingSink& a = Arrive(in_time);
  RecordingSink& b = Arrive(late);
  RecordingSink& without = Arrive(Request("c"));
  Place();
  now_ += absl::Seconds(2);
  for (RecordingSink* sink : {&a, &b, &without}) Tokens(*sink, {1});
  now_ += absl::Seconds(2);
  Tokens(a, {2});
  EXPECT_EQ(requests_->totals().ttft_objectives_met, 1);
  EXPECT_EQ(requests_->totals().ttft_objectives_missed, 1);
}

TEST_F(RequestLifecycleTest, MemoryThatHasGoneAdmitsNoRequests) {
  Start({}, {.max_waiting_kv = 1});
  OpenEpoch();
  EXPECT_TRUE(Arrive(Request("a", 397)).open());
  EXPECT_TRUE(Arrive(Request("b", 397)).open());
  // One of two groups has given up its memory, without opening a new epoch.
  requests_->SetGroups({.kv_tokens = 500, .max_sequence_tokens = 500, .complete = true});
  const absl::Status refused = *Arrive(Request("c", 397)).status;
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("800 KV tokens already; the workers have 500"));
}

TEST_F(RequestLifecycleTest, TokensBeyondTheLimitAreCutOff) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a", 2));
  Place();
  Tokens(sink, {1, 2, 3, 4});
  EXPECT_THAT(sink.tokens, ElementsAre(1, 2));
}

TEST_F(RequestLifecycleTest, AClientThatHasEnoughEndsItsRequest) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a", 5));
  sink.enough = 2;
  Place();
  Tokens(sink, {1});
  EXPECT_TRUE(sink.open());
  Tokens(sink, {2});
  ASSERT_TRUE(sink.finish.has_value());
  EXPECT_TRUE(sink.status->ok());
  EXPECT_EQ(sink.finish->reason, FinishReason::kStop);
  EXPECT_EQ(sink.finish->completion_tokens, 2u);
  EXPECT_EQ(requests_->live(), 0);
  EXPECT_EQ(requests_->totals().completed, 1);
  EXPECT_EQ(overload_->committed_kv(), 0);
  // The worker drops the request; tokens that it reports meanwhile are ignored.
  const core::Outcome outcome = cluster_->Apply(core::MakePlan{0, false});
  ASSERT_TRUE(outcome.plan.has_value());
  ASSERT_EQ(outcome.plan->drops.size(), 1u);
  EXPECT_EQ(outcome.plan->drops[0].id, sink.id());
  Tokens(sink, {3});
  EXPECT_THAT(sink.tokens, ElementsAre(1, 2));
}

TEST_F(RequestLifecycleTest, FinishingByLengthTooEarlyIsAnError) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a", 3));
  Place();
  Tokens(sink, {1});
  requests_->OnFinished(sink.id(), FinishReason::kLength, now_);
  EXPECT_TRUE(absl::IsInternal(*sink.status));
  EXPECT_EQ(requests_->totals().tokens_lost, 2);
}

TEST_F(RequestLifecycleTest, ALiveRequestIdCannotBeUsedTwice) {
  OpenEpoch();
  RecordingSink& first = Arrive(Request("a"));
  RecordingSink& second = Arrive(Request("a"));
  EXPECT_TRUE(absl::IsAlreadyExists(*second.status));
  EXPECT_TRUE(first.open());
  EXPECT_EQ(requests_->live(), 1);
}

TEST_F(RequestLifecycleTest, RequestIdsAreScopedToTheirTenant) {
  OpenEpoch();
  ClientRequest request = ResumableRequest("a");
  request.tenant = "acme";
  RecordingSink& first = Arrive(request);
  request.tenant = "zeta";
  RecordingSink& second = Arrive(request);
  EXPECT_TRUE(first.open() && second.open());
  // Calls of a tenant reach only that tenant's requests.
  EXPECT_FALSE(requests_->Abort("beta", "a", "secret", now_));
  ClientRequest back = ComeBack("a", 0);
  EXPECT_EQ(*Arrive(back).status, absl::NotFoundError("no request a to resume"));
  back.tenant = "zeta";
  EXPECT_TRUE(Arrive(back).open());
  EXPECT_TRUE(absl::IsAborted(*second.status)) << "taken over";
  EXPECT_TRUE(requests_->Abort("zeta", "a", "secret", now_));
  EXPECT_FALSE(requests_->Abort("zeta", "a", "secret", now_));
  EXPECT_TRUE(first.open());
  // The request id is free again for tenant zeta, and still taken for acme.
  EXPECT_TRUE(Arrive([] {
                ClientRequest again = Request("a");
                again.tenant = "zeta";
                return again;
              }())
                  .open());
  HeldRequest held = {.id = 1000, .request = ResumableRequest("a", 4)};
  held.request.tenant = "acme";
  const std::vector<HeldActive> active = {{1000, 3, 0}, {1001, 3, 0}};
  EXPECT_THAT(requests_->Recover("w", {held}, active), IsEmpty());
  held.request.tenant = "delta";
  EXPECT_EQ(requests_->Recover("w", {held}, active).size(), 1u);
}

TEST_F(RequestLifecycleTest, ARequestThatNoWorkerCanHoldIsRefused) {
  OpenEpoch();
  EXPECT_TRUE(absl::IsInvalidArgument(*Arrive(Request("a", 498)).status));
  EXPECT_TRUE(Arrive(Request("b", 497)).open());
}

TEST_F(RequestLifecycleTest, ACancelledRequestLeavesThePoolOrItsWorker) {
  OpenEpoch();
  RecordingSink& waiting = Arrive(Request("a"));
  requests_->OnCancel(waiting.id(), false, now_);
  EXPECT_EQ(cluster_->waiting(), 0);
  EXPECT_TRUE(absl::IsCancelled(*waiting.status));
  RecordingSink& placed = Arrive(Request("b"));
  Place();
  requests_->OnCancel(placed.id(), false, now_);
  const core::Outcome outcome = cluster_->Apply(core::MakePlan{0, false});
  ASSERT_TRUE(outcome.plan.has_value());
  ASSERT_EQ(outcome.plan->drops.size(), 1u);
  EXPECT_EQ(outcome.plan->drops[0].id, placed.id());
  EXPECT_EQ(requests_->totals().cancelled, 2);
}

// Records all lines that are logged once it is installed.
class CapturedLog final : public spdlog::sinks::sink {
 public:
  struct Line {
    std::string text;
    std::map<std::string, std::string> fields;
  };
  static std::shared_ptr<CapturedLog> Install() {
    auto log = std::make_shared<CapturedLog>();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("captured", log));
    return log;
  }
  void log(const spdlog::details::log_msg& msg) override {
    Line line{std::string(msg.payload.data(), msg.payload.size()), {}};
    for (const LogField& field : ScopedLogFields::Current())
      line.fields.emplace(std::string(field.name), field.text);
    lines.push_back(std::move(line));
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

  std::vector<Line> lines;
};

TEST_F(RequestLifecycleTest, ClientsCannotFillTheLog) {
  const std::shared_ptr<CapturedLog> log = CapturedLog::Install();
  OpenEpoch();
  const auto abandon = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ClientRequest request = ResumableRequest(absl::StrCat("r", i));
      request.tenant = "acme";
      requests_->OnCancel(Arrive(request).id(), false, now_);
    }
    now_ += absl::Seconds(30);
    requests_->OnTimer(now_);
    EXPECT_EQ(requests_->live(), 0);
  };
  abandon(100);
  ASSERT_EQ(log->lines.size(), 10u);
  EXPECT_EQ(log->lines[0].text, "request r0 of tenant acme: no client has resumed it");
  EXPECT_EQ(log->lines[0].fields["request_id"], "r0");
  EXPECT_EQ(log->lines[0].fields["tenant"], "acme");
  // Lines of another kind have a limit of their own; the next line of the first kind reports how many were
  // suppressed.
  RecordingSink& sink = Arrive(Request("other"));
  Place();
  requests_->OnRejected(sink.id(), absl::InternalError("no logits"), now_);
  ASSERT_EQ(log->lines.size(), 11u);
  EXPECT_EQ(log->lines[10].text, "request other: its worker could not continue it: no logits");
  EXPECT_EQ(log->lines[10].fields["rank"], "0");
  abandon(1);
  EXPECT_THAT(log->lines.back().text, HasSubstr("no client has resumed it; 90 more"));
}

TEST_F(RequestLifecycleTest, AnAbortNeedsTheRightTenantAndSecret) {
  OpenEpoch();
  ClientRequest request = ResumableRequest("a");
  request.tenant = "t";
  RecordingSink& sink = Arrive(request);
  EXPECT_FALSE(requests_->Abort("t", "a", "wrong", now_));
  EXPECT_FALSE(requests_->Abort("other", "a", "secret", now_));
  EXPECT_FALSE(requests_->Abort("", "a", "secret", now_));
  EXPECT_FALSE(requests_->Abort("t", "b", "secret", now_));
  EXPECT_TRUE(sink.open());
  EXPECT_TRUE(requests_->Abort("t", "a", "secret", now_));
  EXPECT_EQ(sink.finish->reason, FinishReason::kAbort);
}

TEST_F(RequestLifecycleTest, BytesAndKvOfWaitingRequestsAreBounded) {
  OverloadOptions overload = {.max_waiting_bytes = 30, .max_waiting_kv = 1};
  Start({}, overload);
  OpenEpoch();
  EXPECT_TRUE(Arrive(Request("a")).open());
  EXPECT_TRUE(Arrive(Request("b")).open());
  RecordingSink& third = Arrive(Request("c"));
  EXPECT_TRUE(absl::IsResourceExhausted(*third.status));
  EXPECT_TRUE(GetRetryDelay(*third.status).has_value());
  Place();
  Tokens(*sinks_.begin()->second, {1});
  EXPECT_TRUE(Arrive(Request("d")).open()) << "a request that has begun waits no more";
  EXPECT_EQ(requests_->totals().refused_memory, 1);
  // KV of up to 2,000 tokens is accepted: the group's 1,000, and as many for waiting requests.
  for (int i = 0; i < 20; ++i) {
    ClientRequest large = Request(absl::StrCat("large", i), 400);
    large.prompt.clear();
    Arrive(large);
  }
  EXPECT_EQ(overload_->committed_kv(), 3 * 13 + 4 * 403);
}

TEST_F(RequestLifecycleTest, AFullPoolRefuses) {
  OverloadOptions overload = {.max_waiting = 2};
  Start({}, overload);
  Arrive(Request("a"));
  Arrive(Request("b"));
  EXPECT_TRUE(absl::IsResourceExhausted(*Arrive(Request("c")).status));
  EXPECT_EQ(requests_->totals().refused_pool_full, 1);
  EXPECT_TRUE(overload_->CheckPool(1, false).ok());
  overload_->SetWaiting(cluster_->waiting());
  EXPECT_TRUE(absl::IsResourceExhausted(overload_->CheckPool(1, false)));
  EXPECT_EQ(overload_->refused_early(), 1);
}

TEST_F(RequestLifecycleTest, ATenantsConcurrencyIsReleasedAtTheEnd) {
  Start({}, {}, "t:concurrent=1");
  ClientRequest request = Request("a");
  request.tenant = "t";
  RecordingSink& sink = Arrive(request);
  EXPECT_TRUE(absl::IsResourceExhausted(tenants_->Enter(request, now_).status()));
  EXPECT_EQ(tenants_->refused(), 1);
  requests_->OnCancel(sink.id(), false, now_);
  EXPECT_TRUE(tenants_->Enter(request, now_).ok());
}

TEST_F(RequestLifecycleTest, AParentsDeadlineEndsItsCalls) {
  OpenEpoch();
  ClientRequest call = Request("a");
  call.parent_id = "p";
  call.parent_timeout = absl::Seconds(5);
  RecordingSink& first = Arrive(call);
  call.request_id = "b";
  call.parent_timeout.reset();
  RecordingSink& second = Arrive(call);
  now_ += absl::Seconds(5);
  EXPECT_LE(requests_->next_deadline(), now_);
  requests_->OnTimer(now_);
  EXPECT_TRUE(absl::IsDeadlineExceeded(*first.status));
  EXPECT_TRUE(absl::IsDeadlineExceeded(*second.status));
  EXPECT_EQ(requests_->totals().agent_calls, 2);
}

TEST_F(RequestLifecycleTest, ACallThatCannotMeetItsParentsDeadlineIsRefused) {
  OpenEpoch();
  GroupsView view = {.max_sequence_tokens = 500, .shortest_step = absl::Seconds(1)};
  requests_->SetGroups(view);
  ClientRequest call = Request("a");
  call.ignore_eos = true;
  call.parent_id = "p";
  call.parent_timeout = absl::Seconds(9);
  EXPECT_TRUE(absl::IsDeadlineExceeded(*Arrive(call).status)) << "ten tokens take ten seconds";
  call.request_id = "b";
  call.parent_timeout = absl::Seconds(11);
  EXPECT_TRUE(Arrive(call).open());
}

TEST_F(RequestLifecycleTest, ADrainRefusesNewRequestsAndEndsTheRest) {
  RecordingSink& early = Arrive(ComeBack("early", 0));
  OpenEpoch();
  RecordingSink& live = Arrive(Request("a"));
  requests_->BeginDrain(now_);
  EXPECT_FALSE(early.open());
  EXPECT_TRUE(absl::IsUnavailable(*Arrive(Request("b")).status));
  EXPECT_TRUE(live.open());
  requests_->EndAll(now_);
  EXPECT_TRUE(absl::IsUnavailable(*live.status));
  EXPECT_EQ(requests_->live(), 0);
}

TEST_F(RequestLifecycleTest, ARequestThatFitsNoWorkerOfTheEpochEnds) {
  RecordingSink& sink = Arrive(Request("a", 900));  // accepted before any worker's capacity is known
  OpenEpoch();
  EXPECT_TRUE(absl::IsUnavailable(*sink.status));
  EXPECT_THAT(sink.status->message(), HasSubstr("at most 500"));
}

// Otherwise it would wait forever, and so would all requests behind it that are held to this rank.
TEST_F(RequestLifecycleTest, ARequestThatIsHeldToARankFitsTheKvMemoryOfThatRank) {
  OpenRanks({1000, 100});
  const auto held = [](const std::string& name, uint32_t rank, uint32_t max_new_tokens) {
    ClientRequest request = Request(name, max_new_tokens);
    request.rank = rank;
    return request;
  };
  // Prompts of 3 tokens; the last token needs no memory.
  const RecordingSink& large = Arrive(held("large", 0, 900));
  const RecordingSink& small = Arrive(held("small", 1, 98));
  EXPECT_EQ(Arrive(held("too large", 1, 99)).status,
            absl::InvalidArgumentError("prompt + max_new_tokens is 102 tokens; data_parallel_rank 1 holds at "
                                       "most 101 per request"));
  EXPECT_TRUE(large.open());
  EXPECT_TRUE(small.open());
  ClientRequest unset = held("unset", 1, 998);
  unset.max_new_tokens_unset = true;
  const RecordingSink& fitted = Arrive(unset);
  ASSERT_TRUE(fitted.open()) << *fitted.status;
  EXPECT_EQ(WaitingSpec(fitted.id()).max_new_tokens, 98);
  // The next epoch has a smaller rank in its place.
  OpenRanks({1000, 99});
  for (const RecordingSink* sink : {&small, &fitted}) {
    ASSERT_FALSE(sink->open());
    EXPECT_TRUE(absl::IsUnavailable(*sink->status)) << *sink->status;
  }
  EXPECT_TRUE(large.open());
}

}  // namespace
}  // namespace bfio::router
