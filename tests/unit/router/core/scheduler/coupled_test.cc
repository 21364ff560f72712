// Ranks that meet in a barrier inside their engines: the group counts their common steps, and releases
// prompts in waves over the ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "tests/unit/router/core/scheduler/chunk_group.h"

namespace bfio::core::coupled_test {

using bfio::testing::ChunkGroup;
using bfio::testing::Request;

constexpr BatchCost kCost = {.c_s = 10e-3, .a_s_per_token = 50e-6, .b0_tokens = 0, .k2_s_per_token = 1e-8};

// A request that is sent during a step enters with the next one.
class Engines : public ChunkGroup {
 public:
  // `metered`: the engines limit their prompts to the plan's level.
  Engines(GroupKind kind, size_t ranks, bool metered = false)
      : ChunkGroup(Specs(ranks), *MakePolicy("bf_io_auto", {}), kCost, {}, nullptr, kind, metered) {}

  void Enqueue(RequestId id, int64_t prompt, int64_t output, PrefixBlocks prefix = nullptr) {
    RequestSpec spec = Request(id, prompt, output);
    spec.prefix = std::move(prefix);
    ChunkGroup::Enqueue(spec);
    ++in_system;
    Plan();
  }

  // Runs a step of all ranks, then delivers their reports and what the scheduler sends in response.
  void Step(int steps = 1) {
    for (; steps > 0; --steps) {
      std::fill(seconds.begin(), seconds.end(), 0);
      std::fill(computed.begin(), computed.end(), 0);
      ChunkGroup::Step();
      const double longest_s = *std::max_element(seconds.begin(), seconds.end());
      total_s += longest_s;
      waited_s += longest_s * static_cast<double>(in_system);
      slowest_s = std::max(slowest_s, longest_s);
      prompt_steps += std::accumulate(computed.begin(), computed.end(), int64_t{0}) > 0 ? 1 : 0;
    }
  }
  // Fills every rank with `each` decoding requests.
  void Fill(int64_t each) {
    for (int64_t i = 0; i < each * std::ssize(workers); ++i)
      Enqueue(1'000'000 + static_cast<RequestId>(i), 100, 100'000);
    Step(200);
    ASSERT_EQ(group.waiting(), 0);
    total_s = waited_s = slowest_s = 0;
    prompt_steps = 0;
  }
  // Next to 16 decodes on each rank, requests arrive at random; all end.
  void Serve(int64_t requests, uint64_t seed) {
    Fill(16);
    Rng rng(seed);
    for (int64_t id = 1; id <= requests; ++id) {
      Enqueue(static_cast<RequestId>(id), 200 + static_cast<int64_t>(rng.Below(600)), 40);
      Step(static_cast<int>(rng.Below(11)));
    }
    for (int i = 0; i < 4'000 && ended < requests; ++i) Step();
    EXPECT_EQ(ended, requests);
  }

  // Prompts that the rank has or that are on their way to it.
  int64_t Sent(size_t rank) const {
    int64_t sent = Prompts(rank);
    for (const Part& part : workers[rank].parts) sent += std::ssize(part.placed);
    return sent;
  }

  // Total duration of all steps; number of steps in which some rank computed prompt tokens; ended requests.
  double total_s = 0;
  int64_t prompt_steps = 0, ended = 0;
  // Requests that have arrived and not ended; the total time that requests have spent so; the longest step.
  int64_t in_system = 0;
  double waited_s = 0, slowest_s = 0;
  // Number of plans without placements that carry a level.
  int64_t plans_with_level = 0;

 protected:
  void OnPlan(const core::Plan& plan) override {
    plans_with_level += plan.level_s && plan.placements.empty() ? 1 : 0;
  }
  void OnReported(size_t, const Done& done) override {
    ended += std::ssize(done.finished);
    in_system -= std::ssize(done.finished);
  }

 private:
  static std::vector<WorkerSpec> Specs(size_t ranks) {
    std::vector<WorkerSpec> specs;
    for (uint64_t member = 1; member <= ranks; ++member) {
      specs.push_back(
          {.slots = 64, .kv_tokens = 100'000'000, .prefix_cache = true, .member = member, .cost = kCost});
    }
    return specs;
  }
};

TEST(Coupled, AStepHasEndedWhenEveryRankWithRequestsHasReported) {
  Engines engines(GroupKind::kCoupled, 4);
  engines.Enqueue(1, 10, 1'000);
  engines.Enqueue(2, 10, 1'000);
  engines.Step(3);
  const int64_t before = engines.group.reported_step(), now = engines.group.NextStep();
  engines.Step(100);
  EXPECT_EQ(engines.group.reported_step() - before, 100) << "two of four ranks have requests";
  EXPECT_EQ(engines.group.NextStep() - now, 100) << "ages are counted in the same steps";
}

TEST(Coupled, PromptsAreReleasedInWaves) {
  Engines coupled(GroupKind::kCoupled, 4), independent(GroupKind::kIndependent, 4);
  for (Engines* engines : {&coupled, &independent}) engines->Serve(200, 5);
  EXPECT_LT(static_cast<double>(coupled.prompt_steps), 0.75 * static_cast<double>(independent.prompt_steps));
  EXPECT_LT(coupled.total_s, independent.total_s);
}

// For engines that report their steps, the plan sets what they compute, not only what is sent to them.
TEST(Coupled, MeteredEnginesSpreadPromptsOverStepsWithoutDelayingRequests) {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(seed);
    Engines waves(GroupKind::kCoupled, 4), metered(GroupKind::kCoupled, 4, true);
    for (Engines* engines : {&waves, &metered}) engines->Serve(400, seed);
    // Measured ratios: up to 1.016, and 9.6 to 10.1. The longest step is as long as a wave.
    EXPECT_LT(metered.waited_s, 1.04 * waves.waited_s);
    EXPECT_GT(metered.prompt_steps, 5 * waves.prompt_steps);
  }
}

TEST(Coupled, ALevelComesOncePerStepAndGoesWithTheLastPrompt) {
  Engines engines(GroupKind::kCoupled, 2, true);
  engines.Fill(16);
  engines.Enqueue(1, 3'000, 5);
  engines.Enqueue(2, 3'000, 5);
  EXPECT_EQ(engines.group.MakePlan(), std::nullopt);
  int64_t with_level = 0;
  for (int i = 0; i < 400 && engines.ended < 2; ++i) {
    const int64_t before = engines.plans_with_level;
    engines.Step();
    ASSERT_LE(engines.plans_with_level - before, 1);
    with_level += engines.plans_with_level - before;
  }
  EXPECT_EQ(engines.ended, 2);
  EXPECT_GT(with_level, 5);
  const int64_t then = engines.plans_with_level;
  engines.Step(50);
  EXPECT_EQ(engines.plans_with_level, then);
}

// Without the cache the second one would fill a step of the rank. These engines report the prompt tokens left
// as if nothing had been cached.
TEST(Coupled, PromptsThatAreMostlyCachedLeaveTheirRankRoomForMore) {
  for (const int64_t prompt : {500, 1'850}) {
    Engines engines(GroupKind::kCoupled, 2);
    std::vector<uint64_t> blocks(static_cast<size_t>(prompt / 64));
    std::iota(blocks.begin(), blocks.end(), 1);
    const auto text = std::make_shared<const std::vector<uint64_t>>(blocks);
    engines.Fill(1);
    engines.Enqueue(1, prompt, 5, text);
    engines.Step(20);
    ASSERT_EQ(engines.ended, 1);
    engines.Enqueue(2, prompt, 5, text);
    if (prompt > 512) {
      engines.Step();
    } else {
      for (RequestId id = 4; id <= 5; ++id) engines.Enqueue(id, prompt, 5, text);
    }
    engines.Enqueue(3, prompt, 5, text);
    EXPECT_EQ(engines.group.waiting(), 0);
    EXPECT_EQ(std::max(engines.Sent(0), engines.Sent(1)), prompt > 512 ? 2 : 4);
  }
}

}  // namespace bfio::core::coupled_test
