// Ranks with a GPU each, as threads over the emulator, which runs one kernel at a time.
//
// Purpose: a rank runs while it has the turn, and hands it over where it waits for its peers: in its barrier,
// whose collectives can be made to fail. Threads: EmulatorTurn any; a TurnBarrier as barrier.h says, by who
// has the turn.
#ifndef BFIO_TESTS_TESTING_EMULATED_RANKS_H_
#define BFIO_TESTS_TESTING_EMULATED_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "tests/testing/barrier_ranks.h"
#include "worker/barrier/barrier.h"

namespace bfio::testing {

// The process's one.
inline Mutex& EmulatorTurn() {
  static Mutex turn;
  return turn;
}

class TurnBarrier final : public worker::Barrier {
 public:
  // Leaves the group instead of making its `dies`-th call; 0: never.
  TurnBarrier(std::unique_ptr<worker::Barrier> inner, int dies) : inner_(std::move(inner)), dies_(dies) {}

  absl::StatusOr<worker::GroupView> AllReduce(int64_t step, const worker::Contribution& mine,
                                              absl::Duration timeout) override {
    return Call<absl::StatusOr<worker::GroupView>>([&] { return inner_->AllReduce(step, mine, timeout); });
  }
  absl::Status AllGather(int64_t step, absl::Span<const float> mine, absl::Span<float> all,
                         absl::Duration timeout) override {
    return Call<absl::Status>([&] { return inner_->AllGather(step, mine, all, timeout); });
  }
  absl::Status ReduceScatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                             absl::Duration timeout) override {
    return Call<absl::Status>([&] { return inner_->ReduceScatter(step, mine, sum, timeout); });
  }
  void Abort() override { inner_->Abort(); }

 private:
  template <typename Result, typename Meet>
  Result Call(const Meet& meet) {
    if (++calls_ == dies_) inner_.reset();
    if (inner_ == nullptr) return absl::UnavailableError("died");
    EmulatorTurn().Unlock();
    Result result = meet();
    EmulatorTurn().Lock();
    return result;
  }

  std::unique_ptr<worker::Barrier> inner_;
  const int dies_;
  int calls_ = 0;
};

// Runs `body` on a thread per rank of a group. The last rank dies in its `dies`-th call; 0: nobody does.
inline void RunEmulatedRanks(int ranks, uint64_t epoch, int dies,
                             const std::function<void(int rank, worker::Barrier& barrier)>& body) {
  BarrierRanks("local", ranks).Run(epoch, [&](int rank, std::unique_ptr<worker::Barrier> barrier) {
    MutexLock turn(&EmulatorTurn());
    TurnBarrier in_turn(std::move(barrier), rank == ranks - 1 ? dies : 0);
    body(rank, in_turn);
  });
}

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_EMULATED_RANKS_H_
