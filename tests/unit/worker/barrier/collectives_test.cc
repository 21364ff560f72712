// All-gather and reduce-scatter on each implementation that runs without a GPU. Ranks are threads.
#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/rng.h"
#include "gtest/gtest.h"
#include "tests/testing/barrier_ranks.h"
#include "worker/barrier/step_peers.h"
#include "worker/barrier/summation_tree.h"

namespace bfio::worker {
namespace {

using testing::BarrierRanks;

// An upper bound for events that must happen well before the deadline, generous for slow machines.
constexpr absl::Duration kPromptly = absl::Seconds(20);

// Numbers of very different magnitudes, so that their sum depends on the order of summation.
std::vector<float> Numbers(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> numbers(count);
  for (float& x : numbers) {
    x = static_cast<float>((rng.Uniform() - 0.5) * static_cast<double>(1 << rng.Below(24)));
  }
  return numbers;
}

// Term `term` of the sum for rank `to`.
std::vector<float> Term(int term, int to, size_t n) {
  return Numbers(n, static_cast<uint64_t>(term * 1000 + to));
}

std::vector<float> Add(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sum;
  for (size_t i = 0; i < a.size(); ++i) sum.push_back(a[i] + b[i]);
  return sum;
}

// Reference implementation of the summation tree: the sum over the terms begin .. end - 1 for rank `to`.
std::vector<float> TreeOf(int begin, int end, int to, size_t n) {
  if (end - begin == 1) return Term(begin, to, n);
  const int middle = (begin + end) / 2;
  return Add(TreeOf(begin, middle, to, n), TreeOf(middle, end, to, n));
}

// What a rank contributes to a reduce-scatter: its nodes' sums for every rank.
std::vector<float> Brought(int rank, int world, size_t n) {
  std::vector<float> mine;
  for (const TermRange& node : NodesOf(TermsOf(rank, world))) {
    for (int to = 0; to < world; ++to) {
      const std::vector<float> sum = TreeOf(node.begin, node.end, to, n);
      mine.insert(mine.end(), sum.begin(), sum.end());
    }
  }
  return mine;
}

bool BitEqual(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return a.size() == b.size();
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(SummationTreeTest, RanksHoldAllTermsInOrderInWholeSubtrees) {
  for (int world = 1; world <= 20; ++world) {
    int next = 0;
    for (int rank = 0; rank < world; ++rank) {
      const TermRange terms = TermsOf(rank, world);
      EXPECT_EQ(terms.begin, next);
      EXPECT_LE(terms.size(), kSumTerms / world + 1);
      for (const TermRange& node : NodesOf(terms)) {
        EXPECT_EQ(node.begin, next);
        EXPECT_GE(node.size(), 1);
        EXPECT_EQ(node.size() & (node.size() - 1), 0);
        EXPECT_EQ(node.begin % node.size(), 0);
        next = node.end;
      }
      EXPECT_EQ(next, terms.end);
      if (kSumTerms % world == 0) {
        EXPECT_EQ(NodeCount(rank, world), 1);
      }
    }
    EXPECT_EQ(next, kSumTerms);
  }
}

TEST(SummationTreeTest, TheTestNumbersDependOnTheOrderOfSummation) {
  std::vector<float> in_line = Term(0, 0, 100);
  for (int term = 1; term < kSumTerms; ++term) in_line = Add(in_line, Term(term, 0, 100));
  EXPECT_FALSE(BitEqual(in_line, TreeOf(0, kSumTerms, 0, 100)));
}

class CollectivesTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, CollectivesTest, ::testing::Values("star", "tree", "tree_tls", "local"),
                         [](const auto& info) { return info.param; });

TEST_P(CollectivesTest, AllRanksGetAllNumbersInTheOrderOfRanks) {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 14}) {
    SCOPED_TRACE(ranks);
    BarrierRanks(GetParam(), ranks).Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
      int64_t step = 0;
      // The last size is far larger than a socket's buffers.
      for (const size_t n : {1, 7, 0, 1000, 300'001}) {
        std::vector<float> wanted;
        for (int i = 0; i < ranks; ++i) {
          const auto one = Numbers(n, static_cast<uint64_t>(i) * 7 + n);
          wanted.insert(wanted.end(), one.begin(), one.end());
        }
        std::vector<float> all(wanted.size());
        const auto mine = Numbers(n, static_cast<uint64_t>(rank) * 7 + n);
        const absl::Status status =
            barrier->AllGather(++step, mine, absl::MakeSpan(all), BarrierRanks::kForever);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(BitEqual(all, wanted)) << n;
      }
    });
  }
}

