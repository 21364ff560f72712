// Requests whose client disconnects and resumes, also at another router.
#include "router/requests/resume_rights.h"
#include "router/requests/resume_store.h"

#include <string>
#include <vector>

#include "common/base/rng.h"
#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(RequestLifecycleTest, AResumableRequestOutlivesItsStream) {
  Client& first = Running(ResumableRequest("a", 4));
  Tokens(first, {1, 2});
  Cancel(first);
  EXPECT_EQ(requests_->live(), 1);
  Tokens(first, {3});
  ClientRequest guess = ComeBack("a", 0);
  guess.resume_token = "guess";
  EXPECT_TRUE(absl::IsNotFound(*Arrive(guess).status)) << "as if there were no such request";
  ClientRequest plain = ResumableRequest("plain");
  plain.resumable = false;
  EXPECT_TRUE(Arrive(plain).open());
  EXPECT_TRUE(absl::IsFailedPrecondition(*Arrive(ComeBack("plain", 0)).status))
      << "it was not sent as resumable";
  Client& second = Arrive(ComeBack("a", 1));
  EXPECT_THAT(second.tokens, ElementsAre(2, 3));
  Tokens(first, {4});
  Finish(first);
  EXPECT_THAT(second.tokens, ElementsAre(2, 3, 4));
  EXPECT_TRUE(second.finish.has_value());
  // A client may also have missed the end: it can resume an ended request.
  Client& third = Arrive(ComeBack("a", 3));
  EXPECT_THAT(third.tokens, ElementsAre(4));
  EXPECT_TRUE(third.finish.has_value());
}

// --- log-probabilities ---

TEST_F(RequestLifecycleTest, AResumeGetsTheLogprobsOfTheTokensItMissed) {
  OpenEpoch();
  ClientRequest request = ResumableRequest("a", 4);
  request.sampling.logprobs = 1;
  const int64_t before = requests_->kept_bytes();
  Client& first = Arrive(request);
  Place();
  const Logprobs made{{-1, -2, -3}, {{5, -0.5}, {6, -0.6}, {7, -0.7}}};
  Tokens(first, {1, 2, 3}, made);
  EXPECT_EQ(first.logprobs.tokens, made.tokens);
  EXPECT_EQ(first.logprobs.top, made.top);
  // Prompt, tokens, and three words of 4 bytes for the log-probabilities of each.
  EXPECT_EQ(requests_->kept_bytes() - before, 3 * 4 + 3 * 4 + 3 * 12);
  Cancel(first);
  Client& second = Arrive(ComeBack("a", 1));
  EXPECT_THAT(second.tokens, ElementsAre(2, 3));
  EXPECT_THAT(second.logprobs.tokens, ElementsAre(-2, -3));
  EXPECT_THAT(second.logprobs.top, ElementsAre(TopToken{6, -0.6}, TopToken{7, -0.7}));
}

TEST_F(RequestLifecycleTest, LostLogprobsAreReportedAsLost) {
  OpenEpoch();
  ClientRequest request = Interrupted("a", 3, false);
  request.sampling.logprobs = 0;
  Client& first = Arrive(request);
  Place();
  // The third token is generated again.
  Tokens(first, {7, 8}, {{-1, -2}, {}});
  EXPECT_THAT(first.logprobs.tokens, ElementsAre(-2));
  ClientRequest again = ComeBack("a", 1, "t");
  again.resume_token.clear();
  EXPECT_THAT(Arrive(again), EndsWith(StatusCode::kFailedPrecondition, ""));
  again.resume_from = 2;
  Client& taken = Arrive(again);
  EXPECT_THAT(taken.tokens, ElementsAre(7, 8));
  EXPECT_THAT(taken.logprobs.tokens, ElementsAre(-1, -2));
}

