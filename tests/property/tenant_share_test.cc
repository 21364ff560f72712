// Shares of two tenants under bf_io_auto while both have requests waiting all the time: what each is served
// grows at the same rate, whatever their requests are like.
#include <gtest/gtest.h>

#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/policy.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core {
namespace {

using bfio::testing::Request;

constexpr int kWorkers = 4;

// A tenant keeps `waiting` requests waiting; prompts are uniform in 1 .. 2 `prompt` and outputs in
// 1 .. 2 `output`.
struct Tenant {
  int waiting = 0;
  int64_t prompt = 0, output = 0;
};

class Shared : public bfio::testing::StepGroup {
 public:
  Shared(uint64_t seed, std::vector<Tenant> tenants)
      : StepGroup(std::vector(kWorkers, WorkerSpec{.slots = 16, .kv_tokens = 100'000'000}),
                  *MakePolicy("bf_io_auto", {})),
        rng_(seed),
        tenants_(std::move(tenants)),
        waiting_(tenants_.size()) {}

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      for (uint32_t t = 0; t < tenants_.size(); ++t) {
        for (; waiting_[t] < tenants_[t].waiting; ++waiting_[t]) {
          RequestSpec spec = Request(requests.size() + 1, Draw(tenants_[t].prompt), 1 << 20);
          spec.tenant = t;
          Enqueue(spec, Draw(tenants_[t].output));
        }
      }
      Step();
    }
  }
  double Served(uint32_t tenant) const { return group.cluster().pool().service().Served(tenant); }

 private:
  void OnPlan(const core::Plan& plan) override {
    for (const Placement& placement : plan.placements) --waiting_[requests.at(placement.id).spec.tenant];
  }
  int64_t Draw(int64_t mean) { return 1 + static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(2 * mean))); }

  Rng rng_;
  const std::vector<Tenant> tenants_;
  std::vector<int> waiting_;
};

void ExpectEqualShares(const std::vector<Tenant>& tenants) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    Shared group(seed, tenants);
    // At first the free slots go to any request.
    group.Run(1'000);
    const double before[] = {group.Served(0), group.Served(1)};
    group.Run(8'000);
    EXPECT_NEAR((group.Served(0) - before[0]) / (group.Served(1) - before[1]), 1, 0.08) << "seed " << seed;
  }
}

TEST(TenantShares, AreEqualWhenOneHasManyMoreWaiting) {
  ExpectEqualShares({{200, 300, 50}, {8, 300, 50}});
}

TEST(TenantShares, AreEqualWhenOneHasThousandsOfLikeRequests) {
  Shared group(1, {{3'000, 1, 50}, {8, 1, 50}});
  group.Run(200);
  const double before[] = {group.Served(0), group.Served(1)};
  group.Run(800);
  EXPECT_NEAR((group.Served(0) - before[0]) / (group.Served(1) - before[1]), 1, 0.08);
}

TEST(TenantShares, AreEqualForShortAndLongPrompts) {
  ExpectEqualShares({{40, 3'000, 50}, {40, 50, 50}});
}

// Fewer than 1 % of the admissions are the first tenant's, so that the 99th percentile of waits in fair order
// is of the second one's, and far below the waits that the first one must have.
TEST(TenantShares, AreEqualForATenantOfFewLargeRequests) {
  ExpectEqualShares({{40, 4'000, 5}, {40, 20, 5}});
}

}  // namespace
}  // namespace bfio::core
