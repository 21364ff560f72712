// Requests whose client disconnects and resumes.
#include "router/requests/request_lifecycle.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/retry_delay.h"
#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(RequestLifecycleTest, AResumableRequestOutlivesItsStream) {
  OpenEpoch();
  RecordingSink& first = Arrive(ResumableRequest("a", 4));
  Place();
  Tokens(first, {1, 2});
  requests_->OnCancel(first.id(), false, now_);
  EXPECT_EQ(requests_->live(), 1);
  requests_->OnTokens(first.id(), std::vector<uint32_t>{3}, {}, now_);
  RecordingSink& other = Arrive([] {
    ClientRequest request = ComeBack("a", 0);
    request.resume_token = "guess";
    return request;
  }());
  EXPECT_TRUE(absl::IsNotFound(*other.status)) << "as if there were no such request";
  ClientRequest plain = ResumableRequest("plain");
  plain.resumable = false;
  EXPECT_TRUE(Arrive(plain).open());
  EXPECT_TRUE(absl::IsFailedPrecondition(*Arrive(ComeBack("plain", 0)).status))
      << "it was not sent as resumable";
  RecordingSink& second = Arrive(ComeBack("a", 1));
  EXPECT_EQ(second.first_index, 1u);
  EXPECT_THAT(second.tokens, ElementsAre(2, 3));
  requests_->OnTokens(first.id(), std::vector<uint32_t>{4}, {}, now_);
  requests_->OnFinished(first.id(), FinishReason::kLength, now_);
  EXPECT_THAT(second.tokens, ElementsAre(2, 3, 4));
  EXPECT_TRUE(second.finish.has_value());
  // A client may also have missed the end: it can resume an ended request.
  RecordingSink& third = Arrive(ComeBack("a", 3));
  EXPECT_THAT(third.tokens, ElementsAre(4));
  EXPECT_TRUE(third.finish.has_value());
}

TEST_F(RequestLifecycleTest, AResumeGetsTheLogprobsOfTheTokensItMissed) {
  OpenEpoch();
  ClientRequest request = ResumableRequest("a", 4);
  request.sampling.logprobs = 1;
  const int64_t before = requests_->kept_bytes();
  RecordingSink& first = Arrive(request);
  Place();
  const Logprobs made{{-1, -2, -3}, {{5, -0.5}, {6, -0.6}, {7, -0.7}}};
  requests_->OnTokens(first.id(), std::vector<uint32_t>{1, 2, 3}, made.view(), now_);
  EXPECT_EQ(first.logprobs.tokens, made.tokens);
  EXPECT_EQ(first.logprobs.top, made.top);
  // Prompt, tokens, and three words of 4 bytes for the log-probabilities of each.
  EXPECT_EQ(requests_->kept_bytes() - before, 3 * 4 + 3 * 4 + 3 * 12);
  requests_->OnCancel(first.id(), false, now_);
  RecordingSink& second = Arrive(ComeBack("a", 1));
  EXPECT_THAT(second.tokens, ElementsAre(2, 3));
  EXPECT_THAT(second.logprobs.tokens, ElementsAre(-2, -3));
  EXPECT_THAT(second.logprobs.top, ElementsAre(TopToken{6, -0.6}, TopToken{7, -0.7}));
}

TEST_F(RequestLifecycleTest, LostLogprobsAreReportedAsLost) {
  OpenEpoch();
  ClientRequest request = Interrupted("a", 3, false);
  request.sampling.logprobs = 0;
  RecordingSink& first = Arrive(request);
  Place();
  // The third token is generated again.
  const Logprobs made{{-1, -2}, {}};
  requests_->OnTokens(first.id(), std::vector<uint32_t>{7, 8}, made.view(), now_);
  EXPECT_THAT(first.logprobs.tokens, ElementsAre(-2));
  ClientRequest again = ComeBack("a", 1);
  again.tenant = "t";
  again.resume_token.clear();
  RecordingSink& refused = Arrive(again);
  ASSERT_TRUE(refused.status.has_value());
  EXPECT_TRUE(absl::IsFailedPrecondition(*refused.status)) << *refused.status;
  again.resume_from = 2;
  RecordingSink& taken = Arrive(again);
  EXPECT_THAT(taken.tokens, ElementsAre(7, 8));
  EXPECT_THAT(taken.logprobs.tokens, ElementsAre(-1, -2));
}

