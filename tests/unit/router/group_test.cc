// Membership without a barrier: who stands still or fails keeps the others from serving for a moment only.
// Streams are real sessions that no server has taken up.
#include "router/group/group.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;

class Served final : public Group::Listener {
 public:
  void OnEpochOpen(uint64_t, const std::vector<Member*>& ranks) override {
    names.clear();
    for (const Member* rank : ranks) names.push_back(rank->hello.worker_id());
  }
  void OnEpochClosed() override { names.clear(); }

  // Who is in the epoch that is open.
  std::vector<std::string> names;
};

// Lets go of a session as gRPC does at a call's end.
struct Session {
  std::shared_ptr<WorkerSession> session = WorkerSession::Create(
      "test",
      {[](std::shared_ptr<WorkerSession>, v1::WorkerMessage) {}, [](std::shared_ptr<WorkerSession>) {}});
  ~Session() { session->OnDone(); }
};

v1::Hello HelloOf(const std::string& name) {
  v1::Hello hello;
  hello.set_worker_id(name);
  hello.set_slots(2);
  hello.set_kv_tokens(1000);
  hello.set_max_sequence_tokens(1000);
  hello.set_engine("test");
  hello.set_barrier("star");
  hello.set_communicator_offer("127.0.0.1:1");
  hello.set_steps_alone(true);
  return hello;
}

class UncoupledGroup : public ::testing::Test {
 protected:
  UncoupledGroup() {
    options_.workers = 2;
    options_.coupled = false;
    group_ = std::make_unique<Group>(options_, /*instance=*/1, &served_);
  }

  void Join(const std::string& name, bool steps_alone = true) {
    sessions_.push_back(std::make_unique<Session>());
    v1::Hello hello = HelloOf(name);
    hello.set_steps_alone(steps_alone);
    group_->OnHello(sessions_.back()->session, hello, now_);
  }
  void Answer(const std::string& name, const std::string& error = "") {
    v1::EpochReady ready;
    ready.set_epoch(group_->epoch());
    ready.set_error(error);
    group_->OnEpochReady(*group_->FindById(name), ready, now_);
  }
  // Time goes on to the next deadline.
  absl::Duration Wait() {
    const absl::Time before = now_;
    now_ = std::max(now_, group_->next_deadline());
    group_->OnTimer(now_);
    return now_ - before;
  }
  // a and b serve, with steps of this length.
  void Serve(absl::Duration step) {
    Join("a");
    Join("b");
    Wait();
    Answer("a");
    Answer("b");
    ASSERT_THAT(served_.names, ElementsAre("a", "b"));
    for (const char* name : {"a", "b"}) group_->OnPlanned(*group_->FindById(name), now_);
    now_ += step;
    for (const char* name : {"a", "b"}) group_->OnReport(*group_->FindById(name), 1, false, now_);
  }

  RouterOptions options_;
  Served served_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::vector<std::unique_ptr<Session>> sessions_;
  std::unique_ptr<Group> group_;
};

TEST_F(UncoupledGroup, WhoStandsStillHoldsAChangeOfMembershipUpForAMoment) {
  Serve(absl::Milliseconds(100));
  Join("c");
  Wait();
  EXPECT_FALSE(group_->serving());
  Answer("a");
  Answer("c");
  // b stands still.
  EXPECT_LE(Wait(), absl::Seconds(2));
  EXPECT_EQ(group_->FindById("b"), nullptr);
  Wait();
  Answer("a");
  Answer("c");
  EXPECT_THAT(served_.names, ElementsAre("a", "c"));
  // It is not refused when it comes back.
  Join("b");
  EXPECT_NE(group_->FindById("b"), nullptr);
}

TEST_F(UncoupledGroup, LongStepsAreWaitedFor) {
  Serve(absl::Seconds(2));
  Join("c");
  Wait();
  Answer("a");
  Answer("c");
  now_ += absl::Seconds(7);
  group_->OnTimer(now_);
  ASSERT_NE(group_->FindById("b"), nullptr);
  Answer("b");
  EXPECT_THAT(served_.names, ElementsAre("a", "b", "c"));
}

TEST_F(UncoupledGroup, AFirstStepMayTakeAsLongAsFormingMay) {
  Join("a");
  Join("b");
  Wait();
  Answer("a");
  Answer("b");
  group_->OnPlanned(*group_->FindById("b"), now_);
  Join("c");
  Wait();
  Answer("a");
  Answer("c");
  EXPECT_GE(Wait(), options_.form_timeout);
}

