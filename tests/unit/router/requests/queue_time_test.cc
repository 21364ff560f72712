// The bound on the time that a request waits for its first placement.
#include <gmock/gmock.h>

#include "common/base/retry_delay.h"
#include "router/requests/not_tried.h"
#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using ::testing::HasSubstr;

class QueueTimeTest : public RequestLifecycleTest {
 protected:
  void SetUp() override { Start({.max_queue_time = absl::Seconds(10)}); }

  void PassTime(absl::Duration time) {
    now_ += time;
    requests_->OnTimer(now_);
  }
};

TEST_F(QueueTimeTest, ARequestThatIsNotPlacedInTimeEnds) {
  OpenEpoch();
  RecordingSink& first = Arrive(Request("a"));
  PassTime(absl::Seconds(6));
  RecordingSink& second = Arrive(Request("b"));
  EXPECT_EQ(requests_->next_deadline(), now_ + absl::Seconds(4));
  PassTime(absl::Seconds(4));
  EXPECT_TRUE(absl::IsResourceExhausted(*first.status)) << "a rank serves, and is full";
  EXPECT_THAT(first.status->message(), HasSubstr("within 10s (--max_queue_time)"));
  EXPECT_TRUE(GetRetryDelay(*first.status).has_value());
  EXPECT_TRUE(second.open());
  EXPECT_EQ(cluster_->waiting(), 1);
  EXPECT_EQ(requests_->live(), 1);
  EXPECT_EQ(overload_->committed_kv(), 13) << "of the second";
  EXPECT_EQ(requests_->totals().queue_timeouts, 1);
  EXPECT_EQ(requests_->totals().failed, 1);
  EXPECT_EQ(requests_->totals().cancelled, 0);
}