TEST_F(RequestLifecycleTest, MissingLogprobsEndTheRequest) {
  OpenEpoch();
  for (const Logprobs& made : {Logprobs{}, Logprobs{{-1}, {}}, Logprobs{{-1}, {{5, -1}, {6, -2}}}}) {
    ClientRequest request = Request("a");
    request.sampling.logprobs = 1;
    RecordingSink& sink = Arrive(request);
    Place();
    requests_->OnTokens(sink.id(), std::vector<uint32_t>{1}, made.view(), now_);
    ASSERT_TRUE(sink.status.has_value());
    EXPECT_TRUE(absl::IsInternal(*sink.status)) << *sink.status;
  }
}

TEST_F(RequestLifecycleTest, LogprobsThatWereNotRequestedAreDropped) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  Place();
  requests_->OnTokens(sink.id(), std::vector<uint32_t>{1}, Logprobs{{-1}, {{5, -1}}}.view(), now_);
  EXPECT_THAT(sink.tokens, ElementsAre(1));
  EXPECT_TRUE(sink.logprobs.empty());
}

TEST_F(RequestLifecycleTest, ARequestWithoutAClientExpires) {
  OpenEpoch();
  RecordingSink& sink = Arrive(ResumableRequest("a"));
  Place();
  requests_->OnCancel(sink.id(), false, now_);
  now_ += absl::Seconds(29);
  requests_->OnTimer(now_);
  EXPECT_EQ(requests_->live(), 1);
  now_ = requests_->next_deadline();
  requests_->OnTimer(now_);
  EXPECT_EQ(requests_->live(), 0);
  EXPECT_EQ(requests_->totals().resume_expired, 1);
  EXPECT_TRUE(sink.broken_off) << "an ended stream does not wait for its client for ever";
}

TEST_F(RequestLifecycleTest, ASlowReaderIsCutOff) {
  OpenEpoch();
  RecordingSink& plain = Arrive(Request("a"));
  RecordingSink& resumable = Arrive(ResumableRequest("b"));
  Place();
  plain.stuck = resumable.stuck = true;
  Tokens(plain, {1});
  Tokens(resumable, {1});
  EXPECT_TRUE(absl::IsResourceExhausted(*plain.status));
  EXPECT_TRUE(absl::IsResourceExhausted(*resumable.status));
  EXPECT_EQ(requests_->totals().slow_readers, 2);
  EXPECT_EQ(requests_->live(), 1) << "the resumable one waits for its client";
}

TEST_F(RequestLifecycleTest, KeptEndedRequestsYieldToLiveOnes) {
  RequestOptions options;
  options.resume.budget_bytes = 30;
  Start(options);
  OpenEpoch();
  RecordingSink& ended = Arrive(ResumableRequest("ended", 1));
  Place();
  Tokens(ended, {1});
  requests_->OnFinished(ended.id(), FinishReason::kLength, now_);
  EXPECT_EQ(requests_->kept_bytes(), 16);
  RecordingSink& live = Arrive(ResumableRequest("live", 4));
  Place();
  Tokens(live, {1});
  EXPECT_EQ(requests_->kept_bytes(), 16);
  EXPECT_TRUE(absl::IsNotFound(*Arrive(ComeBack("ended", 0)).status));
  EXPECT_TRUE(Arrive(ComeBack("live", 0)).open());
}

TEST_F(RequestLifecycleTest, EarlyResumesWaitForWorkersThatMayHoldTheRequest) {
  RecordingSink& early = Arrive(ComeBack("a", 1));
  EXPECT_TRUE(early.open());
  HeldRequest held = {.id = 1000, .request = ResumableRequest("a", 4), .tokens = {5, 6}};
  const std::vector<HeldActive> active = {{1000, 5, 2}};
  requests_->SetTime(now_);
  const std::vector<core::RequestSpec> recovered = requests_->Recover("w", {held}, active);
  ASSERT_EQ(recovered.size(), 1u);
  EXPECT_EQ(recovered[0].prefill_tokens, 5);
  EXPECT_EQ(recovered[0].max_new_tokens, 2);
  OpenEpoch({{1000, 5}}, recovered);
  EXPECT_TRUE(early.open());
  EXPECT_EQ(early.first_index, 1u);
  EXPECT_THAT(early.tokens, ElementsAre(6));
  EXPECT_EQ(requests_->totals().recovered, 1);
  EXPECT_GT(ids_->Next(), 1000u) << "no id is given out twice";
}

