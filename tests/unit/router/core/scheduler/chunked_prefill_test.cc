// Prompts that take several steps. As worker/engine/engine.h defines, such a prompt counts whole in each of
// its steps and generates no token in them. Reports name these requests, so that accounts, tenants' charges,
// learnt lengths and reserved memory are in tokens, not in steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "router/core/lookahead/no_lookahead.h"
#include "router/core/policy/place_in_order.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

// Places every request that fits on worker 0, in order.
class Watcher : public Policy {
 public:
  absl::string_view name() const override { return "watcher"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    FreeCapacity free;
    free.Reset(snapshot);
    PlaceInOrder(snapshot, free, decision.assignments,
                 [&](const WaitingView& request) { return free.Fits(request, 0) ? 0 : kNoWorker; });
  }
};

// A running request whose prompt takes `prefill_steps` steps.
struct Running {
  RequestId id;
  int64_t prompt;
  int64_t prefill_steps;
  int64_t output;
  int64_t step = 0;

  int64_t Load() const { return prompt + std::max<int64_t>(0, step - prefill_steps); }
};

class ChunkedPrefillTest : public ::testing::Test {
 protected:
  ChunkedPrefillTest() { Open({}); }

  // Opens an epoch of one worker without requests.
  void Open(const SchedulerOptions& options, std::unique_ptr<Lookahead> lookahead = nullptr,
            int64_t kv_tokens = 100000) {
    scheduler_ = std::make_unique<OneGroup>(options, std::make_unique<Watcher>(), std::move(lookahead));
    std::vector<EpochMember> members(1);
    members[0].spec = {8, kv_tokens, true};
    scheduler_->OpenEpoch(members);
    requests_.clear(), running_.clear();
    step_ = planned_ = 0;
  }

  void Enqueue(RequestId id, int64_t prompt, int64_t prefill_steps, int64_t max_new, int64_t output = 0) {
    RequestSpec spec;
    spec.id = id;
    spec.prefill_tokens = prompt;
    spec.max_new_tokens = max_new;
    ASSERT_TRUE(scheduler_->Enqueue(spec).ok());
    requests_.push_back({id, prompt, prefill_steps, output == 0 ? max_new : output});
  }

  // One step in lockstep: plan, run, report. Returns the load that was reported.
  int64_t Step() {
    const auto plan = scheduler_->MakePlan();
    if (plan) {
      planned_ = plan->apply_step;
      for (const Placement& placement : plan->placements) {
        for (const Running& request : requests_) {
          if (request.id == placement.id) running_.push_back(request);
        }
      }
    }
    StepReport report;
    report.step = ++step_;
    report.applied_plan = planned_;
    PrefillReport& prefill = report.prefill.emplace();
    prefill.token_budget = 512;
    std::vector<RequestId> finished;
    std::vector<Running> left;
    for (Running& request : running_) {
      ++request.step;
      report.load_tokens += request.Load();
      if (request.step == request.prefill_steps + request.output - 1) {
        finished.push_back(request.id);
      } else {
        left.push_back(request);
        const int64_t steps = request.prefill_steps - request.step;
        if (steps > 0)
          prefill.prompts.push_back({request.id, steps * request.prompt / request.prefill_steps});
      }
    }
    running_ = left;
    report.finished = finished;
    report.group_idle = running_.empty();
    EXPECT_TRUE(scheduler_->OnReport(0, report).ok());
    return report.load_tokens;
  }

  std::unique_ptr<OneGroup> scheduler_;
  std::vector<Running> requests_, running_;
  int64_t step_ = 0, planned_ = 0;
};

TEST_F(ChunkedPrefillTest, StepsWithoutATokenAreNoDrift) {
  Enqueue(1, 1000, 4, 50);
  for (int i = 0; i < 20; ++i) Step();
  EXPECT_EQ(scheduler_->totals().drift_tokens, 0);
  EXPECT_EQ(scheduler_->totals().unknown_ids, 0);
  EXPECT_EQ(scheduler_->Account(0).load_tokens, 1000 + 17) << "the next step's load, exactly";
}

