// The NCCL barrier over a fake NCCL (fake_nccl.h): errors, aborts and peers that join late.
#include "worker/barrier/nccl/nccl_barrier.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/barrier/nccl/fake_nccl.h"

namespace bfio::worker {
namespace {

using testing::Fake;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Only bounds the time of a failing test.
constexpr absl::Duration kForever = absl::Seconds(120);
constexpr absl::Duration kShort = absl::Milliseconds(50);

class NcclBarrierTest : public ::testing::Test {
 protected:
  void SetUp() override { testing::ResetFake(); }
  void TearDown() override {
    endpoints_.clear();
    EXPECT_THAT(Fake().undefined, IsEmpty());
    EXPECT_EQ(Fake().communicators, 0);
    EXPECT_EQ(Fake().blocks, 0);
    EXPECT_EQ(Fake().streams, 0);
    EXPECT_EQ(Fake().events, 0);
  }

  void MakeEndpoints(int ranks) {
    endpoints_.clear();
    for (int rank = 0; rank < ranks; ++rank) {
      auto endpoint = NcclEndpoint::Create({.device = rank});
      ASSERT_TRUE(endpoint.ok()) << endpoint.status();
      endpoints_.push_back(*std::move(endpoint));
    }
    id_ = *endpoints_[0]->Offer();
  }
  absl::StatusOr<std::unique_ptr<Barrier>> Form(int rank, absl::Duration timeout = kForever,
                                                std::stop_token stop = {}) {
    return endpoints_[rank]->Form({1, rank, static_cast<int32_t>(endpoints_.size()), id_}, timeout, stop);
  }
  // Forms a group and runs `body` on a thread per rank.
  void Run(int ranks, const std::function<void(int rank, Barrier& barrier)>& body) {
    MakeEndpoints(ranks);
    RunThreads(ranks, [&](int rank) {
      const auto barrier = Form(rank);
      ASSERT_TRUE(barrier.ok()) << barrier.status();
      body(rank, **barrier);
    });
  }
  void RunThreads(int ranks, const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<BarrierEndpoint>> endpoints_;
  std::string id_;
};

void ExpectStatus(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST_F(NcclBarrierTest, EveryRankGetsMaximaAndSums) {
  for (const int ranks : {1, 2, 5}) {
    Run(ranks, [&](int rank, Barrier& barrier) {
      for (int64_t step = 1; step <= 10; ++step) {
        const auto view = barrier.AllReduce(step, {rank * 10 + step, 100 - rank, 1, 0}, kForever);
        ASSERT_TRUE(view.ok()) << view.status();
        EXPECT_EQ(view->max_load_tokens, (ranks - 1) * 10 + step);
        EXPECT_EQ(view->sum_load_tokens, ranks * (ranks - 1) / 2 * 10 + ranks * step);
        EXPECT_EQ(view->max_local_ns, 100);
        EXPECT_EQ(view->sum_active, ranks);
      }
    });
  }
}

TEST_F(NcclBarrierTest, SlowLaunchesAreAwaited) {
  Fake().launch_polls = 100;
  Run(2, [](int, Barrier& barrier) { ASSERT_TRUE(barrier.AllReduce(1, {}, kForever).ok()); });
}

TEST_F(NcclBarrierTest, ALateRankIsAwaited) {
  MakeEndpoints(3);
  RunThreads(3, [&](int rank) {
    if (rank == 1) absl::SleepFor(kShort);
    const auto barrier = Form(rank);
    ASSERT_TRUE(barrier.ok()) << barrier.status();
    if (rank == 2) absl::SleepFor(kShort);
    EXPECT_TRUE((*barrier)->AllReduce(1, {}, kForever).ok());
  });
}

TEST_F(NcclBarrierTest, AnIncompleteGroupDoesNotForm) {
  for (const bool peers_hear : {true, false}) {
    MakeEndpoints(3);
    Fake().peers_hear = peers_hear;
    RunThreads(2, [&](int rank) {
      const absl::Status status = Form(rank, kShort).status();
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || (peers_hear && absl::IsUnavailable(status))) << status;
    });
  }
}

TEST_F(NcclBarrierTest, AMissingRankExceedsTheDeadlineAndEndsTheBarrier) {
  for (const bool peers_hear : {true, false}) {
    const int aborts = Fake().aborts;
    std::barrier over(3);
    Fake().peers_hear = peers_hear;
    Run(3, [&](int rank, Barrier& barrier) {
      if (rank != 1) {
        const absl::Status status =
            barrier.AllReduce(1, {}, rank == 0 || !peers_hear ? kShort : kForever).status();
        if (rank == 0 || !peers_hear) {
          ExpectStatus(status, absl::StatusCode::kDeadlineExceeded,
                       "a rank did not reach the barrier in time");
        } else {
          ExpectStatus(status, absl::StatusCode::kUnavailable, "remote process exited");
        }
        EXPECT_EQ(barrier.AllReduce(1, {}, kForever).status(), status);
      }
      over.arrive_and_wait();
    });
    EXPECT_EQ(Fake().aborts - aborts, 3) << "each communicator is aborted once";
  }
}

TEST_F(NcclBarrierTest, AbortEndsAWaitAndAppliesToLaterCalls) {
  Fake().peers_hear = false;
  std::barrier over(2);
  Run(2, [&](int rank, Barrier& barrier) {
    if (rank == 0) {
      std::thread other([&] { barrier.Abort(); });
      EXPECT_TRUE(absl::IsCancelled(barrier.AllReduce(1, {}, kForever).status()));
      other.join();
      EXPECT_TRUE(absl::IsCancelled(barrier.AllReduce(2, {}, kForever).status()));
    }
    over.arrive_and_wait();
  });
}

TEST_F(NcclBarrierTest, AStopEndsForming) {
  MakeEndpoints(2);
  for (const int rank : {0, 1}) {
    std::stop_source stop;
    std::thread other([&] { stop.request_stop(); });
    EXPECT_TRUE(absl::IsCancelled(Form(rank, kForever, stop.get_token()).status()));
    other.join();
    id_ = *endpoints_[0]->Offer();
  }
}

TEST_F(NcclBarrierTest, AnNcclErrorInAStepEndsTheBarrier) {
  std::barrier over(2);
  Run(2, [&](int rank, Barrier& barrier) {
    if (rank == 0) {
      {
        const std::lock_guard lock(Fake().mutex);
        Fake().async_errors[0] = ncclSystemError;
      }
      ExpectStatus(barrier.AllReduce(1, {}, kForever).status(), absl::StatusCode::kUnavailable,
                   "NCCL: an NCCL error");
      EXPECT_FALSE(barrier.AllReduce(1, {}, kForever).ok());
    } else {
      // Rank 0 may have contributed to step 1 before it failed.
      if (barrier.AllReduce(1, {}, kForever).ok()) {
        EXPECT_FALSE(barrier.AllReduce(2, {}, kForever).ok());
      }
      ExpectStatus(barrier.AllReduce(3, {}, kForever).status(), absl::StatusCode::kUnavailable,
                   "remote process exited");
    }
    over.arrive_and_wait();
  });
}

// Each call of a step fails once: the barrier ends and releases all its resources (TearDown checks that).
TEST_F(NcclBarrierTest, AnErrorOfAnyCallEndsTheBarrier) {
  for (const auto& [function, result] :
       std::vector<std::pair<std::string, int>>{{"cudaMemcpyAsync", cudaErrorLaunchFailure},
                                                {"cudaEventRecord", cudaErrorLaunchFailure},
                                                {"cudaEventQuery", cudaErrorLaunchFailure},
                                                {"ncclAllReduce", ncclUnhandledCudaError},
                                                {"ncclCommGetAsyncError", ncclInternalError}}) {
    SCOPED_TRACE(function);
    Run(1, [&](int, Barrier& barrier) {
      ASSERT_TRUE(barrier.AllReduce(1, {}, kForever).ok());
      Fake().faults[function] = {0, result};
      const absl::Status status = barrier.AllReduce(2, {}, kForever).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_EQ(barrier.AllReduce(3, {}, kForever).status(), status);
    });
  }
}

TEST_F(NcclBarrierTest, AnErrorDuringFormingLeaksNothing) {
  for (const auto& [function, result] :
       std::vector<std::pair<std::string, int>>{{"cudaSetDevice", cudaErrorInvalidDevice},
                                                {"cudaStreamCreate", cudaErrorMemoryAllocation},
                                                {"cudaMalloc", cudaErrorMemoryAllocation},
                                                {"cudaMallocHost", cudaErrorMemoryAllocation},
                                                {"ncclCommInitRankConfig", ncclSystemError},
                                                {"ncclCommGetAsyncError", ncclInternalError},
                                                {"ncclAllReduce", ncclInternalError}}) {
    SCOPED_TRACE(function);
    MakeEndpoints(1);
    Fake().faults[function] = {0, result};
    EXPECT_EQ(Form(0).status().code(), absl::StatusCode::kUnavailable);
    id_ = *endpoints_[0]->Offer();
    EXPECT_TRUE(Form(0).ok()) << "the endpoint is good for the next epoch";
  }
}

TEST_F(NcclBarrierTest, RanksThatDisagreeAreNamed) {
  Run(3, [](int rank, Barrier& barrier) {
    const absl::Status status = barrier.AllReduce(rank == 1 ? 8 : 7, {}, kForever).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ranks disagree: rank"));
  });
}

TEST_F(NcclBarrierTest, AnOfferIsValidUntilItIsUsed) {
  MakeEndpoints(1);
  EXPECT_EQ(*endpoints_[0]->Offer(), id_);
  EXPECT_TRUE(Form(0).ok());
  EXPECT_NE(*endpoints_[0]->Offer(), id_);
  EXPECT_TRUE(absl::IsInvalidArgument(endpoints_[0]->Form({1, 0, 1, "x:1"}, kForever, {}).status()));
  Fake().faults["ncclGetUniqueId"] = {0, ncclSystemError};
  auto other = NcclEndpoint::Create({});
  EXPECT_TRUE(absl::IsUnavailable(other.status())) << other.status();
}

TEST_F(NcclBarrierTest, WithoutAGpuTheErrorSaysSo) {
  Fake().devices = 0;
  ExpectStatus(NcclEndpoint::Create({}).status(), absl::StatusCode::kUnavailable, "this machine has 0");
  Fake().devices = 2;
  ExpectStatus(NcclEndpoint::Create({.device = 2}).status(), absl::StatusCode::kUnavailable,
               "needs GPU 2; this machine has 2");
}

TEST_F(NcclBarrierTest, AnAbortThatHangsEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        testing::ResetFake();
        auto endpoint = NcclEndpoint::Create({.abort_patience = kShort});
        const auto id = (*endpoint)->Offer();
        auto barrier = (*endpoint)->Form({1, 0, 1, *id}, kForever, {});
        Fake().abort_hangs = true;
        barrier->reset();
      },
      ::testing::ExitedWithCode(1), "ncclCommAbort hangs: only a new process can use this GPU again");
}

}  // namespace
}  // namespace bfio::worker