TEST_F(RequestLifecycleTest, ARecoveredRequestsTokensAreTimedFromItsRecovery) {
  HeldRequest held = {.id = 1000, .request = ResumableRequest("a", 4), .tokens = {5, 6}};
  requests_->SetTime(now_);
  const std::vector<core::RequestSpec> recovered =
      requests_->Recover("w", {held}, std::vector<HeldActive>{{1000, 5, 2}});
  OpenEpoch({{1000, 5}}, recovered);
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
    RecordingSink& sink = Arrive(Interrupted(absl::StrCat("a", received), received, false));
    Place();
    Tokens(sink, {7, 8});
    EXPECT_THAT(sink.tokens, ElementsAre(8));
    EXPECT_EQ(first.count(), 0u) << received;
  }
  RecordingSink& sink = Arrive(Interrupted("b", 0, false));
  Place();
  Tokens(sink, {7});
  EXPECT_EQ(first.count(), 1u) << "its client had none yet";
}

TEST_F(RequestLifecycleTest, ATenantsEarlyResumesDoNotBlockOthers) {
  RequestOptions options;
  options.resume.max_early = 8;
  Start(options);
  const auto come_back = [&](const std::string& tenant, int n) -> RecordingSink& {
    ClientRequest request = ComeBack(absl::StrCat("r", n), 1);
    request.tenant = tenant;
    return Arrive(request);
  };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(come_back("flood", i).open());
  const absl::Status refused = *come_back("flood", 4).status;
  EXPECT_TRUE(absl::IsUnavailable(refused)) << "not that there is no such request: it may come yet";
  EXPECT_TRUE(GetRetryDelay(refused).has_value());
  EXPECT_TRUE(come_back("acme", 1).open());
  EXPECT_TRUE(come_back("acme", 2).open());
  EXPECT_FALSE(come_back("acme", 3).open());
  EXPECT_TRUE(come_back("zeta", 1).open());
  EXPECT_EQ(requests_->totals().resume_refused, 2);
}

TEST_F(RequestLifecycleTest, EarlyResumesAreAnsweredAfterTheTimeout) {
  RecordingSink& bare = Arrive(ComeBack("a", 1));
  ClientRequest whole = ResumableRequest("b");
  whole.resume_from = 2;
  whole.received = {1, 2};
  RecordingSink& with_prompt = Arrive(whole);
  now_ = requests_->next_deadline();
  requests_->OnTimer(now_);
  EXPECT_TRUE(absl::IsNotFound(*bare.status));
  EXPECT_TRUE(with_prompt.open()) << "it starts anew";
  EXPECT_EQ(requests_->totals().restarted, 1);
  OpenEpoch();
  const std::vector<Assignment> assignments = Place();
  ASSERT_EQ(assignments.size(), 1u);
  EXPECT_EQ(assignments[0].first_index, 1u) << "the last token is made again";
}

TEST_F(RequestLifecycleTest, OnlyAProvenResumeBypassesItsTenantsLimits) {
  Start({}, {}, "t:concurrent=1");
  OpenEpoch();
  RecordingSink& waiting = Arrive(Request("waiting"));
  RecordingSink& first = Arrive(Interrupted("a", 3, false));
  EXPECT_TRUE(first.open()) << "it counts like any other";
  RecordingSink& second = Arrive(Interrupted("b", 3, false));
  EXPECT_TRUE(absl::IsResourceExhausted(*second.status));
  EXPECT_EQ(tenants_->refused(), 1);
  RecordingSink& proven = Arrive(Interrupted("c", 3, true));
  EXPECT_TRUE(proven.open());
  EXPECT_GT(WaitingSpec(proven.id()).priority, 100);
  EXPECT_EQ(WaitingSpec(first.id()).priority, 0);
  const std::vector<Assignment> assignments = Place();
  ASSERT_EQ(assignments.size(), 3u);
  EXPECT_EQ(assignments[0].id, proven.id());
  EXPECT_EQ(assignments[1].id, waiting.id());
}