TEST_F(ChunkedPrefillTest, TheViewIsRightWhilePromptsAreUnderWay) {
  Enqueue(1, 1000, 4, 50);
  Enqueue(2, 500, 2, 50);
  for (int i = 0; i < 30; ++i) {
    const int64_t reckoned = i == 0 ? 1500 : scheduler_->Account(0).load_tokens;
    // A prompt that is still being computed in the next step generates no token in it.
    EXPECT_EQ(Step(), reckoned) << "step " << i + 1;
  }
}

TEST_F(ChunkedPrefillTest, AnEndedRequestLeavesNothingBehind) {
  Enqueue(1, 1000, 4, 5);  // ends in step 8
  Enqueue(2, 100, 1, 50);
  for (int i = 0; i < 8; ++i) Step();
  EXPECT_EQ(scheduler_->placed(), 1);
  EXPECT_EQ(scheduler_->Account(0).load_tokens, 100 + 8);
  EXPECT_EQ(scheduler_->totals().drift_tokens, 0);
}

TEST_F(ChunkedPrefillTest, ATenantPaysForTokensNotForSteps) {
  Enqueue(1, 1000, 4, 5);
  for (int i = 0; i < 8; ++i) Step();
  ASSERT_EQ(scheduler_->placed(), 0);
  const double in_chunks = scheduler_->cluster().pool().service().Served(0);
  Open({});
  Enqueue(2, 1000, 1, 5);
  for (int i = 0; i < 5; ++i) Step();
  ASSERT_EQ(scheduler_->placed(), 0);
  EXPECT_EQ(scheduler_->cluster().pool().service().Served(0), in_chunks);
}

// Records the lengths that it observes.
class Lengths final : public NoLookahead {
 public:
  explicit Lengths(std::vector<int64_t>* seen) : seen_(seen) {}
  absl::string_view name() const override { return "lengths"; }
  bool learns() const override { return true; }
  void Observe(const Resident&, const HintTrail&, int64_t, int64_t to, bool finished) override {
    if (finished) seen_->push_back(to);
  }

 private:
  std::vector<int64_t>* const seen_;
};

TEST_F(ChunkedPrefillTest, WhatIsLearntOfLengthsIsTokensNotSteps) {
  std::vector<int64_t> seen;
  Open({}, std::make_unique<Lengths>(&seen));
  // Ends by itself after 5 of at most 50 tokens.
  Enqueue(1, 1000, 4, 50, /*output=*/5);
  for (int i = 0; i < 8; ++i) Step();
  ASSERT_EQ(scheduler_->placed(), 0);
  EXPECT_THAT(seen, ::testing::ElementsAre(5));
}

// Memory for 150 tokens. One running request holds 100 + 10, and another needs 30 + 40 at its end. Both fit
// only if the first one ends before that.
TEST_F(ChunkedPrefillTest, MemoryIsHeldForAsLongAsPromptsTakeOfLate) {
  for (const auto kind : {KvAdmissionOptions::Kind::kFeasible, KvAdmissionOptions::Kind::kMcSf}) {
    for (const int64_t steps : {1, 40}) {
      SchedulerOptions options;
      options.admission.kind = kind;
      Open(options, *MakeLookahead("max_tokens"), /*kv_tokens=*/150);
      // A first request, so that reports have shown how long prompts take.
      Enqueue(1, 60, steps, 2);
      for (int64_t i = 0; i < steps + 1; ++i) Step();
      ASSERT_EQ(scheduler_->placed(), 0);
      Enqueue(2, 100, steps, 10);
      Step();
      ASSERT_TRUE(scheduler_->WorkerOf(2).has_value());
      Enqueue(3, 30, 1, 40);
      scheduler_->MakePlan();
      EXPECT_EQ(scheduler_->WorkerOf(3).has_value(), steps == 1) << steps;
    }
  }
}

}  // namespace
}  // namespace bfio::core
