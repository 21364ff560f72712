// Shares of two tenants under bf_io_auto while both have requests waiting all the time: what each is served
// grows at the same rate, whatever their requests are like.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/policy.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

constexpr int kWorkers = 4;

// A tenant keeps `waiting` requests waiting; prompts are uniform in 1 .. 2 `prompt` and outputs in
// 1 .. 2 `output`.
struct Tenant {
  int waiting = 0;
  int64_t prompt = 0, output = 0;
};

// Workers in lockstep that whole requests are placed on.
class Shared {
 public:
  Shared(uint64_t seed, std::vector<Tenant> tenants)
      : rng_(seed),
        tenants_(std::move(tenants)),
        waiting_(tenants_.size()),
        group_({.plan_mode = PlanMode::kLockstep}, *MakePolicy("bf_io_auto", {})),
        running_(kWorkers) {
    std::vector<EpochMember> members(kWorkers);
    for (EpochMember& member : members) member.spec = {16, 100'000'000, true};
    group_.OpenEpoch(members);
  }

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) Step();
  }
  double Served(uint32_t tenant) const { return group_.cluster().pool().service().Served(tenant); }

 private:
  struct Request {
    uint32_t tenant;
    int64_t load, left;
  };

  void Step() {
    for (uint32_t t = 0; t < tenants_.size(); ++t) {
      for (; waiting_[t] < tenants_[t].waiting; ++waiting_[t]) {
        const Request request = {t, Draw(tenants_[t].prompt), Draw(tenants_[t].output)};
        requests_[++last_] = request;
        RequestSpec spec = {
            .id = last_, .prefill_tokens = request.load, .max_new_tokens = 1 << 20, .tenant = t};
        ASSERT_TRUE(group_.Enqueue(spec).ok());
      }
    }
    const auto plan = group_.MakePlan();
    ASSERT_TRUE(plan);
    for (const Placement& placement : plan->placements) {
      running_[static_cast<size_t>(placement.worker)].push_back(placement.id);
      --waiting_[requests_[placement.id].tenant];
    }
    ++step_;
    for (size_t g = 0; g < kWorkers; ++g) {
      StepReport report = {.step = step_, .applied_plan = plan->apply_step};
      std::vector<RequestId> finished;
      for (const RequestId id : running_[g]) {
        report.load_tokens += requests_[id].load++;
        if (--requests_[id].left == 0) finished.push_back(id);
      }
      std::erase_if(running_[g], [&](RequestId id) { return requests_[id].left == 0; });
      report.finished = finished;
      ASSERT_TRUE(group_.OnReport(static_cast<WorkerIndex>(g), report).ok());
    }
  }
  int64_t Draw(int64_t mean) { return 1 + static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(2 * mean))); }

  Rng rng_;
  const std::vector<Tenant> tenants_;
  std::vector<int> waiting_;
  OneGroup group_;
  std::vector<std::vector<RequestId>> running_;
  std::map<RequestId, Request> requests_;
  int64_t step_ = 0;
  RequestId last_ = 0;
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
