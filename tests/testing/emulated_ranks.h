// Ranks with one GPU each, as threads that share the emulator, which runs one kernel at a time.
//
// Purpose: a rank runs while it holds the emulator's mutex, and releases it where it waits for its peers,
// that is in its barrier. The barrier can have collectives on the device (the emulator's memory is the
// host's; they run when the rank waits for its stream), and can be made to fail.
// Threads: EmulatorMutex may be called by any thread; an EmulatedBarrier is used as barrier.h says, by the
// thread that holds the mutex.
#ifndef BFIO_TESTS_TESTING_EMULATED_RANKS_H_
#define BFIO_TESTS_TESTING_EMULATED_RANKS_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "simt/stream.h"
#include "tests/testing/barrier_ranks.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/device_collectives.h"
#include "worker/barrier/summation_tree.h"
#include "worker/engine/model/element.h"

namespace bfio::testing {

// The mutex of this process's emulator.
inline Mutex& EmulatorMutex() {
  static Mutex turn;
  return turn;
}

struct EmulatedGroup {
  int ranks = 1;
  uint64_t epoch = 1;
  // The last rank leaves instead of making the call of this number; 0: never.
  int dies = 0;
  bool on_device = false;
  // Collectives on the device fail when they are queued, instead of in Check.
  bool fails_at_once = false;

  worker::GroupSpec Spec(int rank) const { return {epoch, rank, ranks, ""}; }
};

class EmulatedBarrier final : public worker::Barrier, public worker::DeviceCollectives {
 public:
  EmulatedBarrier(const EmulatedGroup& group, int rank, std::unique_ptr<worker::Barrier> inner)
      : group_(group), rank_(rank), inner_(std::move(inner)) {}

  absl::StatusOr<worker::GroupView> AllReduce(int64_t step, const worker::Contribution& mine,
                                              absl::Duration timeout) override {
    if (!failure_.ok()) return failure_;
    auto view =
        Call<absl::StatusOr<worker::GroupView>>([&] { return inner_->AllReduce(step, mine, timeout); });
    if (view.ok()) rows_ = {mine.rows, view->max_rows};
    return view;
  }
  absl::Status AllGather(int64_t step, absl::Span<const float> mine, absl::Span<float> all,
                         absl::Duration timeout) override {
    EXPECT_FALSE(group_.on_device) << "rows went through the host";
    ExpectZerosBeyondRows(mine);
    return Call<absl::Status>([&] { return inner_->AllGather(step, mine, all, timeout); });
  }
  absl::Status ReduceScatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                             absl::Duration timeout) override {
    EXPECT_FALSE(group_.on_device) << "sums went through the host";
    return Call<absl::Status>([&] { return inner_->ReduceScatter(step, mine, sum, timeout); });
  }
  void Abort() override {
    if (inner_ != nullptr) inner_->Abort();
  }

  worker::DeviceCollectives* device() override { return group_.on_device ? this : nullptr; }

  absl::Status QueueAllGather(const void* mine, void* all, int64_t count, void* stream,
                              absl::Duration timeout) override {
    const auto size = static_cast<size_t>(count), all_size = static_cast<size_t>(group_.ranks) * size;
    return Queue(stream, [=, this] {
      std::vector<uint16_t> halves(size);
      std::memcpy(halves.data(), mine, 2 * size);
      std::vector<float> wide, gathered(all_size);
      for (const uint16_t half : halves) wide.push_back(worker::FromBf16(half));
      if (hung_.ok()) ExpectZerosBeyondRows(wide);
      if (!Meet([&] { return inner_->AllGather(1, wide, absl::MakeSpan(gathered), timeout); }, all,
                2 * all_size)) {
        return;
      }
      halves.clear();
      for (const float x : gathered) halves.push_back(worker::ToBf16(x));
      std::memcpy(all, halves.data(), 2 * all_size);
    });
  }
  absl::Status QueueReduceScatter(const float* mine, float* sum, int64_t count, void* stream,
                                  absl::Duration timeout) override {
    const auto size = static_cast<size_t>(count), all_size = static_cast<size_t>(group_.ranks) * size;
    return Queue(stream, [=, this] {
      const auto nodes = static_cast<size_t>(worker::NodeCount(rank_, group_.ranks));
      // The first node contains the only term; the other nodes are zeros.
      std::vector<float> brought(mine, mine + all_size);
      if (nodes == 0) {
        EXPECT_TRUE(std::all_of(brought.begin(), brought.end(), [](float x) { return x == 0; }));
      }
      brought.resize(nodes * all_size);
      std::vector<float> got(size);
      if (Meet([&] { return inner_->ReduceScatter(1, brought, absl::MakeSpan(got), timeout); }, sum,
               4 * size)) {
        std::memcpy(sum, got.data(), 4 * size);
      }
    });
  }
  absl::Status Check() override {
    if (failure_.ok() && !hung_.ok()) Fail(hung_);
    return failure_;
  }
  void Fail(const absl::Status& why) override {
    if (failure_.ok()) failure_ = why;
    inner_.reset();
  }

 private:
  void ExpectZerosBeyondRows(absl::Span<const float> brought) const {
    const auto [mine, all] = rows_;
    const auto padding =
        brought.subspan(brought.size() / static_cast<size_t>(all) * static_cast<size_t>(mine));
    EXPECT_TRUE(std::all_of(padding.begin(), padding.end(), [](float x) { return x == 0; }))
        << "what is padded to the largest batch is not zeros";
  }

  template <typename Result, typename Meet>
  Result Call(const Meet& meet) {
    if (++calls_ == group_.dies && rank_ == group_.ranks - 1) inner_.reset();
    if (inner_ == nullptr) return absl::UnavailableError("died");
    EmulatorMutex().Unlock();
    Result result = meet();
    EmulatorMutex().Lock();
    return result;
  }

  // Queues a collective in the caller's stream; runs it at once where collectives fail at once.
  absl::Status Queue(void* stream, const std::function<void()>& collective) {
    if (!failure_.ok()) return failure_;
    auto* const queue = static_cast<CUstream_st*>(stream);
    queue->Push([collective] {
      collective();
      return std::string();
    });
    if (!group_.fails_at_once) return absl::OkStatus();
    EXPECT_EQ(queue->Run(), "");
    return Check();
  }
  // As on a device: after a collective whose peers are gone the stream continues, with NaN as the result.
  template <typename Exchange>
  bool Meet(const Exchange& exchange, void* result, size_t bytes) {
    if (hung_.ok()) hung_ = Call<absl::Status>(exchange);
    if (!hung_.ok()) std::memset(result, 0xff, bytes);
    return hung_.ok();
  }

  const EmulatedGroup group_;
  const int rank_;
  std::unique_ptr<worker::Barrier> inner_;
  int calls_ = 0;
  // Rows of the step: of this rank, and of the largest batch.
  std::pair<int64_t, int64_t> rows_ = {0, 1};
  // Error of a collective in the stream; error of the barrier, once the first has been noticed.
  absl::Status hung_, failure_;
};

// Runs `body` on one thread per rank of a group.
inline void RunEmulatedRanks(const EmulatedGroup& group,
                             const std::function<void(int rank, worker::Barrier& barrier)>& body) {
  BarrierRanks("local", group.ranks).Run(group.epoch, [&](int rank, std::unique_ptr<worker::Barrier> inner) {
    MutexLock turn(&EmulatorMutex());
    EmulatedBarrier barrier(group, rank, std::move(inner));
    body(rank, barrier);
  });
}

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_EMULATED_RANKS_H_
