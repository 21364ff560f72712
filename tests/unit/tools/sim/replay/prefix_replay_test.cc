// A session of ranks with prefix caches: the log contains blocks, members and cache hits, so a replay places
// every request on the same rank as the router.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/scheduler/cluster.h"
#include "tests/testing/recorded_session.h"
#include "tools/sim/replay/session_replay.h"

namespace bfio::sim {
namespace {

using bfio::testing::MemoryLog;

constexpr core::RequestId kBase = 1 << 20;

struct Traffic {
  std::string policy = "least_work";
  int32_t slots = 4;
  // Up to this many requests arrive together every 20 turns, all with the same length; 0: one at a time.
  uint64_t burst = 0;
};

class PrefixSession {
 public:
  PrefixSession(uint64_t seed, const Traffic& traffic, MemoryLog::Segments* segments)
      : recorder_(std::make_unique<MemoryLog>(segments, 20'000), {"test", kBase}, core::SchedulerOptions(),
                  {traffic.policy, {}}, "none"),
        cluster_(core::SchedulerOptions(), {traffic.policy, {}}, {}, nullptr, &recorder_),
        traffic_(traffic),
        rng_(seed) {
    cluster_.Apply(core::AddGroup{0, core::GroupKind::kIndependent});
    Open({1, 2, 3});
  }

  void Run() {
    for (int turn = 0; turn < 900; ++turn) {
      // The same ranks in another order, and one new rank.
      if (turn == 300) Open({3, 1, 2});
      if (turn == 600) Open({2, 4, 1});
      if (traffic_.burst == 0 && rng_.Below(2) == 0) Arrive();
      if (traffic_.burst > 0 && turn % 20 == 0)
        for (uint64_t i = rng_.Below(traffic_.burst); i > 0; --i) Arrive();
      Plan();
      for (size_t g = 0; g < ranks_.size(); ++g) Step(g);
      recorder_.Flush();
    }
  }

 private:
  struct Running {
    core::RequestSpec spec;
    int64_t load = 0, left = 0;
    bool first = true;
  };
  struct Rank {
    std::vector<Running> running;
    int64_t step = 0, applied = 0;
  };

  void Open(const std::vector<uint64_t>& members) {
    core::OpenEpoch epoch{0, std::vector<core::EpochMember>(members.size())};
    for (size_t g = 0; g < members.size(); ++g) {
      epoch.members[g].spec = {.slots = traffic_.slots,
                               .kv_tokens = 8 * traffic_.slots * core::kPrefixBlockTokens,
                               .prefix_cache = true,
                               .member = members[g]};
    }
    ranks_.assign(members.size(), {});
    for (const core::RequestId id : cluster_.Apply(epoch).displaced)
      cluster_.Apply(core::Requeue{specs_.at(id)});
  }

  void Arrive() {
    core::RequestSpec spec = {.id = ++last_, .max_new_tokens = 40};
    std::vector<uint64_t> blocks;
    for (uint64_t i = 0, name = 1 + rng_.Below(8); i < 2 + rng_.Below(4); ++i)
      blocks.push_back(name = 8 * name + (i < 2 ? 0 : rng_.Below(3)));
    spec.prefill_tokens = static_cast<int64_t>(blocks.size()) * core::kPrefixBlockTokens + 5;
    spec.prefix = std::make_shared<const std::vector<uint64_t>>(std::move(blocks));
    if (cluster_.Apply(core::Enqueue{spec}).status.ok()) specs_[spec.id] = spec;
  }

  void Plan() {
    while (const auto plan = cluster_.Apply(core::MakePlan{0}).plan) {
      for (const core::Placement& placement : plan->placements) {
        const core::RequestSpec& spec = specs_.at(placement.id);
        const int64_t tokens = traffic_.burst > 0 ? 10 : 1 + static_cast<int64_t>(rng_.Below(30));
        ranks_[static_cast<size_t>(placement.worker)].running.push_back({spec, spec.prefill_tokens, tokens});
      }
      for (size_t g = 0; g < ranks_.size(); ++g)
        ranks_[g].applied = std::max(ranks_[g].applied, plan->apply_steps[g]);
    }
  }

  void Step(size_t g) {
    Rank& rank = ranks_[g];
    if (rank.running.empty()) return;
    core::StepReport report = {.step = ++rank.step, .applied_plan = rank.applied};
    std::vector<core::RequestId> finished;
    std::vector<core::CachedPrompt> cached;
    for (Running& one : rank.running) {
      report.load_tokens += one.load++;
      // Sometimes a rank finds fewer blocks than expected.
      if (std::exchange(one.first, false)) {
        const auto blocks = static_cast<int64_t>(rng_.Below(one.spec.prefix->size() + 1));
        cached.push_back({one.spec.id, blocks * core::kPrefixBlockTokens});
      }
      if (--one.left == 0) finished.push_back(one.spec.id);
    }
    std::erase_if(rank.running, [](const Running& one) { return one.left == 0; });
    report.finished = finished;
    report.cached = cached;
    report.group_idle = rank.running.empty();
    ASSERT_TRUE(cluster_.Apply(core::Report{0, static_cast<core::WorkerIndex>(g), report}).status.ok());
    Plan();
  }

  record::Recorder recorder_;
  core::Cluster cluster_;
  const Traffic traffic_;
  Rng rng_;
  std::vector<Rank> ranks_;
  std::map<core::RequestId, core::RequestSpec> specs_;
  core::RequestId last_ = kBase;
};

SessionReplay ReplayPrefixSession(const MemoryLog::Segments& segments) {
  SessionReplay replay(std::nullopt, [] { return 0.0; });
  for (const std::vector<record::Record>& segment : segments) {
    for (const record::Record& record : segment) EXPECT_TRUE(replay.Take(record).ok());
  }
  return replay;
}

MemoryLog::Segments Recorded(uint64_t seed, const Traffic& traffic) {
  MemoryLog::Segments segments;
  PrefixSession(seed, traffic, &segments).Run();
  return segments;
}

TEST(PrefixReplay, PlacementsByPrefixRepeat) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    MemoryLog::Segments segments = Recorded(seed, {});
    ASSERT_GT(segments.size(), 2u);
    const SessionReplay replay = ReplayPrefixSession(segments);
    EXPECT_GT(replay.counts().decisions, 100);
    EXPECT_EQ(replay.counts().identical, replay.counts().decisions) << replay.counts().first_difference;
    EXPECT_TRUE(replay.exact());
    // Placements depend on the block names: without them they differ.
    for (std::vector<record::Record>& segment : segments) {
      for (record::Record& record : segment) {
        auto* const logged = std::get_if<record::LoggedEvent>(&record);
        auto* const enqueue = logged == nullptr ? nullptr : std::get_if<core::Enqueue>(&logged->event);
        if (enqueue != nullptr) enqueue->request.prefix = nullptr;
      }
    }
    const SessionReplay without = ReplayPrefixSession(segments);
    EXPECT_LT(without.counts().identical, without.counts().decisions);
    if (HasFailure()) return;
  }
}

// Events while all slots are taken cause no decision and are not in the log. First-come waits cover a number
// of decisions if each admits many requests, and such events must not count.
TEST(PrefixReplay, EventsOfFullRanksChangeNoDecision) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    const SessionReplay replay =
        ReplayPrefixSession(Recorded(seed, {.policy = "bf_io_auto", .slots = 12, .burst = 140}));
    EXPECT_GT(replay.counts().decisions, 100);
    EXPECT_EQ(replay.counts().identical, replay.counts().decisions) << replay.counts().first_difference;
  }
}

}  // namespace
}  // namespace bfio::sim