TEST_F(RequestLifecycleTest, MissingLogprobsEndTheRequestAndOnesNotRequestedAreDropped) {
  OpenEpoch();
  for (const Logprobs& made : {Logprobs{}, Logprobs{{-1}, {}}, Logprobs{{-1}, {{5, -1}, {6, -2}}}}) {
    ClientRequest request = Request("a");
    request.sampling.logprobs = 1;
    Client& client = Arrive(request);
    Place();
    Tokens(client, {1}, made);
    EXPECT_THAT(client, EndsWith(StatusCode::kInternal, ""));
  }
  Client& client = Arrive(Request("a"));
  Place();
  Tokens(client, {1}, {{-1}, {{5, -1}}});
  EXPECT_THAT(client.tokens, ElementsAre(1));
  EXPECT_TRUE(client.logprobs.empty());
}

// --- bounds ---

TEST_F(RequestLifecycleTest, ARequestWithoutAClientExpires) {
  Client& client = Running(ResumableRequest("a"));
  Cancel(client);
  PassTime(absl::Seconds(29));
  EXPECT_EQ(requests_->live(), 1);
  PassTime(requests_->next_deadline() - now_);
  EXPECT_EQ(requests_->live(), 0);
  EXPECT_EQ(totals().resume_expired, 1);
  EXPECT_TRUE(client.broken_off) << "an ended stream does not wait for its client for ever";
}

TEST_F(RequestLifecycleTest, ASlowReaderIsCutOff) {
  OpenEpoch();
  for (const ClientRequest& request : {Request("a"), ResumableRequest("b")}) {
    Client& client = Arrive(request);
    Place();
    client.stuck = true;
    Tokens(client, {1});
    EXPECT_TRUE(absl::IsResourceExhausted(*client.status));
  }
  EXPECT_EQ(totals().slow_readers, 2);
  EXPECT_EQ(requests_->live(), 1) << "the resumable one waits for its client";
}

TEST_F(RequestLifecycleTest, KeptEndedRequestsYieldToLiveOnes) {
  RequestOptions options;
  options.resume.budget_bytes = 30;
  Start(options);
  Client& ended = Running(ResumableRequest("ended", 1));
  Tokens(ended, {1});
  Finish(ended);
  EXPECT_EQ(requests_->kept_bytes(), 16);
  Client& live = Arrive(ResumableRequest("live", 4));
  Place();
  Tokens(live, {1});
  EXPECT_EQ(requests_->kept_bytes(), 16);
  EXPECT_TRUE(absl::IsNotFound(*Arrive(ComeBack("ended", 0)).status));
  EXPECT_TRUE(Arrive(ComeBack("live", 0)).open());
}

TEST(ResumeStore, NothingIsKeptOfExpiredRequests) {
  const ResumeOptions options;
  ResumeStore store(options);
  RequestTable table;
  absl::Time now = absl::UnixEpoch();
  // A resumable request ends and is kept for its client.
  const auto end = [&](core::RequestId id) {
    const ClientRequest request = {.request_id = absl::StrCat(id), .resumable = true};
    store.Retain(*table.Add(id, request, nullptr, 0, now), Finish(), now);
  };
  const auto pass = [&](absl::Duration time) {
    now += time;
    while (const auto id = store.TakeExpired(table, now)) table.Erase(*id);
  };
  for (core::RequestId id = 1; id <= 3; ++id) {
    end(id);
    pass(absl::Seconds(1));
  }
  EXPECT_EQ(store.ended_entries(), 3u);
  pass(options.timeout - absl::Seconds(2));
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(store.ended_entries(), 1u);
  EXPECT_EQ(store.TakeOldestEnded(table), core::RequestId{3});
  end(4);
  pass(options.timeout);
  EXPECT_EQ(store.ended_entries(), 0u);
  EXPECT_EQ(store.next_deadline(), absl::InfiniteFuture());
}

