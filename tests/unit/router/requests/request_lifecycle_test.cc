// Requests from arrival to end: tokens, names and bounds.
#include "router/requests/request_lifecycle.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/spdlog.h"
#include "common/telemetry/log_fields.h"
#include "spdlog/sinks/sink.h"
#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// --- tokens and the end ---

TEST_F(RequestLifecycleTest, TokensAndFinishReachTheClient) {
  OpenEpoch();
  Client& client = Arrive(Request("a", 3));
  EXPECT_EQ(cluster_->waiting(), 1);
  const std::vector<Assignment> assignments = Place();
  ASSERT_THAT(assignments, SizeIs(1));
  EXPECT_EQ(assignments[0].id, client.id());
  EXPECT_EQ(assignments[0].first_index, 0u);
  EXPECT_THAT(assignments[0].request->prompt, ElementsAre(11, 12, 13));
  now_ += absl::Seconds(2);
  Tokens(client, {1});
  Tokens(client, {2, 3, 4});
  Finish(client);
  EXPECT_THAT(client.tokens, ElementsAre(1, 2, 3)) << "no more than it asked for";
  ASSERT_TRUE(client.finish.has_value());
  EXPECT_TRUE(client.status->ok());
  EXPECT_EQ(client.finish->completion_tokens, 3u);
  EXPECT_EQ(client.finish->prompt_tokens, 3u);
  EXPECT_EQ(client.finish->time_to_first_token, absl::Seconds(2));
  EXPECT_EQ(requests_->live(), 0);
  EXPECT_EQ(totals().completed, 1);
  EXPECT_EQ(overload_->committed_kv(), 0);
}

TEST_F(RequestLifecycleTest, FirstTokensThatMeetAndMissTheirObjectivesAreCounted) {
  OpenEpoch();
  ClientRequest in_time = Request("a"), late = Request("b");
  in_time.ttft_objective = absl::Seconds(2);
  late.ttft_objective = absl::Seconds(1.9);
  Client &a = Arrive(in_time), &b = Arrive(late), &without = Arrive(Request("c"));
  Place();
  now_ += absl::Seconds(2);
  for (const Client* client : {&a, &b, &without}) Tokens(*client, {1});
  now_ += absl::Seconds(2);
  Tokens(a, {2});
  EXPECT_EQ(totals().ttft_objectives_met, 1);
  EXPECT_EQ(totals().ttft_objectives_missed, 1);
}

TEST_F(RequestLifecycleTest, AClientThatHasEnoughEndsItsRequest) {
  OpenEpoch();
  Client& client = Arrive(Request("a", 5));
  client.enough = 2;
  Place();
  Tokens(client, {1});
  EXPECT_TRUE(client.open());
  Tokens(client, {2});
  ASSERT_TRUE(client.finish.has_value());
  EXPECT_TRUE(client.status->ok());
  EXPECT_EQ(client.finish->reason, FinishReason::kStop);
  EXPECT_EQ(client.finish->completion_tokens, 2u);
  EXPECT_EQ(requests_->live(), 0);
  EXPECT_EQ(totals().completed, 1);
  EXPECT_EQ(overload_->committed_kv(), 0);
  // The worker drops the request; tokens that it reports meanwhile are ignored.
  EXPECT_THAT(Dropped(), ElementsAre(client.id()));
  Tokens(client, {3});
  EXPECT_THAT(client.tokens, ElementsAre(1, 2));
}

TEST_F(RequestLifecycleTest, FinishingByLengthTooEarlyIsAnError) {
  Client& client = Running(Request("a", 3));
  Tokens(client, {1});
  Finish(client);
  EXPECT_TRUE(absl::IsInternal(*client.status));
  EXPECT_EQ(totals().tokens_lost, 2);
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
    Line& line = lines.emplace_back(Line{std::string(msg.payload.data(), msg.payload.size()), {}});
    for (const LogField& field : ScopedLogFields::Current())
      line.fields.emplace(std::string(field.name), field.text);
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
    for (int i = 0; i < count; ++i) Cancel(Arrive(ResumableRequest(absl::StrCat("r", i), 10, "acme")));
    PassTime(absl::Seconds(30));
    EXPECT_EQ(requests_->live(), 0);
  };
  abandon(100);
  ASSERT_THAT(log->lines, SizeIs(10));
  EXPECT_EQ(log->lines[0].text, "request r0 of tenant acme: no client has resumed it");
  EXPECT_EQ(log->lines[0].fields["request_id"], "r0");
  EXPECT_EQ(log->lines[0].fields["tenant"], "acme");
  // Lines of another kind have a limit of their own; the next line of the first kind reports how many were
  // suppressed.
  Client& client = Arrive(Request("other"));
  Place();
  Reject(client, absl::InternalError("no logits"));
  ASSERT_THAT(log->lines, SizeIs(11));
  EXPECT_EQ(log->lines[10].text, "request other: its worker could not continue it: no logits");
  EXPECT_EQ(log->lines[10].fields["rank"], "0");
  abandon(1);
  EXPECT_THAT(log->lines.back().text, HasSubstr("no client has resumed it; 90 more"));
}

