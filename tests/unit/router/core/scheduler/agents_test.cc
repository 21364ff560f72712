// The order among calls of agents: the book of parents and the order of the waiting pool.
#include <gmock/gmock.h>

#include "router/core/agents/parents.h"
#include "router/core/scheduler/waiting_pool.h"

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

TEST(SeniorStep, AnHonestCallCountsAsLittleYoungerAndALateOneAsOldAsItIs) {
  EXPECT_EQ(Seniority(100, SeniorStep(100, 0, 0)), 0);
  EXPECT_EQ(Seniority(100, SeniorStep(100, 0, 4000)), -kMaxYoungerSteps);
  EXPECT_EQ(Seniority(100, SeniorStep(100, 0, kMaxYoungerSteps - 1)), 1 - kMaxYoungerSteps);
  EXPECT_EQ(Seniority(2400, SeniorStep(100, 1000, 100)), 200);
  EXPECT_EQ(Seniority(50'000, SeniorStep(100, 1000, 100)), kMaxOlderSteps);
}

// The book as the router uses it; calls are numbered in order.
class BookOfParents {
 public:
  explicit BookOfParents(int64_t limit = Parents::kDefaultLimit) : parents(limit) {}

  std::optional<Parents::State> Begin(const std::string& name, int64_t step,
                                      std::optional<uint32_t> stage = std::nullopt,
                                      int64_t deadline_us = RequestSpec::kNoDeadline) {
    const auto standing = parents.Find(name, step, stage);
    if (standing) parents.Begin(name, ++calls_, step, stage, deadline_us);
    return standing;
  }
  // Ends the agent's oldest call.
  void End(const std::string& name, int64_t tokens, int64_t step) {
    parents.End(name, parents.Calls(name).front(), tokens, step);
  }

  Parents parents;

 private:
  RequestId calls_ = 0;
};

TEST(Parents, RemembersWhenAParentBeganAndWhatItHasMadeInCallsSideBySide) {
  BookOfParents book;
  EXPECT_EQ(book.Begin("a", 0)->first_step, 0);
  book.Begin("a", 0);
  book.End("a", 50, 3);
  // The stage continues while one of its calls runs.
  EXPECT_EQ(book.Begin("a", 5)->generated_tokens, 0);
  EXPECT_THAT(book.parents.Calls("a"), ElementsAre(2, 3));
  book.End("a", 20, 6);
  book.End("a", 30, 7);
  const auto second = book.Begin("a", 9);
  EXPECT_EQ(second->first_step, 0);
  EXPECT_EQ(second->generated_tokens, 50) << "calls side by side count once";
  EXPECT_EQ(book.Begin("b", 31)->first_step, 31);
  EXPECT_EQ(book.parents.size(), 2);
}

TEST(Parents, AHigherStageEndsTheWave) {
  BookOfParents book;
  book.Begin("a", 0, 0);
  book.End("a", 10, 1);
  book.Begin("a", 1, 1);
  book.Begin("a", 1, 1);
  book.End("a", 40, 2);
  // One call of stage 1 is still under way.
  EXPECT_EQ(book.Begin("a", 2, 2)->generated_tokens, 50);
  // Lower stages do not begin the next one.
  EXPECT_EQ(book.Begin("a", 2, 1)->generated_tokens, 50);
}

TEST(Parents, AFullTableRemovesTheParentLongestWithoutACall) {
  BookOfParents book(3);
  for (const char* name : {"a", "b", "c"}) {
    book.Begin(name, 1);
    book.End(name, 1, 1);
  }
  for (int i = 0; i < 5; ++i) EXPECT_EQ(book.parents.Find("z", 1, std::nullopt)->first_step, 1);
  EXPECT_EQ(book.Begin("a", 2)->generated_tokens, 1) << "a call that is only looked up displaces none";
  EXPECT_EQ(book.Begin("d", 3)->first_step, 3);
  EXPECT_EQ(book.parents.size(), 3);
  EXPECT_EQ(book.Begin("b", 4)->first_step, 4) << "b was forgotten, and c for it";
  // a, d and b have calls, so none of them can be removed.
  EXPECT_FALSE(book.Begin("e", 5).has_value());
  EXPECT_EQ(book.Begin("a", 6)->first_step, 1);
  book.End("d", 1, 6);
  EXPECT_TRUE(book.Begin("e", 7).has_value());
  EXPECT_EQ(book.parents.size(), 3);
}

TEST(Parents, ANameInPermanentUseDoesNotStayTheOldest) {
  BookOfParents book;
  int64_t oldest = 0;
  for (int64_t step = 0; step < 5 * Parents::kMaxAgeSteps; step += 100) {
    const auto standing = book.Begin("a", step);
    oldest =
        std::max(oldest, Seniority(step, SeniorStep(standing->first_step, standing->generated_tokens, 0)));
    // Two calls run at any time, so the agent is never without one.
    if (step > 0) book.End("a", 10, step);
    EXPECT_LE(step - standing->first_step, Parents::kMaxAgeSteps);
  }
  EXPECT_EQ(oldest, kMaxOlderSteps);
}

TEST(Parents, OneWithoutCallsForLongIsForgotten) {
  BookOfParents book;
  book.Begin("a", 0, 3, 50);
  book.End("a", 10, 5);
  EXPECT_EQ(book.parents.Find("a", 5 + Parents::kIdleSteps, 0)->deadline_us, 50);
  const auto anew = book.Begin("a", 6 + Parents::kIdleSteps, 1);
  EXPECT_EQ(anew->first_step, 6 + Parents::kIdleSteps);
  EXPECT_EQ(anew->generated_tokens, 0);
  EXPECT_EQ(anew->deadline_us, RequestSpec::kNoDeadline);
}

TEST(Parents, TheEarliestDeadlineOfItsCallsHoldsForAll) {
  BookOfParents book;
  book.Begin("a", 0, std::nullopt, 900);
  EXPECT_EQ(book.Begin("a", 1, std::nullopt, 700)->deadline_us, 900);
  EXPECT_EQ(book.Begin("a", 2, std::nullopt, 800)->deadline_us, 700);
  EXPECT_EQ(book.parents.Deadline("a"), 700);
  EXPECT_EQ(book.parents.Deadline("b"), RequestSpec::kNoDeadline);
  EXPECT_THAT(book.parents.Calls("b"), ::testing::IsEmpty());
}

}  // namespace
}  // namespace bfio::core