TEST(ReplayBudget, TheTotalIsTheSumOfItsRequestsWithinBothBounds) {
  using Outcome = ReplayBudget::Outcome;
  Rng rng(1);
  ReplayBudget budget(1000, 300);
  std::vector<int64_t> held(8, 0);
  int64_t sum = 0;
  for (int i = 0; i < 10'000; ++i) {
    int64_t& one = held[rng.Below(held.size())];
    if (rng.Below(4) == 0) {
      sum -= one;
      budget.Release("t", one);
      ASSERT_EQ(one, 0);
    } else {
      const auto bytes = static_cast<int64_t>(rng.Below(200));
      const Outcome wanted = one + bytes > 300    ? Outcome::kRequestTooLarge
                             : sum + bytes > 1000 ? Outcome::kFull
                                                  : Outcome::kKept;
      const int64_t after = wanted == Outcome::kKept ? one + bytes : one;
      sum += after - one;
      ASSERT_EQ(budget.Charge("t", one, bytes), wanted);
      ASSERT_EQ(one, after);
    }
    ASSERT_EQ(budget.used(), sum);
  }
}

TEST(ReplayBudget, ATenantLeavesOthersTheirShares) {
  ReplayBudget budget(1000, 1000);
  int64_t first = 0, second = 0;
  EXPECT_EQ(budget.Charge("a", first, 900), ReplayBudget::Outcome::kKept) << "there is no other tenant";
  EXPECT_EQ(budget.Charge("b", second, 200), ReplayBudget::Outcome::kFull);
  budget.Release("a", first);
  EXPECT_EQ(budget.Charge("a", first, 900), ReplayBudget::Outcome::kFull);
  EXPECT_EQ(budget.Charge("a", first, 500), ReplayBudget::Outcome::kKept);
  EXPECT_EQ(budget.Charge("b", second, 200), ReplayBudget::Outcome::kKept);
}

// --- a router that has just started ---

TEST_F(RequestLifecycleTest, EarlyResumesWaitForWorkersThatMayHoldTheRequest) {
  Client& early = Arrive(ComeBack("a", 1));
  EXPECT_TRUE(early.open());
  const auto recovered =
      Recover({.id = 1000, .request = ResumableRequest("a", 4), .tokens = {5, 6}}, {{1000, 5, 2}});
  ASSERT_THAT(recovered, SizeIs(1));
  EXPECT_EQ(recovered[0].prefill_tokens, 5);
  EXPECT_EQ(recovered[0].max_new_tokens, 2);
  OpenEpoch({{1000, 5}}, recovered);
  EXPECT_TRUE(early.open());
  EXPECT_THAT(early.tokens, ElementsAre(6));
  EXPECT_EQ(totals().recovered, 1);
  // Its next token is timed from its recovery.
  now_ += absl::Seconds(2);
  requests_->OnTokens(1000, std::vector<uint32_t>{7}, {}, now_);
  const RequestLatencies& latencies = requests_->latencies().latencies();
  EXPECT_EQ(latencies.inter_token_s.count(), 1u);
  EXPECT_EQ(latencies.inter_token_s.sum(), 2);
  EXPECT_EQ(latencies.time_to_first_token_s.count(), 0u);
}

TEST_F(RequestLifecycleTest, OnlyTheFirstTokenOfAClientIsTimedAsItsFirst) {
  OpenEpoch();
  const Distribution& first = requests_->latencies().latencies().time_to_first_token_s;
  // The last received token is generated again, so after one received token nothing remains.
  for (const uint32_t received : {1, 3}) {
    Client& client = Arrive(Interrupted(absl::StrCat("a", received), received, false));
    Place();
    Tokens(client, {7, 8});
    EXPECT_THAT(client.tokens, ElementsAre(8));
    EXPECT_EQ(first.count(), 0u) << received;
  }
  Client& client = Arrive(Interrupted("b", 0, false));
  Place();
  Tokens(client, {7});
  EXPECT_EQ(first.count(), 1u) << "its client had none yet";
}

