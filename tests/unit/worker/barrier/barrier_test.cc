// What every barrier guarantees, checked on each implementation, NCCL's over a fake NCCL in a program of its
// own. Ranks are threads.
#include "worker/barrier/barrier.h"

#include <barrier>
#include <optional>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/testing/barrier_ranks.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

// So long that a test which waits for it fails its assertions on elapsed time.
constexpr absl::Duration kForever = absl::Seconds(60);
// An upper bound for events that must happen well before the deadline, generous for slow machines.
constexpr absl::Duration kSoon = absl::Seconds(20);

class BarrierTest : public ::testing::TestWithParam<std::string> {
 protected:
  void MakeEndpoints(int ranks) { group_.emplace(GetParam(), ranks); }
  void RunRanks(uint64_t epoch, const std::function<void(int rank, std::unique_ptr<Barrier>)>& body) {
    group_->Run(epoch, body);
  }

  std::optional<testing::BarrierRanks> group_;

#ifdef BFIO_FAKE_NCCL
  void SetUp() override {
    testing::ResetFake();
  }
  void TearDown() override {
    group_.reset();
    testing::ExpectNothingLeftOrUndefined();
  }
};
const auto kKinds = ::testing::Values("nccl");
#else
};
const auto kKinds = ::testing::Values("star", "tree", "star_tls", "tree_tls");
#endif

INSTANTIATE_TEST_SUITE_P(All, BarrierTest, kKinds, [](const auto& info) { return info.param; });

TEST_P(BarrierTest, EveryRankGetsMaximaAndSums) {
  for (const int ranks : {1, 2, 3, 8, 16, 17, 40}) {
    SCOPED_TRACE(ranks);
    MakeEndpoints(ranks);
    RunRanks(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
      for (int64_t step = 1; step <= 20; ++step) {
        const uint32_t flags = rank == 1 && step == 20 ? kStopEngineFailed : 0;
        const auto view =
            barrier->AllReduce(step, {rank * 10 + step, 1000 - rank, rank % 2, flags}, kForever);
        ASSERT_TRUE(view.ok()) << view.status();
        const int64_t n = ranks;
        EXPECT_EQ(view->max_load_tokens, (n - 1) * 10 + step);
        EXPECT_EQ(view->sum_load_tokens, n * (n - 1) / 2 * 10 + n * step);
        EXPECT_EQ(view->max_local_ns, 1000);
        EXPECT_EQ(view->sum_local_ns, 1000 * n - n * (n - 1) / 2);
        EXPECT_EQ(view->sum_active, n / 2);
        EXPECT_EQ(view->stop_flags, step == 20 && ranks > 1 ? kStopEngineFailed : 0);
      }
    });
  }
}

TEST_P(BarrierTest, NoRankLeavesAStepBeforeTheLastArrives) {
  MakeEndpoints(5);
  std::atomic<int> arrived = 0;
  RunRanks(1, [&](int, std::unique_ptr<Barrier> barrier) {
    for (int step = 1; step <= 50; ++step) {
      ++arrived;
      ASSERT_TRUE(barrier->AllReduce(step, {}, kForever).ok());
      EXPECT_GE(arrived.load(), 5 * step);
    }
  });
}

TEST_P(BarrierTest, ARankThatLeavesMakesAllOthersFailAtOnce) {
  for (const int gone : {0, 1, 6, 11}) {
    SCOPED_TRACE(gone);
    MakeEndpoints(12);
    RunRanks(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
      ASSERT_TRUE(barrier->AllReduce(1, {}, kForever).ok());
      if (rank == gone) return;  // destroys its barrier
      const absl::Time start = absl::Now();
      const auto view = barrier->AllReduce(2, {}, kForever);
      EXPECT_TRUE(absl::IsUnavailable(view.status())) << view.status();
      EXPECT_LT(absl::Now() - start, kSoon);
      EXPECT_FALSE(barrier->AllReduce(2, {}, kForever).ok());
    });
  }
}

TEST_P(BarrierTest, AMissingRankExceedsTheDeadlineForAll) {
  MakeEndpoints(6);
  std::barrier over(6);
  RunRanks(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
    if (rank != 4) {
      // Only rank 2 has a short timeout; the others get the error from rank 2, over NCCL as that of a lost
      // peer.
      const absl::Time start = absl::Now();
      const auto view = barrier->AllReduce(1, {}, rank == 2 ? absl::Milliseconds(50) : kForever);
      const bool heard = GetParam() == "nccl" && rank != 2;
      EXPECT_EQ(view.status().code(),
                heard ? absl::StatusCode::kUnavailable : absl::StatusCode::kDeadlineExceeded)
          << rank << ": " << view.status();
      EXPECT_LT(absl::Now() - start, kSoon);
    }
    over.arrive_and_wait();  // rank 4 exists until here
  });
}

