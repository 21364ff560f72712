// A rank's place in a group whose ranks compute their steps together (--mlp=tp).
//
// Purpose: what the step loop does of a step, for tests of engines without one. Threads: the rank's.
#ifndef BFIO_TESTS_TESTING_SEAT_H_
#define BFIO_TESTS_TESTING_SEAT_H_

#include <map>
#include <memory>

#include "gtest/gtest.h"
#include "tests/testing/barrier_ranks.h"
#include "tests/testing/decode_schedule.h"
#include "worker/barrier/step_peers.h"
#include "worker/engine/engine.h"

namespace bfio::testing {

class Seat {
 public:
  Seat(const worker::GroupSpec& group, worker::Barrier& barrier) : group_(group), barrier_(barrier) {}

  // One step of all; returns how many ranks have said that they are busy.
  absl::StatusOr<int64_t> Step(worker::Engine& engine, bool busy, worker::StepOutput& out) {
    const auto agreed = barrier_.AllReduce(++step_, {.active = busy, .rows = engine.NextRows()}, kPatience);
    if (!agreed.ok()) return agreed.status();
    worker::StepPeers peers(group_, barrier_, step_, agreed->max_rows, kPatience);
    const absl::Status status = engine.StepTogether(peers, out);
    EXPECT_EQ(status, peers.status()) << "no fault of the engine's";
    if (!status.ok()) return status;
    return agreed->sum_active;
  }

  // Steps until no rank has anything to do; what `engine` has given.
  std::map<worker::Handle, Stream> Run(worker::Engine& engine) {
    std::map<worker::Handle, Stream> streams;
    worker::StepOutput out;
    for (;;) {
      const auto busy = Step(engine, engine.active() > 0, out);
      EXPECT_TRUE(busy.ok()) << busy.status();
      if (!busy.ok() || *busy == 0) return streams;
      for (const auto& token : out.tokens) streams[token.handle].tokens.push_back(token.id);
      for (const auto& finish : out.finished) streams[finish.handle].finished = true;
    }
  }

 private:
  static constexpr absl::Duration kPatience = BarrierRanks::kForever;

  const worker::GroupSpec group_;
  worker::Barrier& barrier_;
  int64_t step_ = 0;
};

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_SEAT_H_
