// A leader whose etcd is slow, fails, or does not answer: it keeps the lease as long as it is in force, and
// no longer.
#include "router/election/election.h"

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_etcd.h"
#include "tests/testing/process.h"

namespace bfio::router {
namespace {

using bfio::testing::FakeEtcd;
using bfio::testing::kSlowdown;
using Mood = FakeEtcd::Mood;

constexpr char kRenewal[] = "/v3/lease/keepalive", kLook[] = "/v3/kv/range";
constexpr absl::Duration kTtl = absl::Seconds(4 * kSlowdown), kPatience = absl::Seconds(60 * kSlowdown);

class LeaderTest : public ::testing::Test {
 protected:
  // Creates an election over these etcd endpoints and waits until it leads.
  void Lead(std::vector<std::string> endpoints) {
    ElectionOptions options;
    options.etcd.endpoints = std::move(endpoints);
    options.name = "router";
    options.ttl = kTtl;
    options.stuck_after = stuck_after_;
    options.end_process = end_process_;
    auto election = Election::Create(std::move(options));
    ASSERT_TRUE(election.ok()) << election.status();
    election_ = *std::move(election);
    ASSERT_TRUE(election_->Campaign(
        [](absl::Duration time) {
          absl::SleepFor(time);
          return false;
        },
        [](const std::string&) {}));
  }
  void Lead() { Lead({etcd_.endpoint()}); }
  bool Holds() const { return election_->lease()->Holds(); }
  absl::Time End() const { return Lease::Now() + election_->lease()->Left(); }
  // Waits for the condition. Checks the lease meanwhile, as the decision thread would.
  bool Until(const std::function<bool()>& condition) const {
    const absl::Time give_up = MonotonicNow() + kPatience;
    while (!condition() && MonotonicNow() < give_up) {
      election_->lease()->Check();
      absl::SleepFor(absl::Milliseconds(5));
    }
    return condition();
  }
  // Waits until `count` more renewals have been answered, or the lease is lost.
  void AwaitRenewals(int count) {
    const int before = etcd_.answered(kRenewal);
    EXPECT_TRUE(Until([&] { return !Holds() || etcd_.answered(kRenewal) >= before + count; }));
  }

  FakeEtcd etcd_;
  absl::Duration stuck_after_ = absl::Seconds(30);
  std::function<void()> end_process_;
  std::unique_ptr<Election> election_;
};

TEST_F(LeaderTest, ARenewalIsOneCall) {
  ASSERT_NO_FATAL_FAILURE(Lead());
  // Renewal must not depend on other calls, which are never answered here.
  etcd_.Set(kLook, Mood::kHangs);
  AwaitRenewals(12);
  EXPECT_TRUE(Holds());
  etcd_.Set(kLook, Mood::kErrs);
  AwaitRenewals(4);
  EXPECT_TRUE(Holds());
}

TEST_F(LeaderTest, ReplyTimesOfAQuarterOfTheTtlKeepTheLease) {
  ASSERT_NO_FATAL_FAILURE(Lead());
  etcd_.Set(kRenewal, Mood::kWell, kTtl / 4);
  AwaitRenewals(12);
  EXPECT_TRUE(Holds());
}

TEST_F(LeaderTest, AnElectionMayBeSlowToo) {
  for (const char* const path : {"/v3/lease/grant", "/v3/kv/txn", kRenewal})
    etcd_.Set(path, Mood::kWell, kTtl / 6);
  ASSERT_NO_FATAL_FAILURE(Lead());
  AwaitRenewals(4);
  EXPECT_TRUE(Holds());
}

TEST_F(LeaderTest, TransientErrorsKeepTheLease) {
  ASSERT_NO_FATAL_FAILURE(Lead());
  AwaitRenewals(1);
  etcd_.Set(kRenewal, Mood::kErrs);
  const absl::Time end = End();
  const int before = etcd_.calls(kRenewal);
  ASSERT_TRUE(Until([&] { return etcd_.calls(kRenewal) >= before + 2; }));
  EXPECT_TRUE(Holds());
  etcd_.Set(kRenewal, Mood::kWell);
  EXPECT_TRUE(Until([&] { return End() > end + kTtl || !Holds(); }));
  EXPECT_TRUE(Holds());
}

// The lease ends by the leader's own clock, counted from before the last renewal was requested, and not
// earlier.
TEST_F(LeaderTest, WithoutAnswersItLeadsForTheTtlAndNoLonger) {
  for (const Mood mood : {Mood::kErrs, Mood::kHangs}) {
    etcd_.Set(kRenewal, Mood::kWell);
    etcd_.Set(kLook, Mood::kWell);
    ASSERT_NO_FATAL_FAILURE(Lead());
    AwaitRenewals(1);
    etcd_.Set(kRenewal, mood);
    etcd_.Set(kLook, mood);
    const absl::Time asked = Lease::Now();
    absl::Time end = End();
    EXPECT_TRUE(Until([&] {
      if (Holds()) end = End();
      return !Holds();
    }));
    EXPECT_GE(Lease::Now(), end);
    EXPECT_LE(end, asked + kTtl) << "no answer has made it longer";
    // A lost lease is not regained when etcd recovers.
    etcd_.Set(kRenewal, Mood::kWell);
    etcd_.Set(kLook, Mood::kWell);
    election_.reset();
  }
}

TEST_F(LeaderTest, AHangingEndpointIsReplacedByAnother) {
  FakeEtcd other;
  // The second endpoint does not know the key.
  etcd_.Set(kLook, Mood::kErrs);
  ASSERT_NO_FATAL_FAILURE(Lead({other.endpoint(), etcd_.endpoint()}));
  other.Set(kRenewal, Mood::kHangs);
  other.Set(kLook, Mood::kHangs);
  AwaitRenewals(4);
  EXPECT_TRUE(Holds());
  other.Set(kRenewal, Mood::kWell);
  other.Set(kLook, Mood::kWell);
}

TEST_F(LeaderTest, ALeaseEndedByEtcdIsLostAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Lead());
  AwaitRenewals(1);
  const absl::Time end = End();
  etcd_.EndLease();
  EXPECT_TRUE(Until([&] { return !Holds(); }));
  EXPECT_LT(End(), end) << "not at its end";
}

TEST_F(LeaderTest, AStuckDecisionThreadsLeaseIsReleasedAndTheProcessEnds) {
  absl::Notification ended;
  int released = 0;
  stuck_after_ = absl::ZeroDuration();
  end_process_ = [&] {
    released = etcd_.answered("/v3/lease/revoke");
    ended.Notify();
  };
  ASSERT_NO_FATAL_FAILURE(Lead());
  // Nothing looks at the lease, which is renewed meanwhile.
  ASSERT_TRUE(ended.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(released, 1) << "another router need not wait for its end";
  EXPECT_FALSE(Holds());
}

TEST_F(LeaderTest, AStuckRouterEndsItsProcess) {
  // The renewing thread is not copied by a fork.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  stuck_after_ = absl::ZeroDuration();
  const auto lead_without_deciding = [&] {
    Lead();
    absl::SleepFor(kPatience);
  };
  EXPECT_EXIT(lead_without_deciding(), ::testing::ExitedWithCode(EXIT_FAILURE), "");
}

}  // namespace
}  // namespace bfio::router
