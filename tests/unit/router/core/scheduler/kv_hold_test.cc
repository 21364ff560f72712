// A request must not starve for lack of KV memory under any policy (router/core/scheduler/kv_hold.h).
#include "router/core/scheduler/kv_hold.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace bfio::core {
namespace {

constexpr int64_t kStep = 1'000;

struct Pool {
  // Free slots by worker after the rule has been applied.
  std::vector<int32_t> Close(KvHold& hold) const {
    FreeCapacity free;
    free.Reset(workers, {});
    hold.Close(kStep, waiting, free);
    std::vector<int32_t> slots;
    for (const WorkerView& view : free.views()) slots.push_back(view.free_slots);
    return slots;
  }
  std::optional<Assignment> Serve(KvHold& hold) const {
    FreeCapacity free;
    free.Reset(workers, {});
    return hold.Serve(waiting, free);
  }

  std::vector<WorkerView> workers;
  std::vector<WaitingView> waiting;
};

WorkerView Free(int32_t slots, int64_t kv, int64_t of = 100) {
  return {.free_slots = slots, .free_kv_tokens = kv, .total_kv_tokens = of};
}
WaitingView Aged(RequestId id, int64_t kv, int64_t age) {
  return {.id = id, .prefill_tokens = kv, .kv_reserve_tokens = kv, .enqueued_step = kStep - age};
}

TEST(KvHoldTest, AnOverdueRequestHoldsTheWorkerWithMostFreeKv) {
  const struct {
    const char* name;
    Pool pool;
    std::vector<int32_t> slots;
    std::optional<RequestId> holder;
  } kCases[] = {
      {"most free KV", {{Free(4, 50), Free(4, 60)}, {Aged(1, 90, 64), Aged(2, 20, 0)}}, {4, 0}, 1},
      {"not before the time", {{Free(4, 50)}, {Aged(1, 90, 63)}}, {4}, std::nullopt},
      {"it fits", {{Free(1, 95), Free(1, 60)}, {Aged(1, 90, 640)}}, {1, 1}, std::nullopt},
      {"not a full worker", {{Free(0, 80), Free(1, 60)}, {Aged(1, 90, 64)}}, {0, 0}, 1},
      {"too small a worker", {{Free(4, 70, 80), Free(4, 60)}, {Aged(1, 90, 64)}}, {4, 0}, 1},
      {"the next, where no worker could take the first",
       {{Free(4, 70, 80), Free(0, 60)}, {Aged(1, 90, 64), Aged(2, 75, 64), Aged(3, 75, 64)}},
       {0, 0},
       2},
  };
  for (const auto& of : kCases) {
    SCOPED_TRACE(of.name);
    KvHold hold(64);
    EXPECT_EQ(of.pool.Close(hold), of.slots);
    EXPECT_EQ(hold.holder(), of.holder);
  }
}

TEST(KvHoldTest, AHolderKeepsItsWorkerUntilItFits) {
  KvHold hold(64);
  Pool pool = {{Free(4, 50)}, {Aged(1, 90, 64), Aged(2, 95, 70)}};
  pool.Close(hold);
  EXPECT_EQ(hold.holder(), 1);
  EXPECT_EQ(pool.Serve(hold), std::nullopt);
  pool.workers[0].free_kv_tokens = 96;
  const std::optional<Assignment> served = pool.Serve(hold);
  ASSERT_TRUE(served);
  EXPECT_EQ(served->waiting_index, 0);
  EXPECT_EQ(served->worker, 0);
  EXPECT_EQ(hold.holder(), std::nullopt);
  hold.SetHolder(7);
  EXPECT_EQ(pool.Serve(hold), std::nullopt);
  EXPECT_EQ(hold.holder(), std::nullopt) << "it is gone";
}

}  // namespace
}  // namespace bfio::core
