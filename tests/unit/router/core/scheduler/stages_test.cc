// What each stage places before the policy is called, and what it leaves (router/core/scheduler/stages.h).
#include "router/core/scheduler/stages.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace bfio::core {
namespace {

constexpr int64_t kStep = 1'000;

struct Pool {
  // The placements, "index@worker", and the free slots by worker that the stage leaves.
  std::string Place(const Stage& stage) const {
    FreeCapacity free;
    free.Reset(workers, {});
    std::vector<Assignment> assignments;
    stage({kStep, waiting, held, slots_elsewhere, kHoldAfterSteps, first_come}, free, assignments);
    std::string text;
    for (const Assignment& of : assignments) absl::StrAppend(&text, of.waiting_index, "@", of.worker, " ");
    absl::StrAppend(&text, "left");
    for (const WorkerView& view : free.views()) absl::StrAppend(&text, " ", view.free_slots);
    return text;
  }

  std::vector<WorkerView> workers;
  std::vector<WaitingView> waiting, held;
  int64_t slots_elsewhere = 0;
  std::vector<ClassWait> first_come = {};
};

WorkerView Free(int32_t slots, int64_t kv, int64_t of = 100, int32_t active = 0) {
  return {.active = active, .free_slots = slots, .free_kv_tokens = kv, .total_kv_tokens = of};
}
WaitingView Aged(RequestId id, int64_t kv, int64_t age) {
  return {.id = id, .prefill_tokens = kv, .kv_reserve_tokens = kv, .enqueued_step = kStep - age};
}
WaitingView Held(WorkerIndex rank, int64_t kv = 10, int64_t age = 0) {
  WaitingView view = Aged(1, kv, age);
  view.held_to = rank;
  return view;
}
WaitingView Refused(WaitingView view) {
  view.reserves_kv = true;
  return view;
}
WaitingView Alone() {
  WaitingView view = Aged(1, 10, 0);
  view.runs_alone = true;
  return view;
}

TEST(StagesTest, EachPlacesItsRequestsAndTakesTheirCapacity) {
  const std::vector<WorkerView> one = {Free(1, 50), Free(1, 50)}, two = {Free(2, 50), Free(2, 50)};
  const WaitingView older = Aged(2, 10, 5), large = Aged(3, 90, 5);
  const struct {
    const char* name;
    Stage stage;
    Pool pool;
    const char* result;
  } kCases[] = {
      {"held", PlaceHeld, {{Free(2, 50), Free(1, 50)}, {}, {Held(1), Held(0)}}, "0@1 1@0 left 1 0"},
      {"older ones that name no rank need the slots",
       PlaceHeld,
       {one, {older, older}, {Held(1)}},
       "left 1 1"},
      {"they fit nowhere", PlaceHeld, {one, {older, large}, {Held(1)}}, "0@1 left 1 0"},
      {"other groups have slots", PlaceHeld, {one, {older, older}, {Held(1)}, 1}, "0@1 left 1 0"},
      {"delays its rank only", PlaceHeld, {two, {}, {Held(1, 90), Held(1), Held(0)}}, "2@0 left 1 2"},
      {"one closed rank", PlaceHeld, {two, {}, {Held(1, 90, 64), Held(0, 90, 64)}}, "left 2 0"},
      {"never fits; recent", PlaceHeld, {two, {}, {Held(1, 101, 64), Held(0, 90, 63)}}, "left 2 2"},
      {"the emptiest, which takes no other",
       PlaceAlone,
       {{Free(2, 50, 100, 2), Free(3, 50, 100, 1)}, {older, Alone(), Alone(), Alone()}},
       "1@1 2@0 left 0 0"},
      {"alone, but fits nowhere", PlaceAlone, {{Free(2, 5), Free(0, 50)}, {Alone()}}, "left 2 0"},
  };
  for (const auto& of : kCases) EXPECT_EQ(of.pool.Place(of.stage), of.result) << of.name;
}

TEST(KvHoldTest, AnOverdueRequestHoldsTheWorkerWithMostFreeKv) {
  const struct {
    const char* name;
    Pool pool;
    const char* result;
    std::optional<RequestId> holder;
  } kCases[] = {
      {"most free KV", {{Free(4, 50), Free(4, 60)}, {Aged(1, 90, 64), Aged(2, 20, 0)}}, "left 4 0", 1},
      {"not before the time", {{Free(4, 50)}, {Aged(1, 90, 63)}}, "left 4", std::nullopt},
      {"where all wait", {{Free(4, 50)}, {Aged(1, 90, 199)}, {}, 0, {{0, 100}}}, "left 4", std::nullopt},
      {"twice as long as they", {{Free(4, 50)}, {Aged(1, 90, 200)}, {}, 0, {{0, 100}}}, "left 0", 1},
      {"another class waits", {{Free(4, 50)}, {Aged(1, 90, 64)}, {}, 0, {{1, 100}}}, "left 0", 1},
      {"refused too often", {{Free(4, 50)}, {Refused(Aged(1, 90, 64))}, {}, 0, {{0, 100}}}, "left 0", 1},
      {"it fits", {{Free(1, 95), Free(1, 60)}, {Aged(1, 90, 640)}}, "left 1 1", std::nullopt},
      {"not a full worker", {{Free(0, 80), Free(1, 60)}, {Aged(1, 90, 64)}}, "left 0 0", 1},
      {"too small a worker", {{Free(4, 70, 80), Free(4, 60)}, {Aged(1, 90, 64)}}, "left 4 0", 1},
      {"the next, where no worker could take the first",
       {{Free(4, 70, 80), Free(0, 60)}, {Aged(1, 90, 64), Aged(2, 75, 64), Aged(3, 75, 64)}},
       "left 0 0",
       2},
  };
  for (const auto& of : kCases) {
    KvHold hold;
    EXPECT_EQ(of.pool.Place(std::bind_front(&KvHold::Place, &hold)), of.result) << of.name;
    EXPECT_EQ(hold.holder(), of.holder) << of.name;
  }
}

TEST(KvHoldTest, AHolderKeepsItsWorkerUntilItFits) {
  KvHold hold;
  const Stage stage = std::bind_front(&KvHold::Place, &hold);
  Pool pool = {{Free(4, 50)}, {Aged(1, 90, 64), Aged(2, 95, 70)}};
  for (int step = 0; step < 2; ++step) EXPECT_EQ(pool.Place(stage), "left 0") << "no other may have it";
  EXPECT_EQ(hold.holder(), 1);
  pool.workers[0].free_kv_tokens = 96;
  EXPECT_EQ(pool.Place(stage), "0@0 left 0");
  EXPECT_EQ(hold.holder(), 2) << "the next";
  pool.waiting = {Aged(3, 10, 0)};
  EXPECT_EQ(pool.Place(stage), "left 4");
  EXPECT_EQ(hold.holder(), std::nullopt) << "it is gone";
}

}  // namespace
}  // namespace bfio::core
