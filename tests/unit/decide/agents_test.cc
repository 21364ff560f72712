// Turns among the calls of agents: the parents' book and the order of the pool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/core/agents/parents.h"
#include "router/core/agents/senior_step.h"
#include "router/core/decide/waiting_pool.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

TEST(SeniorStep, DueInProportionToWorkAndBoundedInIt) {
  EXPECT_EQ(SeniorStep(100, 0, 0), 100);
  EXPECT_EQ(SeniorStep(100, 30, 0), 160);
  EXPECT_EQ(SeniorStep(100, 30, 5), 165);
  EXPECT_EQ(SeniorStep(100, -1, -1), 100);
  EXPECT_EQ(SeniorStep(0, INT64_MAX, INT64_MAX), 3 * kMaxParentTokens);
}

TEST(Parents, RemembersWhenAParentBeganAndWhatItHasMade) {
  Parents parents;
  EXPECT_EQ(parents.Begin("a", 10, std::nullopt)->first_step, 10);
  parents.End("a", 7);
  const auto second = parents.Begin("a", 30, std::nullopt);
  EXPECT_EQ(second->first_step, 10);
  EXPECT_EQ(second->tokens_made, 7);
  EXPECT_EQ(parents.Begin("b", 31, std::nullopt)->first_step, 31);
  EXPECT_EQ(parents.size(), 2);
}

TEST(Parents, CallsSideBySideCountOnce) {
  Parents parents;
  parents.Begin("a", 0, std::nullopt);
  parents.Begin("a", 0, std::nullopt);
  parents.End("a", 50);
  // The wave goes on while one of it does.
  EXPECT_EQ(parents.Begin("a", 5, std::nullopt)->tokens_made, 0);
  parents.End("a", 20);
  parents.End("a", 30);
  EXPECT_EQ(parents.Begin("a", 9, std::nullopt)->tokens_made, 50);
}

TEST(Parents, AHigherStageEndsTheWave) {
  Parents parents;
  parents.Begin("a", 0, 0);
  parents.End("a", 10);
  parents.Begin("a", 1, 1);
  parents.Begin("a", 1, 1);
  parents.End("a", 40);
  // One call of stage 1 is still under way.
  EXPECT_EQ(parents.Begin("a", 2, 2)->tokens_made, 50);
  // Lower stages begin no wave.
  EXPECT_EQ(parents.Begin("a", 2, 1)->tokens_made, 50);
}

TEST(Parents, AFullBookForgetsWhoWasLongestWithoutACall) {
  Parents parents(3);
  for (const char* name : {"a", "b", "c"}) {
    parents.Begin(name, 1, std::nullopt);
    parents.End(name, 1);
  }
  parents.Begin("a", 2, std::nullopt);  // no longer idle
  EXPECT_EQ(parents.Begin("d", 3, std::nullopt)->first_step, 3);
  EXPECT_EQ(parents.size(), 3);
  EXPECT_EQ(parents.Begin("b", 4, std::nullopt)->first_step, 4) << "b was forgotten, and c for it";
  // a, d and b have calls: nobody can be forgotten.
  EXPECT_FALSE(parents.Begin("e", 5, std::nullopt).has_value());
  EXPECT_EQ(parents.Begin("a", 6, std::nullopt)->first_step, 1);
  parents.End("d", 1);
  EXPECT_TRUE(parents.Begin("e", 7, std::nullopt).has_value());
  EXPECT_EQ(parents.size(), 3);
}

RequestSpec Call(RequestId id, int64_t seniority, int32_t priority = 0) {
  RequestSpec spec;
  spec.id = id;
  spec.prefill_tokens = 10;
  spec.max_new_tokens = 5;
  spec.priority = priority;
  spec.seniority = seniority;
  return spec;
}

std::vector<RequestId> Order(const WaitingPool& pool) {
  std::vector<RequestId> ids;
  for (const WaitingView& view : pool.views()) ids.push_back(view.id);
  return ids;
}

TEST(WaitingPoolOfAgents, TheSeniorGoesFirstWithinItsPriority) {
  WaitingPool pool;
  pool.Add(Call(1, 0), 10);
  pool.Add(Call(2, 0), 11);
  pool.Add(Call(3, 5), 12);   // counts from 7
  pool.Add(Call(4, 1), 12);   // counts from 11, behind 2
  pool.Add(Call(5, -3), 12);  // counts from 15
  pool.Add(Call(6, 0), 13);
  pool.Add(Call(7, -9, 1), 13);
  EXPECT_THAT(Order(pool), ElementsAre(7, 3, 1, 2, 4, 6, 5));
  EXPECT_EQ(pool.views()[1].enqueued_step, 12);
  EXPECT_EQ(pool.views()[1].senior_step(), 7);
}

TEST(WaitingPoolOfAgents, IsBuiltAgainInItsOwnOrder) {
  WaitingPool pool;
  pool.Add(Call(1, 100), 10);
  pool.AddFront(Call(2, 0), 50);  // its worker was lost
  WaitingPool again;
  for (const WaitingView& view : pool.views()) again.Append(pool.Spec(view.id), view.enqueued_step);
  EXPECT_THAT(Order(again), ElementsAre(2, 1));
}

}  // namespace
}  // namespace bfio::core