TEST_F(UncoupledGroup, WhoCannotFormIsLeftOutAtOnce) {
  Serve(absl::Milliseconds(100));
  Join("c");
  Wait();
  Answer("a");
  Answer("b");
  Answer("c", "no memory");
  EXPECT_EQ(group_->FindById("c"), nullptr);
  Wait();
  Answer("a");
  Answer("b");
  EXPECT_THAT(served_.names, ElementsAre("a", "b"));
  Join("c");
  EXPECT_EQ(group_->FindById("c"), nullptr) << "refused for a while";
}

// It would wait for plans of steps that nobody makes.
TEST_F(UncoupledGroup, AWorkerThatDoesNotKnowOfStepsAloneIsRefused) {
  Join("a", /*steps_alone=*/false);
  EXPECT_EQ(group_->FindById("a"), nullptr);
  Join("a");
  EXPECT_NE(group_->FindById("a"), nullptr);
}

TEST(CoupledGroup, AsksForNoStepsAlone) {
  Served served;
  const RouterOptions options;
  Group group(options, /*instance=*/1, &served);
  Session session;
  v1::Hello hello = HelloOf("a");
  hello.set_steps_alone(false);
  group.OnHello(session.session, hello, absl::UnixEpoch());
  EXPECT_NE(group.FindById("a"), nullptr);
}

// What the ranks of a barrier and others have in common.
class RanksOfABarrier : public ::testing::Test {
 protected:
  RanksOfABarrier() { options_.workers = 3; }

  Member& Join(const std::string& name, uint64_t router_instance = 0) {
    sessions_.push_back(std::make_unique<Session>());
    v1::Hello hello = HelloOf(name);
    hello.set_router_instance(router_instance);
    group_.OnHello(sessions_.back()->session, hello, now_);
    return *group_.Find(sessions_.back()->session.get());
  }
  void Answer(const std::string& name) {
    v1::EpochReady ready;
    ready.set_epoch(group_.epoch());
    group_.OnEpochReady(*group_.FindById(name), ready, now_);
  }
  void Wait() {
    ASSERT_NE(group_.next_deadline(), absl::InfiniteFuture()) << "nothing would ever happen";
    now_ = std::max(now_, group_.next_deadline());
    group_.OnTimer(now_);
  }

  static constexpr uint64_t kInstance = 1, kEarlier = 9;
  RouterOptions options_;
  Served served_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::vector<std::unique_ptr<Session>> sessions_;
  Group group_{options_, kInstance, &served_};
};

TEST_F(RanksOfABarrier, WhoComesWhileTheFirstEpochFormsIsTakenIn) {
  EXPECT_FALSE(group_.ExpectsAnnouncements());
  Join("a", kEarlier);
  EXPECT_TRUE(group_.ExpectsAnnouncements());
  Wait();  // not for the other two
  Join("b");
  Answer("a");
  EXPECT_THAT(served_.names, ElementsAre("a"));
  EXPECT_FALSE(group_.ExpectsAnnouncements());
  Wait();
  Answer("a");
  Answer("b");
  EXPECT_THAT(served_.names, ElementsAre("a", "b"));
}

TEST_F(RanksOfABarrier, WhatIsAnnouncedBeyondTheBudgetIsNotTaken) {
  Member& a = Join("a", kEarlier);
  Wait();
  v1::Announcement announcement;
  announcement.set_epoch(group_.epoch());
  for (uint64_t handle = 1; handle <= 3; ++handle) {
    v1::Assignment& assignment = *announcement.add_requests()->mutable_assignment();
    assignment.set_handle(handle);
    assignment.set_origin(std::string(1000, 'x'));
  }
  options_.replay_budget_bytes = 2500;
  group_.OnAnnouncement(a, announcement);
  group_.OnAnnouncement(a, announcement);
  EXPECT_EQ(a.announced.size(), 2u);
  Answer("a");
  EXPECT_THAT(served_.names, ElementsAre("a")) << "and it is not sent away, to come again with the same";
}

TEST_F(RanksOfABarrier, ADrainedWorkerWhoseStreamBreaksIsStillDrained) {
  options_.workers = 1;
  Join("a").draining = true;
  Wait();
  Answer("a");
  group_.OnGone(sessions_.back()->session.get(), now_);
  EXPECT_TRUE(Join("a", kInstance).draining);
  group_.OnGone(sessions_.back()->session.get(), now_);
  EXPECT_FALSE(Join("a").draining) << "another process of that name";
  group_.OnGone(sessions_.back()->session.get(), now_);
  EXPECT_FALSE(Join("a", kInstance).draining);
  group_.OnGone(sessions_.back()->session.get(), now_);
  // Drained before this router's first plan: it still names the one before.
  Join("a", kEarlier).draining = true;
  group_.OnGone(sessions_.back()->session.get(), now_);
  EXPECT_TRUE(Join("a", kEarlier).draining);
}

}  // namespace
}  // namespace bfio::router