TEST_F(RequestLifecycleTest, UnprovenReceivedTokensCountAsPrompt) {
  OpenEpoch();
  RecordingSink& claimed = Arrive(Interrupted("a", 3, false));
  RecordingSink& proven = Arrive(Interrupted("b", 3, true));
  EXPECT_EQ(WaitingSpec(claimed.id()).generated_tokens, 0) << "its tenant pays for all of the prompt";
  EXPECT_EQ(WaitingSpec(proven.id()).generated_tokens, 2);
  EXPECT_EQ(WaitingSpec(claimed.id()).prefill_tokens, 5);
  Place();
  Tokens(claimed, {1, 2});
  Die();
  EXPECT_EQ(WaitingSpec(claimed.id()).generated_tokens, 2);
  EXPECT_EQ(WaitingSpec(claimed.id()).prefill_tokens, 7);
}

TEST_F(RequestLifecycleTest, ATicketIsValidOnceAndSoonAfterTheStart) {
  Start({}, {}, "t:concurrent=1");
  OpenEpoch();
  RecordingSink& taken = Arrive([] {
    ClientRequest request = Request("taken");
    request.tenant = "t";
    return request;
  }());
  RecordingSink& first = Arrive(Interrupted("a", 2, true));
  ASSERT_TRUE(first.open());
  ASSERT_TRUE(requests_->Abort("t", "a", "", now_));
  EXPECT_TRUE(absl::IsResourceExhausted(*Arrive(Interrupted("a", 2, true)).status)) << "shown again";
  now_ += absl::Seconds(30);
  EXPECT_TRUE(Arrive(Interrupted("b", 2, true)).open());
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(absl::IsResourceExhausted(*Arrive(Interrupted("c", 2, true)).status)) << "too late";
  EXPECT_TRUE(taken.open());
}

TEST_F(RequestLifecycleTest, HeldRequestsWhoseTokensDisagreeAreNotRecovered) {
  HeldRequest held = {.id = 1000, .request = ResumableRequest("a", 4), .tokens = {5, 6}};
  EXPECT_THAT(requests_->Recover("w", {held}, std::vector<HeldActive>{{1000, 5, 3}}), IsEmpty());
  EXPECT_EQ(requests_->totals().tokens_lost, 1);
  EXPECT_THAT(requests_->Recover("w", {held}, {}), IsEmpty()) << "the worker does not run it";
  EXPECT_EQ(requests_->live(), 0);
}

TEST_F(RequestLifecycleTest, ARequestThatItsClientEndedIsNotRecoveredFromAnotherWorker) {
  OpenEpoch();
  RecordingSink& sink = Arrive(ResumableRequest("a", 4));
  Place();
  ASSERT_TRUE(requests_->Abort("", "a", "secret", now_));
  ASSERT_TRUE(cluster_->Knows(sink.id())) << "its worker has not confirmed the end";
  const HeldRequest copy = {.id = sink.id(), .request = ResumableRequest("a", 4)};
  EXPECT_THAT(requests_->Recover("another", {copy}, std::vector<HeldActive>{{sink.id(), 3, 0}}), IsEmpty());
  EXPECT_EQ(requests_->live(), 0);
}

TEST_F(RequestLifecycleTest, AnEndedHeldRequestWaitsForItsClient) {
  HeldRequest held = {
      .id = 1000, .request = ResumableRequest("a", 2), .tokens = {5, 6}, .ended = FinishReason::kLength};
  EXPECT_THAT(requests_->Recover("w", {held}, {}), IsEmpty());
  RecordingSink& sink = Arrive(ComeBack("a", 0));
  EXPECT_THAT(sink.tokens, ElementsAre(5, 6));
  EXPECT_TRUE(sink.finish.has_value());
}

}  // namespace
}  // namespace bfio::router
