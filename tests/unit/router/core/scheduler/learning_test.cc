// What a lookahead observes of requests, compared with what they did: finishes, cut-offs, cancellations, lost
// workers and new epochs, in lockstep.
#include <gtest/gtest.h>

#include <map>

#include "common/base/rng.h"
#include "router/core/lookahead/no_lookahead.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

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

class FirstFit : public Policy {
 public:
  absl::string_view name() const override { return "first_fit"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    int32_t next = 0;
    for (size_t g = 0; g < snapshot.workers.size(); ++g) {
      for (int32_t s = 0; s < snapshot.workers[g].free_slots; ++s) {
        if (next < static_cast<int32_t>(snapshot.waiting.size())) {
          decision.assignments.push_back({next++, static_cast<WorkerIndex>(g)});
        }
      }
    }
  }
};

struct Truth {
  RequestSpec spec;
  int64_t length = 0;  // observed from its first token on
  int64_t age = 0;
  WorkerIndex worker = -1;
  enum { kWaiting, kRunning, kFinished, kCut, kCancelled } state = kWaiting;
  std::vector<std::pair<int64_t, double>> hints;
};

struct LearningWorld {
  explicit LearningWorld(uint64_t seed) : rng(seed) {
    auto owned = std::make_unique<Recorder>();
    recorder = owned.get();
    scheduler =
        std::make_unique<OneGroup>(SchedulerOptions(), std::make_unique<FirstFit>(), std::move(owned));
    Open();
  }

  void Open() {
    // Some workers are lost together with their requests.
    const int32_t workers = 1 + static_cast<int32_t>(rng.Below(3));
    std::vector<EpochMember> members(workers);
    for (EpochMember& member : members) member.spec = {6, 1 << 20, true};
    for (auto& [id, r] : requests) {
      if (r.state != Truth::kRunning || r.worker >= workers) continue;
      members[r.worker].resident.push_back({id, 0});
    }
    for (const RequestId id : scheduler->OpenEpoch(members)) {
      Truth& r = requests.at(id);
      r.state = Truth::kWaiting;
      r.spec.prefill_tokens += r.age - r.spec.generated_tokens;
      r.spec.max_new_tokens -= r.age - r.spec.generated_tokens;
      r.spec.generated_tokens = r.age;
      scheduler->Requeue(r.spec);
    }
    step = 0;
    this->workers = workers;
  }

  void Arrive() {
    Truth r;
    r.spec.id = next++;
    r.spec.prefill_tokens = 5;
    r.spec.tenant = static_cast<uint32_t>(rng.Below(3));
    r.length = 1 + static_cast<int64_t>(rng.Below(60));
    r.spec.max_new_tokens = rng.Below(3) == 0 ? 1 + static_cast<int64_t>(rng.Below(40)) : 1000;
    ASSERT_TRUE(scheduler->Enqueue(r.spec).ok());
    requests[r.spec.id] = r;
  }

  void Step() {
    const std::optional<Plan> plan = scheduler->MakePlan();
    if (!plan) return;
    for (const Placement& p : plan->placements) {
      requests[p.id].worker = p.worker;
      requests[p.id].state = Truth::kRunning;
    }
    for (const Drop& drop : plan->drops) requests[drop.id].state = Truth::kCancelled;
    ++step;
    ++steps;
    std::vector<std::vector<RequestId>> finished(workers);
    std::vector<std::vector<CompletionHint>> hints(workers);
    std::vector<int64_t> loads(workers, 0);
    bool idle = true;
    for (auto& [id, r] : requests) {
      if (r.state != Truth::kRunning) continue;
      loads[r.worker] += r.spec.prefill_tokens + r.age - r.spec.generated_tokens;
      ++r.age;
      const double hint = rng.Uniform();
      hints[r.worker].push_back({id, hint});
      const int64_t cap = r.spec.generated_tokens + r.spec.max_new_tokens;
      if (r.age == std::min(r.length, cap)) {
        r.state = r.age < cap ? Truth::kFinished : Truth::kCut;
        finished[r.worker].push_back(id);
      } else {
        r.hints.emplace_back(r.age, hint);
        idle = false;
      }
    }
    for (int32_t g = 0; g < workers; ++g) {
      StepReport report;
      report.step = report.applied_plan = step;
      report.load_tokens = loads[g];
      report.finished = finished[g];
      report.hints = hints[g];
      report.group_idle = idle;
      ASSERT_TRUE(scheduler->OnReport(g, report).ok());
    }
  }

  Rng rng;
  Recorder* recorder = nullptr;
  std::unique_ptr<OneGroup> scheduler;
  std::map<RequestId, Truth> requests;
  RequestId next = 1;
  int64_t step = 0, steps = 0;
  int32_t workers = 0;
};

TEST(Learning, ALookaheadGetsExactlyWhatRequestsDid) {
  int finished = 0, cut = 0, cancelled = 0, replayed = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    LearningWorld world(seed);
    for (int i = 0; i < 250; ++i) {
      if (world.rng.Below(3) != 0) world.Arrive();
      if (world.rng.Below(10) == 0 && world.next > 1) {
        const RequestId id = 1 + world.rng.Below(world.next - 1);
        Truth& r = world.requests[id];
        const auto outcome = world.scheduler->Cancel(id);
        if (outcome == CancelOutcome::kDequeued) r.state = Truth::kCancelled;
      }
      world.Step();
      if (world.rng.Below(40) == 0) world.Open();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << world.steps;
    }
    EXPECT_EQ(world.recorder->steps, world.steps);
    EXPECT_EQ(world.scheduler->totals().drift_tokens, 0);
    for (const auto& [id, r] : world.requests) {
      const Recorder::Life& life = world.recorder->lives[id];
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", request " << id);
      replayed += r.spec.generated_tokens > 0;
      EXPECT_LE(life.from, 0);
      EXPECT_EQ(life.finished, r.state == Truth::kFinished);
      switch (r.state) {
        case Truth::kFinished:
          EXPECT_EQ(life.to, r.length);
          ++finished;
          break;
        case Truth::kCut:
          EXPECT_EQ(std::max<int64_t>(0, life.to), r.age - 1);
          ++cut;
          break;
        case Truth::kCancelled:
          EXPECT_EQ(std::max<int64_t>(0, life.to), r.age);
          ++cancelled;
          break;
        default:
          EXPECT_LE(life.to, r.age);
          EXPECT_GE(std::max<int64_t>(0, life.to), r.age - Residents::kSettleSteps);
      }
      // Hints of requests that will be dropped may be left out.
      if (r.state != Truth::kCancelled) {
        EXPECT_EQ(life.hints, r.hints);
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
