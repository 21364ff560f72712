// Requests that lose their worker, and requests that make workers fail.
#include "router/requests/request_lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/retry_delay.h"
#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(RequestLifecycleTest, ALostRequestResumesAfterItsDeliveredTokens) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 5));
  RecordingSink& young = Arrive(Ask("young"));
  requests_->OnCancel(young.id(), false, now_);
  Place();
  Tokens(sink, {1, 2});
  OpenEpoch();  // the worker is a new process
  Arrive(Ask("b"));
  const std::vector<Assignment> assignments = Place();
  ASSERT_EQ(assignments.size(), 2u);
  EXPECT_EQ(assignments[0].id, sink.id()) << "it goes before those that have not begun";
  EXPECT_EQ(assignments[0].first_index, 2u);
  EXPECT_THAT(*assignments[0].history, ElementsAre(1, 2));
  Tokens(sink, {3, 4, 5});
  requests_->OnFinished(sink.id(), FinishReason::kLength, now_);
  EXPECT_THAT(sink.tokens, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(sink.finish->completion_tokens, 5u);
  EXPECT_EQ(requests_->totals().replayed, 1);
}

TEST_F(RequestLifecycleTest, TwoDeathsRunARequestAloneAndThreeEndIt) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a"));
  Place();
  Die();
  EXPECT_EQ(WaitingSpec(sink.id()).steps_alone, 0) << "one death may be anybody's";
  Place();
  Die();
  EXPECT_GT(WaitingSpec(sink.id()).steps_alone, 0);
  Place();
  EXPECT_TRUE(sink.open());
  Die();
  EXPECT_EQ(*sink.status, absl::InternalError("3 workers died with this request on them, one after another"));
  EXPECT_EQ(requests_->totals().suspects_ended, 1);
  EXPECT_EQ(requests_->totals().replays_refused, 1);
  EXPECT_EQ(requests_->totals().failed, 1);
  EXPECT_EQ(cluster_->waiting(), 0);
}

TEST_F(RequestLifecycleTest, OnlyDeathsWhileTheRequestWasPlacedCount) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a"));
  for (int i = 0; i < 10; ++i) {
    // The request waits when the worker dies; then it is lost for another reason: its plan had not arrived.
    requests_->OnWorkerDied(0, 0);
    Place();
    requests_->OnWorkerDied(0, 1);
    OpenEpoch();
  }
  EXPECT_TRUE(sink.open());
  EXPECT_EQ(WaitingSpec(sink.id()).steps_alone, 0);
  EXPECT_EQ(requests_->totals().replayed, 10);
}

TEST_F(RequestLifecycleTest, TokensClearASuspectWhetherAloneOrNot) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 480));
  const std::vector<uint32_t> enough(Suspicion::kTokensThatClear, 7);
  for (int i = 0; i < 6; ++i) {
    Place();
    Die();
    Place();
    Tokens(sink, enough);
    Die();
    EXPECT_EQ(WaitingSpec(sink.id()).steps_alone, 0) << "a worker that flaps makes no suspects";
  }
  Place();
  Die();
  ASSERT_GT(WaitingSpec(sink.id()).steps_alone, 0);
  Place();
  Tokens(sink, enough);
  requests_->OnPreempted(sink.id(), now_);
  EXPECT_TRUE(sink.open());
}

TEST_F(RequestLifecycleTest, ARequestThatKillsWorkersLateIsEventuallyEnded) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 480));
  int deaths = 0;
  for (; sink.open() && deaths < 100; ++deaths) {
    Place();
    Tokens(sink, {7});
    Tokens(sink, std::vector<uint32_t>(deaths < 10 ? Suspicion::kTokensThatClear : 1, 7));
    Die();
  }
  EXPECT_LE(deaths, Suspicion::kMost);
  EXPECT_TRUE(absl::IsInternal(*sink.status));
}

TEST(Suspicion, EndsAfterTheTotalNumberOfDeaths) {
  Suspicion suspicion;
  for (int i = 1; i < Suspicion::kMost; ++i) {
    suspicion.OnTokens(Suspicion::kTokensThatClear);
    suspicion.OnDeath();
    EXPECT_FALSE(suspicion.runs_alone() || suspicion.guilty());
  }
  suspicion.OnTokens(Suspicion::kTokensThatClear);
  suspicion.OnDeath();
  EXPECT_TRUE(suspicion.guilty());
}

TEST_F(RequestLifecycleTest, ALostFinishIsReconstructed) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 2));
  Place();
  Tokens(sink, {1, 2});
  OpenEpoch();
  ASSERT_TRUE(sink.finish.has_value());
  EXPECT_EQ(sink.finish->reason, FinishReason::kLength);
}

TEST_F(RequestLifecycleTest, ARequestTooLargeToKeepIsNotReplayed) {
  RequestOptions options;
  options.resume.request_bytes = 20;  // bytes of three prompt tokens and two generated ones
  Start(options);
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a"));
  Place();
  Tokens(sink, {1, 2});
  EXPECT_EQ(requests_->kept_bytes(), 20);
  Tokens(sink, {3});
  EXPECT_EQ(requests_->kept_bytes(), 0);
  OpenEpoch();
  EXPECT_TRUE(absl::IsUnavailable(*sink.status));
  EXPECT_THAT(sink.status->message(), HasSubstr("too large"));
}

TEST_F(RequestLifecycleTest, RefusalsForLackOfKvAreRetriedForAWhile) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a"));
  const absl::Status full = absl::ResourceExhaustedError("no KV");
  for (int i = 0; i < 15; ++i) requests_->OnRejected(sink.id(), full, now_);
  EXPECT_TRUE(sink.open());
  requests_->OnRejected(sink.id(), full, now_);
  EXPECT_TRUE(absl::IsUnavailable(*sink.status));
  EXPECT_EQ(GetRetryDelay(*sink.status), absl::Seconds(1));
  RecordingSink& broken = Arrive(Ask("b"));
  requests_->OnRejected(broken.id(), absl::InternalError("the logits are not finite"), now_);
  EXPECT_TRUE(absl::IsInternal(*broken.status));
}

TEST_F(RequestLifecycleTest, APreemptedRequestKeepsItsTokens) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a"));
  Place();
  Tokens(sink, {7});
  core::StepReport report;
  report.step = ++step_;
  const std::vector<core::RequestId> preempted = {sink.id()};
  report.preempted = preempted;
  ASSERT_TRUE(cluster_->Apply(core::Report{0, 0, report}).status.ok());
  requests_->OnPreempted(sink.id(), now_);
  EXPECT_EQ(cluster_->waiting(), 1);
  const std::vector<Assignment> again = Place();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first_index, 1u);
}

}  // namespace
}  // namespace bfio::router