TEST_P(CollectivesTest, SumsAreBitEqualToTheTreeOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 11}) {
    SCOPED_TRACE(ranks);
    BarrierRanks(GetParam(), ranks).Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
      int64_t step = 0;
      for (const size_t n : {1, 5, 0, 257, 4099}) {
        const auto mine = Brought(rank, ranks, n);
        std::vector<float> sum(n);
        const absl::Status status =
            barrier->ReduceScatter(++step, mine, absl::MakeSpan(sum), BarrierRanks::kForever);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(BitEqual(sum, TreeOf(0, kSumTerms, rank, n))) << n;
      }
    });
  }
}

TEST_P(CollectivesTest, CallsOfAllKindsAlternateWithinAStep) {
  constexpr int kRanks = 5;
  BarrierRanks(GetParam(), kRanks).Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
    for (int64_t step = 1; step <= 30; ++step) {
      const auto view = barrier->AllReduce(step, {.rows = rank + step}, BarrierRanks::kForever);
      ASSERT_TRUE(view.ok()) << view.status();
      EXPECT_EQ(view->max_rows, kRanks - 1 + step);
      const auto n = static_cast<size_t>(view->max_rows);
      for (int layer = 0; layer < 3; ++layer) {
        std::vector<float> all(kRanks * n), sum(n);
        ASSERT_TRUE(
            barrier->AllGather(step, std::vector<float>(n, 1), absl::MakeSpan(all), BarrierRanks::kForever)
                .ok());
        EXPECT_EQ(all, std::vector<float>(kRanks * n, 1));
        ASSERT_TRUE(
            barrier
                ->ReduceScatter(step, Brought(rank, kRanks, n), absl::MakeSpan(sum), BarrierRanks::kForever)
                .ok());
        EXPECT_TRUE(BitEqual(sum, TreeOf(0, kSumTerms, rank, n)));
      }
      ASSERT_TRUE(barrier->AllReduce(step, {.active = 1}, BarrierRanks::kForever).ok());
    }
  });
}

// One collective of n numbers per rank; a large n keeps it in progress for a while.
absl::Status Call(Barrier& barrier, bool gather, int rank, int ranks, int64_t step, size_t n,
                  absl::Duration timeout) {
  if (gather) {
    std::vector<float> all(static_cast<size_t>(ranks) * n);
    return barrier.AllGather(step, std::vector<float>(n, 1), absl::MakeSpan(all), timeout);
  }
  const auto nodes = static_cast<size_t>(NodeCount(rank, ranks));
  std::vector<float> sum(n);
  return barrier.ReduceScatter(step, std::vector<float>(nodes * static_cast<size_t>(ranks) * n, 1),
                               absl::MakeSpan(sum), timeout);
}