// --- names ---

// 11 to 19 of 40 were refused: a client sends its id again before the router is notified of the cancellation.
TEST_F(RequestLifecycleTest, TheIdOfACancelledCallIsFreeAtOnce) {
  OpenEpoch();
  Client& cancelled = Arrive(Request("a"));
  Client& resumable = Arrive(ResumableRequest("b"));
  cancelled.gone = resumable.gone = true;
  Client& again = Arrive(Request("a"));
  EXPECT_TRUE(again.open());
  EXPECT_TRUE(absl::IsCancelled(*cancelled.status));
  EXPECT_TRUE(absl::IsAlreadyExists(*Arrive(Request("a")).status));
  EXPECT_TRUE(absl::IsAlreadyExists(*Arrive(Request("b")).status)) << "may be resumed";
  EXPECT_EQ(requests_->live(), 2);
  requests_->OnCancel(cancelled.id(), /*timed_out=*/false, now_);
  EXPECT_TRUE(again.open());
}

TEST_F(RequestLifecycleTest, RequestIdsAreUniqueAndScopedToTheirTenant) {
  OpenEpoch();
  Client &first = Arrive(ResumableRequest("a", 10, "acme")),
         &second = Arrive(ResumableRequest("a", 10, "zeta"));
  EXPECT_TRUE(absl::IsAlreadyExists(*Arrive(Request("a", 10, "acme")).status));
  EXPECT_TRUE(first.open() && second.open());
  EXPECT_EQ(requests_->live(), 2);
  // Calls of a tenant reach only that tenant's requests.
  EXPECT_FALSE(Abort("a", "secret", "beta"));
  EXPECT_EQ(*Arrive(ComeBack("a", 0)).status, absl::NotFoundError("no request a to resume"));
  EXPECT_TRUE(Arrive(ComeBack("a", 0, "zeta")).open());
  EXPECT_TRUE(absl::IsAborted(*second.status)) << "taken over";
  EXPECT_FALSE(Abort("a", "wrong", "zeta"));
  EXPECT_FALSE(Abort("b", "secret", "zeta"));
  EXPECT_TRUE(Abort("a", "secret", "zeta"));
  EXPECT_FALSE(Abort("a", "secret", "zeta"));
  EXPECT_TRUE(first.open());
  // The request id is free again for tenant zeta, and still taken for acme.
  EXPECT_TRUE(Arrive(Request("a", 10, "zeta")).open());
  HeldRequest held = {.id = 1000, .request = ResumableRequest("a", 4, "acme")};
  const std::vector<HeldActive> active = {{1000, 3, 0}, {1001, 3, 0}};
  EXPECT_THAT(Recover(held, active), IsEmpty());
  held.request.tenant = "delta";
  EXPECT_THAT(Recover(held, active), SizeIs(1));
  EXPECT_TRUE(Abort("a", "secret", "acme"));
  EXPECT_EQ(first.finish->reason, FinishReason::kAbort);
}

// --- bounds ---

TEST_F(RequestLifecycleTest, BytesAndKvOfWaitingRequestsAreBounded) {
  Start({}, {.max_waiting_bytes = 30, .max_waiting_kv = 1});
  OpenEpoch();
  EXPECT_TRUE(Arrive(Request("a")).open());
  EXPECT_TRUE(Arrive(Request("b")).open());
  EXPECT_THAT(Arrive(Request("c")), EndsForNow(StatusCode::kResourceExhausted, ""));
  Place();
  Tokens(*clients_.begin()->second, {1});
  EXPECT_TRUE(Arrive(Request("d")).open()) << "a request that has begun waits no more";
  EXPECT_EQ(totals().refused_memory, 1);
  // KV of up to 2,000 tokens is accepted: the group's 1,000, and as many for waiting requests.
  for (int i = 0; i < 20; ++i) {
    ClientRequest large = Request(absl::StrCat("large", i), 400);
    large.prompt.clear();
    Arrive(large);
  }
  EXPECT_EQ(overload_->committed_kv(), 3 * 13 + 4 * 403);
  // A group has given up its memory, without opening a new epoch.
  requests_->SetGroups({.capacities = {Capacity(500)}, .complete = true});
  ClientRequest another = Request("another", 397);
  another.prompt.clear();
  EXPECT_THAT(Arrive(another),
              EndsForNow(StatusCode::kResourceExhausted, "1651 KV tokens already; the workers have 500"));
}

