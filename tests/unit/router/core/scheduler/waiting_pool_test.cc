#include "router/core/scheduler/waiting_pool.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "common/base/rng.h"

namespace bfio::core::waiting_pool_test {

using ::testing::ElementsAre;

struct Waiting {
  RequestSpec spec;
  int64_t step = 0;
};

RequestSpec Spec(RequestId id, int32_t priority = 0) {
  return {.id = id, .prefill_tokens = 10, .max_new_tokens = 5, .priority = priority};
}

std::vector<RequestId> Ids(const WaitingPool& pool) {
  std::vector<RequestId> ids;
  for (const WaitingView& view : pool.views()) ids.push_back(view.id);
  return ids;
}

std::vector<RequestId> Ids(const std::vector<Waiting>& requests) {
  std::vector<RequestId> ids;
  for (const Waiting& request : requests) ids.push_back(request.spec.id);
  return ids;
}

// Higher classes first, then by age and seniority, then by deadline; by arrival where all are equal.
bool Before(const Waiting& a, const Waiting& b) {
  const auto rank = [](const Waiting& of) {
    return std::tuple(-of.spec.priority, of.step - of.spec.seniority, of.spec.deadline_us);
  };
  return rank(a) < rank(b);
}

// Compared with a sorted list, for any additions, returns and removals, also while requests are hidden.
TEST(WaitingPool, IsASortedListOfTheRequestsThatAGroupCanRun) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    WaitingPool pool;
    std::vector<Waiting> all;
    RequestId next = 1;
    const bool one_model = seed % 3 == 0;
    const auto step_of = [&](int64_t turn) { return 3 * turn + static_cast<int64_t>(rng.Below(2)); };
    for (int turn = 0; turn < 8; ++turn) {
      for (uint64_t n = rng.Below(8); n > 0; --n) {
        Waiting request = {Spec(next++, static_cast<int32_t>(rng.Below(3)) - 1), step_of(turn)};
        request.spec.model = static_cast<uint32_t>(rng.Below(one_model ? 2 : 3));
        if (rng.Below(4) == 0) request.spec.needs = 1 + static_cast<uint32_t>(rng.Below(3));
        if (rng.Below(4) == 0) request.spec.max_new_tokens = static_cast<int64_t>(5 + rng.Below(100));
        request.spec.computed_tokens = static_cast<int64_t>(rng.Below(10));
        if (rng.Below(3) == 0) request.spec.seniority = static_cast<int64_t>(rng.Below(9)) - 3;
        if (rng.Below(3) == 0) request.spec.deadline_us = 500 + static_cast<int64_t>(rng.Below(2));
        if (rng.Below(4) > 0) {
          all.insert(std::upper_bound(all.begin(), all.end(), request, Before), request);
          pool.Add(request.spec, request.step);
        } else {
          // Placed and returned: ahead of equally urgent ones.
          request.step = step_of(turn - static_cast<int64_t>(rng.Below(4)));
          all.insert(std::lower_bound(all.begin(), all.end(), request, Before), request);
          pool.Return(request.spec, request.step);
        }
      }
      if (rng.Below(2) == 0 && !all.empty()) {
        const auto gone = all.begin() + static_cast<int64_t>(rng.Below(all.size()));
        EXPECT_TRUE(pool.Remove(gone->spec.id));
        EXPECT_FALSE(pool.Remove(gone->spec.id));
        EXPECT_FALSE(pool.Contains(gone->spec.id));
        all.erase(gone);
      }
      const auto model = static_cast<uint32_t>(rng.Below(4));
      GroupAbility ability = {.model = model, .lacks = static_cast<uint32_t>(rng.Below(4))};
      if (rng.Below(2) == 0) ability.max_sequence_tokens = static_cast<int64_t>(15 + rng.Below(100));
      pool.Hide(ability);
      std::vector<Waiting> seen;
      for (const Waiting& request : all) {
        const RequestSpec& spec = request.spec;
        if ((model == 0 || spec.model == 0 || spec.model == model) && (spec.needs & ability.lacks) == 0 &&
            spec.prefill_tokens + spec.max_new_tokens <= ability.max_sequence_tokens) {
          seen.push_back(request);
        }
      }
      ASSERT_EQ(Ids(pool), Ids(seen));
      EXPECT_EQ(pool.hidden(), std::ssize(all) - std::ssize(seen));
      for (const Waiting& request : all) ASSERT_TRUE(pool.Contains(request.spec.id));
      // A request that enters with a batch is behind all visible ones, and so behind those hidden there.
      if (rng.Below(2) == 0) {
        all.push_back({Spec(next++, -2), 3 * turn});
        seen.push_back(all.back());
        pool.Add(all.back().spec, all.back().step);
      }
      std::vector<Assignment> chosen;
      for (size_t i = 0; i < seen.size(); ++i) {
        if (rng.Below(3) > 0) continue;
        chosen.push_back({static_cast<int32_t>(i), 0});
        std::erase_if(all, [&](const Waiting& of) { return of.spec.id == seen[i].spec.id; });
      }
      pool.RemoveMany(chosen);
      pool.ShowAll();
      ASSERT_EQ(Ids(pool), Ids(all));
      int64_t tokens = 0;
      for (const Waiting& request : all) tokens += 10 - request.spec.computed_tokens;
      ASSERT_EQ(pool.tokens_to_compute(), tokens);
    }
  }
}

// A lost group's requests return, of several classes, and refused ones among others of their age.
TEST(WaitingPool, RequestsThatReturnMoveTheOthersOnce) {
  WaitingPool pool;
  constexpr int kRequests = 4000;
  RequestId id = 0;
  for (int i = 0; i < kRequests; ++i) pool.Add(Spec(++id), 2 * i);
  for (int i = 0; i < kRequests; ++i) pool.AddFront(Spec(++id, 1 + i % 3), 0);
  for (int i = kRequests; i > 0; --i) pool.Return(Spec(++id), 2 * i);
  const std::vector<RequestId> ids = Ids(pool);
  ASSERT_EQ(std::ssize(ids), 3 * kRequests);
  EXPECT_THAT(std::vector(ids.begin(), ids.begin() + 2), ElementsAre(2 * kRequests - 1, 2 * kRequests - 4));
  EXPECT_THAT(std::vector(ids.end() - 3, ids.end()),
              ElementsAre(2 * kRequests + 2, kRequests, 2 * kRequests + 1));
  EXPECT_LE(pool.moved(), 3 * kRequests);
}

// A client that goes takes all its requests with it.
TEST(WaitingPool, RequestsThatAreCancelledTogetherTakeOnePass) {
  WaitingPool pool;
  constexpr RequestId kRequests = 4000;
  for (RequestId id = 1; id <= kRequests; ++id) pool.Add(Spec(id), 0);
  for (RequestId id = 1; id < kRequests; ++id) EXPECT_TRUE(pool.Remove(id));
  EXPECT_FALSE(pool.Remove(1));
  EXPECT_EQ(pool.size(), 1);
  pool.Add(Spec(2, 1), 0);
  EXPECT_THAT(Ids(pool), ElementsAre(2, kRequests));
  EXPECT_LE(pool.moved(), kRequests + 1);
}

}  // namespace bfio::core::waiting_pool_test