// When workers may refuse requests, the number of refusals does not show for how long they will go on.
TEST_F(QueueTimeTest, RefusedRequestsEndAfterTheSameTime) {
  Start({.kv_on_demand = true, .max_queue_time = absl::Seconds(10)});
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  RecordingSink& taken = Arrive(Request("b"));
  EXPECT_EQ(Place().size(), 2u);
  PassTime(absl::Seconds(60));
  EXPECT_TRUE(sink.open()) << "it is placed";
  const absl::Status full = absl::ResourceExhaustedError("full");
  for (int i = 0; i < 3'000; ++i) requests_->OnRejected(sink.id(), full, now_);
  requests_->OnRejected(taken.id(), full, now_);
  PassTime(absl::Seconds(6));
  EXPECT_TRUE(sink.open());
  requests_->OnRejected(sink.id(), full, now_);
  Tokens(taken, {1});
  requests_->OnRejected(taken.id(), full, now_);
  PassTime(absl::Seconds(4));
  EXPECT_TRUE(absl::IsResourceExhausted(*sink.status)) << "10 s after the first refusal";
  EXPECT_TRUE(taken.open()) << "it had a token in between";
}

TEST_F(QueueTimeTest, OnlyTokensShowThatARequestIsTaken) {
  Start({.kv_on_demand = true, .max_queue_time = absl::Seconds(10)});
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  EXPECT_EQ(Place().size(), 1u);
  const absl::Status full = absl::ResourceExhaustedError("full");
  requests_->OnRejected(sink.id(), full, now_);
  PassTime(absl::Seconds(6));
  struct Message final : Passed {
    Message() : Passed(1) {}
  };
  const PassedPtr message = std::make_shared<Message>();
  requests_->OnTokens(sink.id(), {}, {}, now_, absl::MakeConstSpan(&message, 1));
  requests_->OnRejected(sink.id(), full, now_);
  PassTime(absl::Seconds(4));
  EXPECT_FALSE(sink.open()) << "10 s after the first refusal";
}

// The rank must first show that it works, and returns further requests untried.
TEST_F(QueueTimeTest, AnUntriedRequestIsNotCountedAsRefused) {
  Start({.kv_on_demand = true, .max_queue_time = absl::Seconds(10)});
  OpenEpoch();
  RecordingSink& untried = Arrive(Request("a"));
  RecordingSink& refused = Arrive(Request("b"));
  EXPECT_EQ(Place().size(), 2u);
  const absl::Status full = absl::ResourceExhaustedError("full");
  requests_->OnRejected(refused.id(), full, now_);
  requests_->OnRejected(untried.id(), NotTried(full), now_);
  EXPECT_EQ(requests_->totals().refused_by_workers, 1);
  PassTime(absl::Seconds(10));
  EXPECT_FALSE(refused.open());
  EXPECT_TRUE(untried.open());
}

TEST_F(QueueTimeTest, ALostWorkerEndsTheTimeOfRefusals) {
  Start({.kv_on_demand = true, .max_queue_time = absl::Seconds(10)});
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  EXPECT_EQ(Place().size(), 1u);
  const absl::Status full = absl::ResourceExhaustedError("full");
  requests_->OnRejected(sink.id(), full, now_);
  PassTime(absl::Seconds(6));
  requests_->OnPlaced(sink.id(), 0, 0, now_);
  requests_->OnLost(sink.id(), now_);
  requests_->OnRejected(sink.id(), full, now_);
  PassTime(absl::Seconds(6));
  EXPECT_TRUE(sink.open());
  PassTime(absl::Seconds(4));
  EXPECT_FALSE(sink.open());
}

TEST_F(QueueTimeTest, EachOutputOfACallWaitsForItself) {
  OpenEpoch();
  const std::vector<RecordingSink*> placed = ArriveAll(Request("a"), 2);
  EXPECT_EQ(Place().size(), 2u);
  PassTime(absl::Seconds(1));
  const std::vector<RecordingSink*> waiting = ArriveAll(Request("b"), 2);
  PassTime(absl::Seconds(10));
  for (const RecordingSink* sink : placed) EXPECT_TRUE(sink->open());
  for (const RecordingSink* sink : waiting) EXPECT_TRUE(absl::IsResourceExhausted(*sink->status));
  EXPECT_EQ(requests_->totals().queue_timeouts, 2);
}

TEST_F(QueueTimeTest, WithoutARankThatServesItIsUnavailable) {
  RecordingSink& early = Arrive(Request("a"));
  PassTime(absl::Seconds(10));
  EXPECT_TRUE(absl::IsUnavailable(*early.status));
  OpenEpoch();
  // The group has lost its last worker and is forming again.
  requests_->SetGroups({.ranks = {{0, 0}}});
  RecordingSink& late = Arrive(Request("b"));
  PassTime(absl::Seconds(10));
  EXPECT_TRUE(absl::IsUnavailable(*late.status));
  EXPECT_THAT(late.status->message(), HasSubstr("no rank is serving"));
  EXPECT_TRUE(GetRetryDelay(*late.status).has_value());
  EXPECT_EQ(requests_->totals().queue_timeouts, 2);
}

TEST_F(QueueTimeTest, ARequestThatWasPlacedOnceDoesNotEndByIt) {
  OpenEpoch();
  RecordingSink& begun = Arrive(Request("a"));
  RecordingSink& without_token = Arrive(Request("b"));
  PassTime(absl::Seconds(9));
  EXPECT_EQ(Place().size(), 2u);
  Tokens(begun, {1});
  EXPECT_EQ(requests_->next_deadline(), absl::InfiniteFuture());
  PassTime(absl::Hours(1));
  Die();
  EXPECT_EQ(cluster_->waiting(), 2) << "both are to be replayed";
  PassTime(absl::Hours(1));
  EXPECT_TRUE(begun.open());
  EXPECT_TRUE(without_token.open());
  EXPECT_EQ(Place().size(), 2u);
  EXPECT_EQ(requests_->totals().queue_timeouts, 0);
}

TEST_F(QueueTimeTest, ARequestThatAnEarlierRouterHadBegunDoesNotEndByIt) {
  RecordingSink& proven = Arrive(Interrupted("a", 0, true));
  RecordingSink& begun = Arrive(Interrupted("b", 2, false));
  RecordingSink& unknown = Arrive(Interrupted("c", 0, false));
  // During this time the router waits for workers that may hold them.
  PassTime(absl::Seconds(5));
  EXPECT_EQ(cluster_->waiting(), 3);
  PassTime(absl::Seconds(10));
  EXPECT_TRUE(proven.open());
  EXPECT_TRUE(begun.open());
  EXPECT_TRUE(absl::IsUnavailable(*unknown.status)) << "nobody has accepted it before";
}

TEST_F(QueueTimeTest, TheEarlierOfClientsDeadlineAndQueueTimeEndsARequest) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  PassTime(absl::Seconds(9));
  requests_->OnCancel(sink.id(), /*timed_out=*/true, now_);
  EXPECT_FALSE(sink.open());
  EXPECT_GT(requests_->next_deadline(), now_ + absl::Seconds(1)) << "an ended request waits for nothing";
  EXPECT_EQ(requests_->totals().cancelled, 1);
  EXPECT_EQ(requests_->totals().queue_timeouts, 0);
}

TEST_F(QueueTimeTest, WithoutABoundARequestWaits) {
  Start({.max_queue_time = absl::ZeroDuration()});
  OpenEpoch();
  RecordingSink& sink = Arrive(Request("a"));
  EXPECT_EQ(requests_->next_deadline(), absl::InfiniteFuture());
  PassTime(absl::Hours(100));
  EXPECT_TRUE(sink.open());
}

}  // namespace
}  // namespace bfio::router