TEST_F(RequestLifecycleTest, ATenantLeavesOthersTheirShareOfTheKv) {
  Start({}, {.max_waiting_kv = 1});
  OpenEpoch();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Arrive(Request(absl::StrCat("a", i), 400)).open()) << "alone";
  EXPECT_TRUE(Arrive(Request("b", 10, "other")).open());
  EXPECT_THAT(Arrive(Request("a4")), EndsForNow(StatusCode::kResourceExhausted, "its share"));
  EXPECT_TRUE(Arrive(Request("b2", 100, "other")).open());
}

// Without any limits set.
TEST_F(RequestLifecycleTest, ATenantLeavesOthersTheirShareOfThePool) {
  Start({}, {.max_waiting = 4});
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(Arrive(Request(absl::StrCat("a", i))).open()) << "there is no other tenant";
  }
  EXPECT_TRUE(absl::IsResourceExhausted(*Arrive(Request("b", 10, "other")).status));
  EXPECT_TRUE(Abort("a0"));
  EXPECT_THAT(Arrive(Request("a4")), EndsForNow(StatusCode::kResourceExhausted, "the tenant has its share"));
  EXPECT_TRUE(Arrive(Request("b", 10, "other")).open());
}

TEST_F(RequestLifecycleTest, ATenantsConcurrencyIsReleasedAtTheEnd) {
  Start({}, {}, "t:concurrent=1");
  const ClientRequest request = Request("a", 10, "t");
  Client& client = Arrive(request);
  EXPECT_TRUE(absl::IsResourceExhausted(tenants_->Enter(request, now_).status()));
  EXPECT_EQ(tenants_->refused(), 1);
  Cancel(client);
  EXPECT_TRUE(tenants_->Enter(request, now_).ok());
}

TEST_F(RequestLifecycleTest, AParentsDeadlineBoundsItsCalls) {
  OpenEpoch();
  ClientRequest call = Request("a");
  call.parent_id = "p";
  call.parent_timeout = absl::Seconds(5);
  Client& first = Arrive(call);
  call.request_id = "b";
  call.parent_timeout.reset();
  Client& second = Arrive(call);
  EXPECT_LE(requests_->next_deadline(), now_ + absl::Seconds(5));
  PassTime(absl::Seconds(5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(*first.status));
  EXPECT_TRUE(absl::IsDeadlineExceeded(*second.status));
  EXPECT_EQ(totals().agent_calls, 2);
  // A call that cannot meet it is refused.
  requests_->SetGroups({.capacities = {Capacity()}, .shortest_step = absl::Seconds(1)});
  call.ignore_eos = true;
  call.parent_id = "q";
  call.parent_timeout = absl::Seconds(9);
  EXPECT_TRUE(absl::IsDeadlineExceeded(*Arrive(call).status)) << "ten tokens take ten seconds";
  call.parent_timeout = absl::Seconds(11);
  EXPECT_TRUE(Arrive(call).open());
}

TEST_F(RequestLifecycleTest, TheNextCallOfAnAgentIsAsOldAsTheAgent) {
  OpenEpoch();
  Arrive(Request("holder"));
  ClientRequest call = Request("a", 2);
  call.parent_id = "agent";
  Client& first = Arrive(call);
  for (int step = 0; step < 20; ++step) {
    Place();
    if (step == 0) Tokens(first, {1, 2});
    if (step == 1) Finish(first);
  }
  call.stage = 1;
  const auto seniority = [&](const std::string& name, const std::string& tenant) {
    call.request_id = name;
    call.tenant = tenant;
    return WaitingSpec(Arrive(call)).seniority;
  };
  EXPECT_EQ(seniority("other", "another"), 0) << "another tenant's agent of that name";
  EXPECT_GT(seniority("b", ""), 10);
  EXPECT_EQ(WaitingSpec(Arrive(Request("plain"))).seniority, 0);
  EXPECT_EQ(totals().agent_calls, 3);
}

TEST_F(RequestLifecycleTest, ADrainRefusesNewRequestsAndEndsTheRest) {
  Client& early = Arrive(ComeBack("early", 0));
  OpenEpoch();
  Client& live = Arrive(Request("a"));
  requests_->BeginDrain(now_);
  EXPECT_FALSE(early.open());
  EXPECT_TRUE(absl::IsUnavailable(*Arrive(Request("b")).status));
  EXPECT_TRUE(live.open());
  requests_->EndAll(now_);
  EXPECT_TRUE(absl::IsUnavailable(*live.status));
  EXPECT_EQ(requests_->live(), 0);
}

}  // namespace
}  // namespace bfio::router
