// Prompts that take several steps, as worker/engine/engine.h says they count: whole in each of them, without
// a token. The scheduler reckons one more token each step, and takes on what the reports say instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

// All to worker 0, as they come; remembers what it was shown.
class Watcher : public Policy {
 public:
  absl::string_view name() const override { return "watcher"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override {
    load_ = snapshot.workers[0].load_tokens;
    for (int32_t i = 0; i < static_cast<int32_t>(snapshot.waiting.size()); ++i)
      decision.assignments.push_back({i, 0});
  }
  int64_t load_ = 0;
};

// A worker whose request i takes `prefill_steps` of its steps for its prompt.
struct Running {
  RequestId id;
  int64_t prompt;
  int64_t prefill_steps;
  int64_t max_new;
  int64_t step = 0;

  int64_t Load() const { return prompt + std::max<int64_t>(0, step - prefill_steps); }
};

class ChunkedPrefillTest : public ::testing::Test {
 protected:
  ChunkedPrefillTest() {
    SchedulerOptions options;
    auto owned = std::make_unique<Watcher>();
    policy_ = owned.get();
    scheduler_ = std::make_unique<OneGroup>(options, std::move(owned));
    std::vector<EpochMember> members(1);
    members[0].spec = {8, 100000, true};
    scheduler_->OpenEpoch(members);
  }

  void Enqueue(RequestId id, int64_t prompt, int64_t prefill_steps, int64_t max_new) {
    RequestSpec spec;
    spec.id = id;
    spec.prefill_tokens = prompt;
    spec.max_new_tokens = max_new;
    ASSERT_TRUE(scheduler_->Enqueue(spec).ok());
    requests_.push_back({id, prompt, prefill_steps, max_new});
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
    std::vector<RequestId> finished;
    std::vector<Running> left;
    for (Running& request : running_) {
      ++request.step;
      report.load_tokens += request.Load();
      if (request.step == request.prefill_steps + request.max_new - 1) {
        finished.push_back(request.id);
      } else {
        left.push_back(request);
      }
    }
    running_ = left;
    report.finished = finished;
    report.group_idle = running_.empty();
    EXPECT_TRUE(scheduler_->OnReport(0, report).ok());
    return report.load_tokens;
  }

  Watcher* policy_ = nullptr;
  std::unique_ptr<OneGroup> scheduler_;
  std::vector<Running> requests_, running_;
  int64_t step_ = 0, planned_ = 0;
};

TEST_F(ChunkedPrefillTest, TheDriftIsOneTokenPerExtraStepOfAPromptAndThenNoMore) {
  Enqueue(1, 1000, 4, 50);
  for (int i = 0; i < 20; ++i) Step();
  EXPECT_EQ(scheduler_->totals().drift_tokens, 3);
  EXPECT_EQ(scheduler_->totals().unknown_ids, 0);
  EXPECT_EQ(scheduler_->Account(0).load_tokens, 1000 + 17) << "the next step's load, exactly";
}

TEST_F(ChunkedPrefillTest, TheViewIsOffByAtMostThePromptsUnderWayAndRightAfterwards) {
  Enqueue(1, 1000, 4, 50);
  Enqueue(2, 500, 2, 50);
  for (int i = 0; i < 30; ++i) {
    const int64_t reckoned = i == 0 ? 1500 : scheduler_->Account(0).load_tokens;
    const int64_t load = Step();
    EXPECT_LE(std::abs(load - reckoned), i < 5 ? 2 : 0) << "step " << i + 1;
  }
}

TEST_F(ChunkedPrefillTest, WhatAnEndedRequestLeavesBehindIsTakenBackByTheNextReport) {
  Enqueue(1, 1000, 4, 5);  // ends in step 8
  Enqueue(2, 100, 1, 50);
  for (int i = 0; i < 8; ++i) Step();
  EXPECT_EQ(scheduler_->placed(), 1);
  EXPECT_EQ(scheduler_->Account(0).load_tokens, 100 + 8 - 3) << "for one step, 3 tokens short";
  Step();
  EXPECT_EQ(scheduler_->Account(0).load_tokens, 100 + 9);
  EXPECT_EQ(scheduler_->totals().drift_tokens, 2 * 3) << "there and back";
}

}  // namespace
}  // namespace bfio::core
