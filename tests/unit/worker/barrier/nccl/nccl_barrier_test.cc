// The NCCL barrier over a fake NCCL (fake_nccl.h): errors and aborts. barrier_test.cc has what it shares with
// the others.
#include "worker/barrier/nccl/nccl_barrier.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <barrier>
#include <thread>

#include "gmock/gmock.h"
#include "tests/testing/barrier_ranks.h"
#include "tests/unit/worker/barrier/nccl/fake_nccl.h"

namespace bfio::worker {
namespace {

using testing::Fake;
using ::testing::HasSubstr;

constexpr absl::Duration kShort = absl::Milliseconds(50), kLong = testing::BarrierRanks::kForever;

class NcclBarrierTest : public ::testing::Test {
 protected:
  void SetUp() override { testing::ResetFake(); }
  void TearDown() override { testing::ExpectNothingLeftOrUndefined(); }
};

void ExpectStatus(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

// Over NVLink ranks that wait do not learn that a peer has aborted.
TEST_F(NcclBarrierTest, AMissingRankExceedsTheDeadlineIfNobodyHears) {
  Fake().peers_hear = false;
  Fake().launch_polls = 100;  // slow launches are awaited
  testing::BarrierRanks group("nccl", 3);
  group.Offer();
  std::thread other([&] { EXPECT_TRUE(absl::IsDeadlineExceeded(group.Form(1, 1, kShort).status())); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(group.Form(0, 1, kShort).status()));
  other.join();
  const int aborts = Fake().aborts;
  std::barrier over(3);
  group.Run(2, [&](int rank, std::unique_ptr<Barrier> barrier) {
    if (rank != 1) {
      const absl::Status status = barrier->AllReduce(1, {}, kShort).status();
      ExpectStatus(status, absl::StatusCode::kDeadlineExceeded, "a rank did not reach the barrier in time");
      EXPECT_EQ(barrier->AllReduce(1, {}, kLong).status(), status);
    }
    over.arrive_and_wait();
  });
  EXPECT_EQ(Fake().aborts - aborts, 3) << "each communicator is aborted once";
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
    testing::BarrierRanks("nccl", 1).Run(1, [&](int, std::unique_ptr<Barrier> barrier) {
      ASSERT_TRUE(barrier->AllReduce(1, {}, kLong).ok());
      Fake().faults[function] = result;
      const absl::Status status = barrier->AllReduce(2, {}, kLong).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_EQ(barrier->AllReduce(3, {}, kLong).status(), status);
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
    testing::BarrierRanks group("nccl", 1);
    group.Offer();
    Fake().faults[function] = result;
    EXPECT_EQ(group.Form(0, 1).status().code(), absl::StatusCode::kUnavailable);
    group.Offer();
    EXPECT_TRUE(group.Form(0, 2).ok()) << "the endpoint is good for the next epoch";
  }
}

TEST_F(NcclBarrierTest, AnOfferIsValidUntilItIsUsed) {
  testing::BarrierRanks group("nccl", 1);
  BarrierEndpoint& endpoint = *group.endpoints()[0];
  const std::string id = *endpoint.Offer();
  EXPECT_EQ(*endpoint.Offer(), id);
  EXPECT_TRUE(endpoint.Form({1, 0, 1, id}, kLong, {}).ok());
  EXPECT_NE(*endpoint.Offer(), id);
  EXPECT_TRUE(absl::IsInvalidArgument(endpoint.Form({1, 0, 1, "x:1"}, kLong, {}).status()));
  Fake().faults["ncclGetUniqueId"] = ncclSystemError;
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
        auto barrier = (*endpoint)->Form({1, 0, 1, *id}, kLong, {});
        Fake().abort_hangs = true;
        barrier->reset();
      },
      ::testing::ExitedWithCode(1), "ncclCommAbort hangs: only a new process can use this GPU again");
}

}  // namespace
}  // namespace bfio::worker