TEST_P(CollectivesTest, ARankThatLeavesMakesAllOthersFailAtOnce) {
  constexpr int kRanks = 7;
  for (const bool gather : {true, false}) {
    for (const int gone : {0, 1, 6}) {
      SCOPED_TRACE(gone);
      BarrierRanks(GetParam(), kRanks).Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
        ASSERT_TRUE(Call(*barrier, gather, rank, kRanks, 1, 100'000, BarrierRanks::kForever).ok());
        if (rank == gone) return;  // destroys its barrier
        const absl::Time start = absl::Now();
        const absl::Status status = Call(*barrier, gather, rank, kRanks, 2, 100'000, BarrierRanks::kForever);
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        EXPECT_LT(absl::Now() - start, kPromptly);
        EXPECT_FALSE(Call(*barrier, gather, rank, kRanks, 2, 100'000, BarrierRanks::kForever).ok());
        EXPECT_FALSE(barrier->AllReduce(2, {}, BarrierRanks::kForever).ok());
      });
    }
  }
}

TEST_P(CollectivesTest, AMissingRankExceedsTheDeadlineForAll) {
  constexpr int kRanks = 6;
  for (const bool gather : {true, false}) {
    std::barrier over(kRanks);
    BarrierRanks(GetParam(), kRanks).Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
      if (rank != 4) {
        // Only rank 2 has a short timeout; the others get the error from rank 2.
        const absl::Duration patience = rank == 2 ? absl::Milliseconds(100) : BarrierRanks::kForever;
        const absl::Time start = absl::Now();
        const absl::Status status = Call(*barrier, gather, rank, kRanks, 1, 100'000, patience);
        // A neighbour to which rank 2 has sent only part of a message just sees a closed connection.
        EXPECT_TRUE(absl::IsDeadlineExceeded(status) || (rank != 2 && absl::IsUnavailable(status)))
            << rank << ": " << status;
        EXPECT_LT(absl::Now() - start, kPromptly);
      }
      over.arrive_and_wait();  // rank 4 exists until here
    });
  }
}

TEST_P(CollectivesTest, AbortEndsTheWaitOfAllRanks) {
  constexpr int kRanks = 4;
  for (const bool gather : {true, false}) {
    std::barrier over(kRanks);
    BarrierRanks(GetParam(), kRanks).Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
      if (rank == 3) {
        // Abort may come before the wait or during it.
        std::thread other([&] { barrier->Abort(); });
        EXPECT_TRUE(
            absl::IsCancelled(Call(*barrier, gather, rank, kRanks, 1, 100'000, BarrierRanks::kForever)));
        other.join();
      } else if (rank != 2) {
        const absl::Status status = Call(*barrier, gather, rank, kRanks, 1, 100'000, BarrierRanks::kForever);
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      }
      over.arrive_and_wait();
    });
  }
}

TEST_P(CollectivesTest, RanksThatDisagreeFail) {
  constexpr int kRanks = 4;
  const auto expect_internal = [&](const std::function<absl::Status(Barrier&, int)>& call) {
    std::barrier over(kRanks);
    BarrierRanks(GetParam(), kRanks).Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
      const absl::Status status = call(*barrier, rank);
      // A rank that only sees its connection closed does not learn the reason.
      EXPECT_TRUE(absl::IsInternal(status) || absl::IsUnavailable(status)) << status;
      over.arrive_and_wait();
    });
  };
  for (const bool gather : {true, false}) {
    SCOPED_TRACE(gather);
    // Another size, another step, another kind of call, and a missing call.
    expect_internal([&](Barrier& barrier, int rank) {
      return Call(barrier, gather, rank, kRanks, 1, rank == 2 ? 65 : 64, BarrierRanks::kForever);
    });
    expect_internal([&](Barrier& barrier, int rank) {
      return Call(barrier, gather, rank, kRanks, rank == 0 ? 2 : 1, 64, BarrierRanks::kForever);
    });
    expect_internal([&](Barrier& barrier, int rank) {
      return Call(barrier, rank == 1 ? !gather : gather, rank, kRanks, 1, 64, BarrierRanks::kForever);
    });
    expect_internal([&](Barrier& barrier, int rank) {
      if (rank == 3) return barrier.AllReduce(1, {}, BarrierRanks::kForever).status();
      return Call(barrier, gather, rank, kRanks, 1, 64, BarrierRanks::kForever);
    });
  }
}

TEST_P(CollectivesTest, SpansOfTheWrongSizeAreInvalid) {
  BarrierRanks(GetParam(), 1).Run(1, [](int, std::unique_ptr<Barrier> barrier) {
    std::vector<float> three(3);
    EXPECT_TRUE(absl::IsInvalidArgument(
        barrier->AllGather(1, std::vector<float>(2), absl::MakeSpan(three), BarrierRanks::kForever)));
    EXPECT_FALSE(barrier->AllReduce(1, {}, BarrierRanks::kForever).ok()) << "the barrier is finished";
  });
  BarrierRanks(GetParam(), 1).Run(1, [](int, std::unique_ptr<Barrier> barrier) {
    std::vector<float> three(3);
    EXPECT_TRUE(absl::IsInvalidArgument(
        barrier->ReduceScatter(1, std::vector<float>(4), absl::MakeSpan(three), BarrierRanks::kForever)));
  });
}

TEST_P(CollectivesTest, StepPeersHaveOneDeadlineAndKeepTheFirstError) {
  BarrierRanks group(GetParam(), 2);
  std::atomic<bool> done = false;
  group.Run(1, [&](int rank, std::unique_ptr<Barrier> barrier) {
    if (rank == 1) {
      while (!done) absl::SleepFor(absl::Milliseconds(1));
      return;
    }
    StepPeers peers(group.SpecOf(rank, 1), *barrier, 1, 9, absl::Milliseconds(30));
    EXPECT_EQ(peers.rank(), 0);
    EXPECT_EQ(peers.world_size(), 2);
    EXPECT_EQ(peers.rows(), 9);
    std::vector<float> two(2), one(1);
    EXPECT_TRUE(absl::IsDeadlineExceeded(peers.AllGather(one, absl::MakeSpan(two))));
    EXPECT_FALSE(peers.ReduceScatter(two, absl::MakeSpan(one)).ok());
    EXPECT_GE(peers.waited(), absl::Milliseconds(25)) << "of both calls";
    EXPECT_TRUE(absl::IsDeadlineExceeded(peers.status()));
    done = true;
  });
}

}  // namespace
}  // namespace bfio::worker