TEST_F(RequestLifecycleTest, ATenantsEarlyResumesDoNotBlockOthers) {
  RequestOptions options;
  options.resume.max_early = 8;
  Start(options);
  const auto come_back = [&](const std::string& tenant, int n) -> Client& {
    return Arrive(ComeBack(absl::StrCat("r", n), 1, tenant));
  };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(come_back("flood", i).open());
  EXPECT_THAT(come_back("flood", 4), EndsForNow(StatusCode::kUnavailable, ""))
      << "not that there is no such request: it may come yet";
  EXPECT_TRUE(come_back("acme", 1).open());
  EXPECT_TRUE(come_back("acme", 2).open());
  EXPECT_FALSE(come_back("acme", 3).open());
  EXPECT_TRUE(come_back("zeta", 1).open());
  EXPECT_EQ(totals().resume_refused, 2);
}

TEST_F(RequestLifecycleTest, EarlyResumesAreAnsweredAfterTheTimeout) {
  Client& bare = Arrive(ComeBack("a", 1));
  ClientRequest whole = ResumableRequest("b");
  whole.resume_from = 2;
  whole.received = {1, 2};
  Client& with_prompt = Arrive(whole);
  PassTime(requests_->next_deadline() - now_);
  EXPECT_TRUE(absl::IsNotFound(*bare.status));
  EXPECT_TRUE(with_prompt.open()) << "it starts anew";
  EXPECT_EQ(totals().restarted, 1);
  OpenEpoch();
  const std::vector<Assignment> assignments = Place();
  ASSERT_THAT(assignments, SizeIs(1));
  EXPECT_EQ(assignments[0].first_index, 1u) << "the last token is made again";
}

TEST_F(RequestLifecycleTest, OnlyAProvenResumeBypassesItsTenantsLimits) {
  Start({}, {}, "t:concurrent=1");
  OpenEpoch();
  Client &waiting = Arrive(Request("waiting")), &first = Arrive(Interrupted("a", 3, false));
  EXPECT_TRUE(first.open()) << "it counts like any other";
  EXPECT_TRUE(absl::IsResourceExhausted(*Arrive(Interrupted("b", 3, false)).status));
  EXPECT_EQ(tenants_->refused(), 1);
  Client& proven = Arrive(Interrupted("c", 3, true));
  EXPECT_TRUE(proven.open());
  EXPECT_GT(WaitingSpec(proven).priority, 100);
  EXPECT_EQ(WaitingSpec(first).priority, 0);
  // What is not proven counts as prompt, so its tenant pays for all of it.
  EXPECT_EQ(WaitingSpec(first).generated_tokens, 0);
  EXPECT_EQ(WaitingSpec(proven).generated_tokens, 2);
  EXPECT_EQ(WaitingSpec(first).prefill_tokens, 5);
  const std::vector<Assignment> assignments = Place();
  ASSERT_THAT(assignments, SizeIs(3));
  EXPECT_EQ(assignments[0].id, proven.id());
  EXPECT_EQ(assignments[1].id, waiting.id());
  Tokens(first, {1, 2});
  Die();
  EXPECT_EQ(WaitingSpec(first).generated_tokens, 2);
  EXPECT_EQ(WaitingSpec(first).prefill_tokens, 7);
}

TEST_F(RequestLifecycleTest, ATicketIsValidOnceAndSoonAfterTheStart) {
  Start({}, {}, "t:concurrent=2");
  OpenEpoch();
  Client& taken = Arrive(Request("taken", 10, "t"));
  Arrive(Request("taken too", 10, "t"));
  EXPECT_TRUE(Arrive(Interrupted("a", 2, true)).open());
  ASSERT_TRUE(Abort("a", "", "t"));
  EXPECT_TRUE(absl::IsResourceExhausted(*Arrive(Interrupted("a", 2, true)).status)) << "shown again";
  now_ += absl::Seconds(30);
  EXPECT_TRUE(Arrive(Interrupted("b", 2, true)).open());
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(absl::IsResourceExhausted(*Arrive(Interrupted("c", 2, true)).status)) << "too late";
  EXPECT_TRUE(taken.open());
}

