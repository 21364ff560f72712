// Accounts of the workers' memory (KvBooks): incremental updates against accounts built from scratch.
#include "router/core/admission/kv_books.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/base/rng.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::core {
namespace {

// A worker's residents arrive, start late, outlive their predictions and leave. Books that get only the
// changes must equal books that get all residents.
TEST(KvBooks, IncrementalUpdatesEqualBooksFromScratch) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Rng rng(seed);
    const auto lookahead = *MakeLookahead(seed % 2 == 0 ? "oracle" : "max_tokens");
    KvBooks books, fresh;
    books.Reset(1);
    fresh.Reset(1);
    std::vector<Resident> residents;
    std::vector<RequestId> changed;
    PlanTime time;
    RequestId id = 0;
    for (int plan = 0; plan < 60; ++plan) {
      for (uint64_t n = rng.Below(3); n > 0; --n) {
        Resident& one = residents.emplace_back();
        one.id = ++id;
        one.first_step = time.plan_step;
        one.prefill_tokens = 1 + static_cast<int64_t>(rng.Below(50));
        one.max_new_tokens = 1 + static_cast<int64_t>(rng.Below(30));
        one.expected_tokens = 1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(one.max_new_tokens)));
        one.inflight = true;
        one.reserves_kv = rng.Below(5) == 0;
        changed.push_back(id);
      }
      const int64_t passed = static_cast<int64_t>(rng.Below(3));
      time.plan_step += passed;
      time.reported_step += passed;
      std::erase_if(residents, [&](Resident& one) {
        if (one.inflight && rng.Below(2) == 0) {
          one.inflight = false;
          one.first_step = std::max(one.first_step, time.reported_step);
        } else if (rng.Below(30) == 0) {
          one.dropped = true;
        } else if (one.inflight ||
                   (time.reported_step < one.first_step + one.max_new_tokens - 1 && rng.Below(12) != 0)) {
          return false;
        } else {
          changed.push_back(one.id);
          return true;
        }
        changed.push_back(one.id);
        return false;
      });
      KvChanges some, all;
      all.anew = true;
      for (size_t i = 0; i < residents.size(); ++i) {
        const auto index = static_cast<int32_t>(i);
        const int64_t prompt_steps = residents[i].inflight ? residents[i].prefill_tokens / 20 : 0;
        all.changed.push_back({index, prompt_steps});
        if (residents[i].inflight || std::count(changed.begin(), changed.end(), residents[i].id) > 0)
          some.changed.push_back({index, prompt_steps});
      }
      for (const RequestId other : changed) {
        if (std::none_of(residents.begin(), residents.end(), [&](auto& one) { return one.id == other; }))
          some.gone.push_back(other);
      }
      changed.clear();
      books.Update(0, *lookahead, residents, time, some);
      fresh.Update(0, *lookahead, residents, time, all);
      for (int64_t step = time.plan_step; step < time.plan_step + 70; ++step) {
        ASSERT_EQ(books.memory(0).At(step), fresh.memory(0).At(step))
            << "seed " << seed << ", plan " << plan << ", step " << step;
      }
      ASSERT_EQ(books.memory(0).size(), fresh.memory(0).size());
    }
  }
}

}  // namespace
}  // namespace bfio::core
