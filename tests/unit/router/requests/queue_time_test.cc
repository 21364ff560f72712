// The bound on the time that a request waits for its first placement.
#include <memory>

#include "router/requests/not_tried.h"
#include "tests/unit/router/requests/request_lifecycle_fixture.h"

namespace bfio::router {
namespace {

using absl::StatusCode;
using ::testing::SizeIs;

class QueueTimeTest : public RequestLifecycleTest {
 protected:
  void SetUp() override { Start({.max_queue_time = absl::Seconds(10)}); }
  // Workers may refuse requests, so the number of refusals does not show for how long they will go on.
  void StartOnDemand() {
    Start({.kv_on_demand = true, .max_queue_time = absl::Seconds(10)});
    OpenEpoch();
  }
};

TEST_F(QueueTimeTest, ARequestThatIsNotPlacedInTimeEnds) {
  OpenEpoch();
  Client& first = Arrive(Request("a"));
  PassTime(absl::Seconds(6));
  Client& second = Arrive(Request("b"));
  EXPECT_EQ(requests_->next_deadline(), now_ + absl::Seconds(4));
  PassTime(absl::Seconds(4));
  EXPECT_THAT(first, EndsForNow(StatusCode::kResourceExhausted, "within 10s (--max_queue_time)"))
      << "a rank serves, and is full";
  EXPECT_TRUE(second.open());
  EXPECT_EQ(cluster_->waiting(), 1);
  EXPECT_EQ(requests_->live(), 1);
  EXPECT_EQ(overload_->committed_kv(), 13) << "of the second";
  EXPECT_EQ(totals().queue_timeouts, 1);
  EXPECT_EQ(totals().failed, 1);
  EXPECT_EQ(totals().cancelled, 0);
  // Its client's deadline may be earlier.
  PassTime(absl::Seconds(5));
  Cancel(second, /*timed_out=*/true);
  EXPECT_FALSE(second.open());
  EXPECT_GT(requests_->next_deadline(), now_ + absl::Seconds(1)) << "an ended request waits for nothing";
  EXPECT_EQ(totals().cancelled, 1);
  EXPECT_EQ(totals().queue_timeouts, 1);
}

TEST_F(QueueTimeTest, RefusedRequestsEndAfterTheSameTime) {
  StartOnDemand();
  Client &client = Arrive(Request("a")), &taken = Arrive(Request("b"));
  EXPECT_THAT(Place(), SizeIs(2));
  PassTime(absl::Seconds(60));
  EXPECT_TRUE(client.open()) << "it is placed";
  for (int i = 0; i < 3'000; ++i) Reject(client);
  Reject(taken);
  PassTime(absl::Seconds(6));
  EXPECT_TRUE(client.open());
  // A message without a token does not show that the request is taken.
  struct Message final : Passed {
    Message() : Passed(1) {}
  };
  const PassedPtr message = std::make_shared<Message>();
  requests_->OnTokens(client.id(), {}, {}, now_, absl::MakeConstSpan(&message, 1));
  Reject(client);
  Tokens(taken, {1});
  Reject(taken);
  PassTime(absl::Seconds(4));
  EXPECT_TRUE(absl::IsResourceExhausted(*client.status)) << "10 s after the first refusal";
  EXPECT_TRUE(taken.open()) << "it had a token in between";
}

// The rank must first show that it works, and returns further requests untried.
TEST_F(QueueTimeTest, AnUntriedRequestIsNotCountedAsRefused) {
  StartOnDemand();
  Client &untried = Arrive(Request("a")), &refused = Arrive(Request("b"));
  EXPECT_THAT(Place(), SizeIs(2));
  Reject(refused);
  Reject(untried, NotTried(absl::ResourceExhaustedError("full")));
  EXPECT_EQ(totals().refused_by_workers, 1);
  PassTime(absl::Seconds(10));
  EXPECT_FALSE(refused.open());
  EXPECT_TRUE(untried.open());
}

TEST_F(QueueTimeTest, ALostWorkerEndsTheTimeOfRefusals) {
  StartOnDemand();
  Client& client = Arrive(Request("a"));
  EXPECT_THAT(Place(), SizeIs(1));
  Reject(client);
  PassTime(absl::Seconds(6));
  requests_->OnPlaced(client.id(), 0, 0, now_);
  requests_->OnLost(client.id(), now_);
  Reject(client);
  PassTime(absl::Seconds(6));
  EXPECT_TRUE(client.open());
  PassTime(absl::Seconds(4));
  EXPECT_FALSE(client.open());
}

TEST_F(QueueTimeTest, WithoutARankThatServesItIsUnavailable) {
  Client& early = Arrive(Request("a"));
  PassTime(absl::Seconds(10));
  EXPECT_TRUE(absl::IsUnavailable(*early.status));
  OpenEpoch();
  // The group has lost its last worker and is forming again.
  requests_->SetGroups({.ranks = {{0, 0}}});
  Client& late = Arrive(Request("b"));
  PassTime(absl::Seconds(10));
  EXPECT_THAT(late, EndsForNow(StatusCode::kUnavailable, "no rank is serving"));
  EXPECT_EQ(totals().queue_timeouts, 2);
}

TEST_F(QueueTimeTest, ARequestThatWasPlacedOnceDoesNotEndByIt) {
  OpenEpoch();
  Client &begun = Arrive(Request("a")), &without_token = Arrive(Request("b"));
  PassTime(absl::Seconds(9));
  EXPECT_THAT(Place(), SizeIs(2));
  Tokens(begun, {1});
  EXPECT_EQ(requests_->next_deadline(), absl::InfiniteFuture());
  PassTime(absl::Hours(1));
  Die();
  EXPECT_EQ(cluster_->waiting(), 2) << "both are to be replayed";
  PassTime(absl::Hours(1));
  EXPECT_TRUE(begun.open() && without_token.open());
  EXPECT_THAT(Place(), SizeIs(2));
  EXPECT_EQ(totals().queue_timeouts, 0);
}

TEST_F(QueueTimeTest, ARequestThatAnEarlierRouterHadBegunDoesNotEndByIt) {
  Client &proven = Arrive(Interrupted("a", 0, true)), &begun = Arrive(Interrupted("b", 2, false));
  Client& unknown = Arrive(Interrupted("c", 0, false));
  // During this time the router waits for workers that may hold them.
  PassTime(absl::Seconds(5));
  EXPECT_EQ(cluster_->waiting(), 3);
  PassTime(absl::Seconds(10));
  EXPECT_TRUE(proven.open() && begun.open());
  EXPECT_TRUE(absl::IsUnavailable(*unknown.status)) << "nobody has accepted it before";
}

}  // namespace
}  // namespace bfio::router