// Those of requests that had ended are worth no more than what the tenant may have at a time.
TEST_F(RequestLifecycleTest, TicketsCountAgainstTheTenantsOwnLimit) {
  Start({}, {}, "t:concurrent=3");
  OpenEpoch();
  int open = 0;
  for (int i = 0; i < 20; ++i) open += Arrive(Interrupted(absl::StrCat("a", i), 2, true)).open() ? 1 : 0;
  EXPECT_EQ(open, 3);
  EXPECT_TRUE(absl::IsResourceExhausted(tenants_->Enter(Request("new", 10, "t"), now_).status()));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Abort(absl::StrCat("a", i), "", "t"));
  EXPECT_TRUE(tenants_->Enter(Request("new", 10, "t"), now_).ok());
  // Early ones count as well; a tenant without a limit leaves as much free as it takes.
  Start({.resume = {.max_early = 10}}, {}, "t:concurrent=3");
  open = 0;
  for (int i = 0; i < 20; ++i) {
    ClientRequest early = ComeBack(absl::StrCat("e", i), 1);
    early.tenant = i % 2 == 0 ? "t" : "u";
    open += Arrive(early).open() ? 1 : 0;
  }
  EXPECT_EQ(open, 3 + 4);
}

// Any number may be announced; each that returns to the pool costs as much as the pool is long.
TEST_F(RequestLifecycleTest, LostRequestsWithoutAClientFillNoPool) {
  Start({}, {.max_waiting = 2});
  std::vector<core::RequestSpec> recovered;
  std::vector<core::ResidentRequest> resident;
  for (core::RequestId id = 1000; id < 1004; ++id) {
    const std::string name = absl::StrCat("r", id);
    for (auto& spec : Recover({.id = id, .request = ResumableRequest(name, 9), .tokens = {5}}, {{id, 4, 1}}))
      recovered.push_back(spec);
    resident.push_back({id, 4});
  }
  OpenEpoch(resident, recovered);
  Client& client = Arrive(ComeBack("r1000", 0));
  ASSERT_EQ(requests_->live(), 4);
  OpenEpoch();
  EXPECT_EQ(cluster_->waiting(), 3) << "two without a client, and the one that has one";
  EXPECT_EQ(requests_->live(), 3);
  EXPECT_TRUE(client.open());
}

TEST_F(RequestLifecycleTest, HeldRequestsAreRecoveredOnceAndAsTheyRun) {
  HeldRequest held = {.id = 1000, .request = ResumableRequest("a", 2), .tokens = {5, 6}};
  EXPECT_THAT(Recover(held, {{1000, 5, 3}}), IsEmpty()) << "the counts of tokens disagree";
  EXPECT_EQ(totals().tokens_lost, 1);
  EXPECT_THAT(Recover(held, {}), IsEmpty()) << "the worker does not run it";
  EXPECT_EQ(requests_->live(), 0);
  held.ended = FinishReason::kLength;
  EXPECT_THAT(Recover(held, {}), IsEmpty());
  Client& client = Arrive(ComeBack("a", 0));
  EXPECT_THAT(client.tokens, ElementsAre(5, 6)) << "it has waited for its client";
  EXPECT_TRUE(client.finish.has_value());
  // One that its client has ended is not recovered from another worker.
  Client& ended = Running(ResumableRequest("b", 4));
  ASSERT_TRUE(Abort("b", "secret"));
  ASSERT_TRUE(cluster_->Knows(ended.id())) << "its worker has not confirmed the end";
  EXPECT_THAT(
      Recover({.id = ended.id(), .request = ResumableRequest("b", 4)}, {{ended.id(), 3, 0}}, "another"),
      IsEmpty());
  EXPECT_EQ(requests_->live(), 0);
}

}  // namespace
}  // namespace bfio::router
