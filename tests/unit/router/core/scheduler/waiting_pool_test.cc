#include "router/core/scheduler/waiting_pool.h"

#include <gmock/gmock.h>

#include <map>
#include <vector>

#include "common/base/rng.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

RequestSpec Waiting(RequestId id, int32_t priority = 0) {
  return {.id = id, .prefill_tokens = 10, .max_new_tokens = 5, .priority = priority};
}

std::vector<RequestId> Ids(const WaitingPool& pool) {
  std::vector<RequestId> ids;
  for (const WaitingView& view : pool.views()) ids.push_back(view.id);
  return ids;
}

TEST(WaitingPool, KeepsPriorityThenArrivalOrder) {
  WaitingPool pool;
  pool.Add(Waiting(1), 0);
  pool.Add(Waiting(2, 5), 0);
  pool.Add(Waiting(3), 0);
  pool.Add(Waiting(4, 5), 0);
  pool.Add(Waiting(5, -1), 0);
  EXPECT_THAT(Ids(pool), ElementsAre(2, 4, 1, 3, 5));
}

TEST(WaitingPool, CountsTheTokensThatAreToBeComputed) {
  WaitingPool pool;
  pool.Add(Waiting(1), 0);
  RequestSpec half = Waiting(2);
  half.computed_tokens = 4;
  pool.AddFront(half, 0);
  pool.Return(Waiting(3), 0);
  EXPECT_EQ(pool.tokens_to_compute(), 10 + 6 + 10);
  EXPECT_TRUE(pool.Remove(1));
  EXPECT_FALSE(pool.Remove(1));
  EXPECT_EQ(pool.tokens_to_compute(), 16);
  const std::vector<Assignment> both = {{.waiting_index = 0}, {.waiting_index = 1}};
  pool.RemoveMany(both);
  EXPECT_EQ(pool.tokens_to_compute(), 0);
}

TEST(WaitingPool, FrontMeansFrontOfItsPriorityClass) {
  WaitingPool pool;
  pool.Add(Waiting(1, 5), 0);
  pool.Add(Waiting(2), 0);
  pool.AddFront(Waiting(3), 0);
  EXPECT_THAT(Ids(pool), ElementsAre(1, 3, 2));
}

TEST(WaitingPool, WhatComesBackGoesWhereItsAgePutsIt) {
  WaitingPool pool;
  pool.Add(Waiting(7, 5), 9);
  pool.Add(Waiting(4), 2);
  pool.Add(Waiting(9), 4);
  // Requests refused together are returned last one first.
  pool.Return(Waiting(3), 1);
  pool.Return(Waiting(2), 1);
  pool.Return(Waiting(5), 3);
  pool.Return(Waiting(8), 4);
  EXPECT_THAT(Ids(pool), ElementsAre(7, 2, 3, 4, 5, 8, 9));
}

TEST(WaitingPool, RemovesByIdAndByIndex) {
  WaitingPool pool;
  for (RequestId id = 1; id <= 6; ++id) pool.Add(Waiting(id), 0);
  EXPECT_TRUE(pool.Remove(4));
  EXPECT_FALSE(pool.Remove(4));
  const std::vector<Assignment> chosen = {{4, 0}, {1, 1}};
  pool.RemoveMany(chosen);
  EXPECT_THAT(Ids(pool), ElementsAre(1, 3, 5));
  EXPECT_TRUE(pool.Contains(5));
  EXPECT_FALSE(pool.Contains(2));
  EXPECT_FALSE(pool.Contains(6));
}

TEST(WaitingPool, ViewCarriesTheKvReservation) {
  WaitingPool pool;
  pool.Add(Waiting(1), 7);
  EXPECT_EQ(pool.views()[0].kv_reserve_tokens, 14);  // s + o - 1
  EXPECT_EQ(pool.views()[0].enqueued_step, 7);
}

RequestSpec Begun(RequestId id, uint32_t model, int32_t priority = 0) {
  RequestSpec spec = Waiting(id, priority);
  spec.model = model;
  return spec;
}

TEST(WaitingPool, AGroupGetsTheRequestsThatItsModelMayContinue) {
  WaitingPool pool;
  pool.Add(Begun(1, 7), 0);
  pool.Add(Waiting(2), 0);
  pool.Add(Begun(3, 8), 0);
  pool.Add(Begun(4, 7), 0);
  pool.Add(Waiting(5), 0);
  pool.Hide(0);
  EXPECT_THAT(Ids(pool), ElementsAre(1, 2, 3, 4, 5));
  pool.ShowAll();
  pool.Hide(7);
  EXPECT_THAT(Ids(pool), ElementsAre(1, 2, 4, 5));
  EXPECT_EQ(pool.hidden(), 1);
  EXPECT_TRUE(pool.Contains(3));
  pool.ShowAll();
  pool.Hide(9);
  EXPECT_THAT(Ids(pool), ElementsAre(2, 5));
  pool.RemoveMany(std::vector<Assignment>{{0, 0}});
  pool.ShowAll();
  EXPECT_THAT(Ids(pool), ElementsAre(1, 3, 4, 5));
  EXPECT_EQ(pool.hidden(), 0);
}

TEST(WaitingPool, NoRequestIsHiddenIfAllBeganOnOneModel) {
  WaitingPool pool;
  pool.Add(Begun(1, 7), 0);
  pool.Add(Begun(2, 8), 0);
  EXPECT_TRUE(pool.Remove(2));
  pool.Hide(7);
  EXPECT_EQ(pool.hidden(), 0);
  pool.ShowAll();
  pool.Hide(8);
  EXPECT_THAT(Ids(pool), ElementsAre());
  pool.ShowAll();
  EXPECT_THAT(Ids(pool), ElementsAre(1));
}

// Compared with a plain list of ids, for any additions and removals while some requests are hidden.
TEST(WaitingPool, ShowsAllAgainInTheirOrder) {
  Rng rng(3);
  for (int round = 0; round < 300; ++round) {
    WaitingPool pool;
    std::vector<RequestId> all;
    std::map<RequestId, uint32_t> model;
    RequestId next = 1;
    for (int turn = 0; turn < 6; ++turn) {
      for (uint64_t n = rng.Below(8); n > 0; --n) {
        model[next] = static_cast<uint32_t>(rng.Below(3));
        pool.Add(Begun(next, model[next]), turn);
        all.push_back(next++);
      }
      const auto group = static_cast<uint32_t>(1 + rng.Below(3));
      pool.Hide(group);
      std::vector<RequestId> seen;
      for (const RequestId id : all) {
        if (model[id] == 0 || model[id] == group) seen.push_back(id);
      }
      ASSERT_EQ(Ids(pool), seen);
      // A request that enters with a batch is behind all visible ones, and so behind those hidden there.
      if (rng.Below(2) == 0) {
        model[next] = 0;
        pool.Add(Waiting(next), turn);
        all.push_back(next);
        seen.push_back(next++);
      }
      std::vector<Assignment> chosen;
      for (size_t i = 0; i < seen.size(); ++i) {
        if (rng.Below(3) > 0) continue;
        chosen.push_back({static_cast<int32_t>(i), 0});
        std::erase(all, seen[i]);
      }
      pool.RemoveMany(chosen);
      pool.ShowAll();
      ASSERT_EQ(Ids(pool), all);
    }
  }
}

}  // namespace
}  // namespace bfio::core