TEST_P(BarrierTest, AbortEndsTheWaitOfAllRanks) {
  MakeEndpoints(4);
  std::barrier over(4);
  RunRanks(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
    if (rank == 3) {
      // Abort may come before the wait or during it.
      std::thread other([&] { barrier->Abort(); });
      EXPECT_TRUE(absl::IsCancelled(barrier->AllReduce(1, {}, kForever).status()));
      other.join();
      EXPECT_TRUE(absl::IsCancelled(barrier->AllReduce(1, {}, kForever).status()));
    } else if (rank != 2) {
      const auto view = barrier->AllReduce(1, {}, kForever);
      EXPECT_TRUE(absl::IsUnavailable(view.status())) << view.status();
    }
    over.arrive_and_wait();
  });
}

TEST_P(BarrierTest, RanksThatDisagreeAboutTheStepFail) {
  MakeEndpoints(3);
  RunRanks(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
    const auto view = barrier->AllReduce(rank == 1 ? 8 : 7, {}, kForever);
    EXPECT_TRUE(absl::IsInternal(view.status())) << view.status();
  });
}

TEST_P(BarrierTest, AGroupReformsAfterAFailure) {
  MakeEndpoints(7);
  for (uint64_t epoch = 1; epoch < 5; ++epoch) {
    RunRanks(2 * epoch, [&](int rank, std::unique_ptr<Barrier> barrier) {
      if (rank == 2) return;
      EXPECT_FALSE(barrier->AllReduce(1, {}, kForever).ok());
    });
    group_->endpoints().erase(group_->endpoints().begin());  // rank 0 is lost; the others move up
    RunRanks(2 * epoch + 1, [&](int, std::unique_ptr<Barrier> barrier) {
      const auto view = barrier->AllReduce(1, {0, 0, 1}, kForever);
      ASSERT_TRUE(view.ok()) << view.status();
      EXPECT_EQ(view->sum_active, group_->size());
    });
  }
}

TEST_P(BarrierTest, AnIncompleteGroupDoesNotForm) {
  MakeEndpoints(3);
  group_->Offer();
  std::thread other([&] { EXPECT_FALSE(group_->Form(1, 1, absl::Milliseconds(100)).ok()); });
  const auto barrier = group_->Form(0, 1, absl::Milliseconds(100));
  EXPECT_TRUE(absl::IsDeadlineExceeded(barrier.status()) || absl::IsUnavailable(barrier.status()))
      << barrier.status();
  other.join();
}

TEST_P(BarrierTest, AStopEndsForming) {
  MakeEndpoints(2);
  for (const int rank : {0, 1}) {
    group_->Offer();
    std::stop_source stop;
    std::thread other([&] { stop.request_stop(); });
    EXPECT_TRUE(absl::IsCancelled(group_->Form(rank, 10 + rank, kForever, stop.get_token()).status()));
    other.join();
  }
}

TEST_P(BarrierTest, ARankOutsideTheGroupIsInvalid) {
  MakeEndpoints(1);
  EXPECT_TRUE(absl::IsInvalidArgument(group_->endpoints()[0]->Form({1, 2, 2, "x:1"}, kForever, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(group_->endpoints()[0]->Form({1, 0, 0, "x:1"}, kForever, {}).status()));
}

// Rank 4 is a child of rank 1, so rank 0 learns of its loss from rank 1.
TEST(StarBarrierTest, AFailureNamesTheRankThatLeft) {
  testing::BarrierRanks group("tree", 5);
  group.Run(1, [](int rank, std::unique_ptr<Barrier> barrier) {
    if (rank == 4) return;
    const auto view = barrier->AllReduce(1, {}, kForever);
    ASSERT_TRUE(absl::IsUnavailable(view.status())) << view.status();
    if (rank <= 1) {
      EXPECT_THAT(std::string(view.status().message()), HasSubstr("rank 4")) << "told rank " << rank;
    }
  });
}

TEST(GroupViewTest, SumsSaturateAtTheLimitsOfInt64) {
  GroupView view = ViewOf({.load_tokens = INT64_MAX - 1, .local_ns = INT64_MIN + 1});
  Fold(ViewOf({.load_tokens = 1, .local_ns = -1}), view);
  EXPECT_EQ(view.sum_load_tokens, INT64_MAX);
  EXPECT_EQ(view.sum_local_ns, INT64_MIN);
  Fold(ViewOf({.load_tokens = 1, .local_ns = -1}), view);
  EXPECT_EQ(view.sum_load_tokens, INT64_MAX);
  EXPECT_EQ(view.sum_local_ns, INT64_MIN);
}

// The stop may come while the group forms, when the result is returned, or afterwards.
TEST_P(BarrierTest, AStopMayComeAsFormingEnds) {
  MakeEndpoints(1);
  for (uint64_t epoch = 1; epoch <= 3000; ++epoch) {
    group_->Offer();
    std::stop_source stop;
    std::atomic<bool> forms = false;
    std::thread stopper([&] {
      while (!forms) {
      }
      for (uint64_t spin = 0; spin < epoch % 300 * 10; ++spin) forms.load();
      stop.request_stop();
    });
    forms = true;
    const auto barrier = group_->Form(0, epoch, kForever, stop.get_token());
    EXPECT_TRUE(barrier.ok() || absl::IsCancelled(barrier.status())) << barrier.status();
    stopper.join();
  }
}

}  // namespace
}  // namespace bfio::worker
