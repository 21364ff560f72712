// What a lookahead observes of requests, compared with what they did: finishes, cut-offs, cancellations, lost
// workers and new epochs, in lockstep.
#include <gtest/gtest.h>

#include <map>

#include "absl/memory/memory.h"
#include "common/base/rng.h"
#include "router/core/lookahead/fixed_length.h"
#include "tests/unit/router/core/scheduler/chunk_group.h"

namespace bfio::core {
namespace {

using bfio::testing::ChunkGroup;
using bfio::testing::FirstFit;

// Records all observations by request.
class Recorder : public NoLookahead {
 public:
  struct Life {
    int64_t from = -1, to = -1;
    bool finished = false;
    std::vector<std::pair<int64_t, double>> hints;
  };
  absl::string_view name() const override { return "recorder"; }
  bool predicts() const override { return true; }
  bool learns() const override { return true; }
  bool uses_hints() const override { return true; }
  int32_t GroupOf(uint32_t tenant, int64_t prompt_tokens) override {
    EXPECT_EQ(prompt_tokens, 5) << "what was made earlier is no prompt";
    return static_cast<int32_t>(tenant) + 1;
  }
  void Observe(const Resident& resident, const HintTrail& trail, int64_t from, int64_t to,
               bool finished) override {
    Life& life = lives[resident.id];
    EXPECT_EQ(resident.group, static_cast<int32_t>(resident.tenant) + 1);
    EXPECT_FALSE(life.finished) << "request " << resident.id << " has ended before";
    if (life.from < 0) life.from = life.to = from;
    EXPECT_EQ(life.to, from) << "request " << resident.id << ": exposure must have neither gap nor overlap";
    EXPECT_LE(from, to);
    life.to = to;
    life.finished = finished;
  }
  void Hint(Resident& resident, HintTrail& trail, int64_t age, double probability) override {
    lives[resident.id].hints.emplace_back(age, probability);
  }
  void Advance() override { ++steps; }

  std::map<RequestId, Life> lives;
  int64_t steps = 0;
};

struct Truth {
  // Tokens generated in all placements.
  int64_t age = 0;
  bool replayed = false;
  enum { kGoesOn, kFinished, kCut, kCancelled } state = kGoesOn;
  std::vector<std::pair<int64_t, double>> hints;
};

// Prompts, above all those of requests that come back, may take several steps.
class LearningGroup : public ChunkGroup {
 public:
  explicit LearningGroup(uint64_t seed) : LearningGroup(seed, new Recorder) {}
  // Some workers are lost together with their requests.
  void Reopen() {
    Open(std::vector(1 + rng.Below(3), WorkerSpec{.slots = 6, .kv_tokens = 1 << 20}));
    for (auto& [id, truth] : truths)
      truth.replayed = truth.replayed || requests.at(id).spec.generated_tokens > 0;
  }
  void Turn() {
    if (rng.Below(3) != 0) {
      RequestSpec spec = {.id = truths.size() + 1, .prefill_tokens = 5, .max_new_tokens = 1000};
      spec.tenant = static_cast<uint32_t>(rng.Below(3));
      const auto length = 1 + static_cast<int64_t>(rng.Below(60));
      if (rng.Below(3) == 0) spec.max_new_tokens = 1 + static_cast<int64_t>(rng.Below(40));
      truths[spec.id] = {};
      Enqueue(spec, std::min(length, spec.max_new_tokens));
    }
    if (rng.Below(10) == 0 && !truths.empty()) {
      const RequestId id = 1 + rng.Below(truths.size());
      if (group.Cancel(id) == CancelOutcome::kDequeued) truths[id].state = Truth::kCancelled;
    }
    Step();
    if (rng.Below(40) == 0) Reopen();
  }

  Rng rng;
  Recorder* const recorder;
  std::map<RequestId, Truth> truths;
  int64_t steps = 0;

 protected:
  void OnPlan(const core::Plan& plan) override {
    for (const Drop& drop : plan.drops) truths[drop.id].state = Truth::kCancelled;
  }
  void Compute(size_t g, Done& done) override {
    steps += g == 0 ? 1 : 0;
    ChunkGroup::Compute(g, done);
    const auto hint = [&](RequestId id) -> Truth& {
      done.hints.push_back({id, rng.Uniform()});
      ++truths[id].age;
      return truths[id];
    };
    for (const Run& run : workers[g].runs) {
      if (run.prompt_left > 0) continue;
      Truth& truth = hint(run.spec.id);
      truth.hints.emplace_back(truth.age, done.hints.back().probability);
    }
    for (const RequestId id : done.finished) {
      const Run& run = requests.at(id);
      hint(id).state = run.output < run.spec.max_new_tokens ? Truth::kFinished : Truth::kCut;
    }
  }

 private:
  LearningGroup(uint64_t seed, Recorder* owned)
      : ChunkGroup({}, std::make_unique<FirstFit>(), BatchCost(), {}, absl::WrapUnique(owned)),
        rng(seed),
        recorder(owned) {
    budget = 16;
    Reopen();
  }
};

TEST(Learning, ALookaheadGetsExactlyWhatRequestsDid) {
  int finished = 0, cut = 0, cancelled = 0, replayed = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    LearningGroup group(seed);
    for (int i = 0; i < 250; ++i) {
      group.Turn();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << group.steps;
    }
    EXPECT_EQ(group.recorder->steps, group.steps);
    EXPECT_EQ(group.totals().drift_tokens, 0);
    for (const auto& [id, truth] : group.truths) {
      const Recorder::Life& life = group.recorder->lives[id];
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", request " << id);
      const int64_t to = std::max<int64_t>(0, life.to);
      replayed += truth.replayed;
      EXPECT_LE(life.from, 0);
      EXPECT_EQ(life.finished, truth.state == Truth::kFinished);
      switch (truth.state) {
        case Truth::kFinished:
          EXPECT_EQ(life.to, truth.age);
          ++finished;
          break;
        case Truth::kCut:
          EXPECT_EQ(to, truth.age - 1);
          ++cut;
          break;
        case Truth::kCancelled:
          EXPECT_EQ(to, truth.age);
          ++cancelled;
          break;
        default: EXPECT_LE(life.to, truth.age); EXPECT_GE(to, truth.age - Residents::kSettleSteps);
      }
      // Hints of requests that will be dropped may be left out.
      if (truth.state != Truth::kCancelled) {
        EXPECT_EQ(life.hints, truth.hints);
      }
    }
  }
  EXPECT_GT(finished, 500);
  EXPECT_GT(cut, 200);
  EXPECT_GT(cancelled, 100);
  EXPECT_GT(replayed, 20);
}

}  // namespace
}  // namespace bfio::core
