#include "router/core/scheduler/waiting_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

RequestSpec Waiting(RequestId id, int32_t priority = 0) {
  RequestSpec spec;
  spec.id = id;
  spec.prefill_tokens = 10;
  spec.max_new_tokens = 5;
  spec.priority = priority;
  return spec;
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
  // Refused together, the last one first.
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

}  // namespace
}  // namespace bfio::core
