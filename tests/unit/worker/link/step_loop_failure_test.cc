// Requests that an engine cannot continue: they end, and the rank continues.
#include <map>
#include <set>
#include <utility>

#include "tests/testing/step_loop_ranks.h"

namespace bfio::worker {
namespace {

using ::testing::IsEmpty;

// The sim engine, with some handles that fail in their second step.
class FailingEngine final : public Engine {
 public:
  FailingEngine(std::unique_ptr<Engine> engine, std::set<Handle> poisoned)
      : engine_(std::move(engine)), poisoned_(std::move(poisoned)) {}

  absl::string_view name() const override { return engine_->name(); }
  const EngineLimits& limits() const override { return engine_->limits(); }
  absl::Status Admit(const SequenceRequest& request) override { return engine_->Admit(request); }
  bool Cancel(Handle handle) override { return engine_->Cancel(handle); }
  absl::Status Step(StepOutput& out) override {
    std::map<Handle, int64_t> loads;
    for (const ResidentSequence& sequence : engine_->resident()) loads[sequence.handle] = sequence.kv_tokens;
    const absl::Status status = engine_->Step(out);
    for (const Handle handle : poisoned_) {
      if (loads.count(handle) == 0 || ++steps_[handle] != 2) continue;
      out.tokens.erase(std::remove_if(out.tokens.begin(), out.tokens.end(),
                                      [&](const auto& token) { return token.handle == handle; }),
                       out.tokens.end());
      out.failed.push_back({handle, "poisoned"});
      out.load_tokens -= loads[handle];
      engine_->Cancel(handle);
    }
    return status;
  }
  int32_t active() const override { return engine_->active(); }
  int32_t free_slots() const override { return engine_->free_slots(); }
  int64_t free_kv_tokens() const override { return engine_->free_kv_tokens(); }
  std::vector<ResidentSequence> resident() const override { return engine_->resident(); }

 private:
  const std::unique_ptr<Engine> engine_;
  const std::set<Handle> poisoned_;
  std::map<Handle, int> steps_;
};

class StepLoopFailureTest : public StepLoopTest {
 protected:
  void StartFailing(std::set<Handle> poisoned) {
    auto rank = std::make_unique<TestRank>();
    rank->gate.Open();
    SimOptions options;
    options.limits = {4, 1000, 500};
    auto engine = MakeSimEngine(options, std::make_unique<GatedTimer>(&rank->gate));
    ASSERT_TRUE(engine.ok());
    recorder_ = std::make_unique<RankRecorder>("w0", options.limits);
    StepLoopOptions loop;
    loop.worker_id = "w0";
    loop.resume_buffer_bytes = 1 << 20;
    loop.recorder = recorder_.get();
    rank->loop = std::make_unique<StepLoop>(
        std::move(loop), std::make_unique<FailingEngine>(*std::move(engine), std::move(poisoned)),
        std::make_unique<LocalBarrierEndpoint>(hub_), rank->link);
    rank->thread = std::thread([r = rank.get()] { r->ended = r->loop->Run(); });
    ranks_.push_back(std::move(rank));
    ranks_[0]->inbox().OnStreamUp(1);
    ranks_[0]->offer = ranks_[0]->link.Next<Hello>().communicator_offer;
  }
  StepReport StepOnce(int64_t step, std::vector<SequenceRequest> assignments = {}) {
    Plan plan = MakePlan(1, step, std::move(assignments));
    // A note makes a request resumable, so that it may outlive the router.
    for (const SequenceRequest& request : plan.assignments) {
      plan.notes.push_back({absl::StrCat("note ", request.handle), {}});
    }
    ranks_[0]->inbox().OnPlan(std::move(plan));
    return Report(0);
  }

  std::unique_ptr<RankRecorder> recorder_;
};

TEST_F(StepLoopFailureTest, AFailedRequestEndsWithInternalAndTheRankContinues) {
  StartFailing({11});
  OpenEpoch(1, PlanMode::kLockstep);
  EXPECT_THAT(StepOnce(1, {Request(10, 30, 5), Request(11, 40, 5)}).rejected, IsEmpty());
  const StepReport failed = StepOnce(2);
  ASSERT_EQ(failed.rejected.size(), 1u);
  EXPECT_EQ(failed.rejected[0].handle, 11u);
  EXPECT_EQ(failed.rejected[0].code, absl::StatusCode::kInternal);
  EXPECT_EQ(failed.rejected[0].message, "poisoned");
  EXPECT_EQ(failed.barrier_error, "");
  EXPECT_EQ(failed.output.load_tokens, 31);
  EXPECT_EQ(failed.active_requests, 1);
  // The failed request's slot and KV are free for the next one; the other request continues.
  const StepReport next = StepOnce(3, {Request(12, 400, 5)});
  EXPECT_THAT(next.rejected, IsEmpty());
  EXPECT_EQ(next.active_requests, 2);
  EXPECT_EQ(next.output.tokens.size(), 2u);
  StepOnce(4);
  const RankTelemetry telemetry = recorder_->telemetry();
  EXPECT_EQ(telemetry.failed_requests, 1u);
  EXPECT_EQ(telemetry.held_requests, 2) << "a failed request is not kept for another router";
}

}  // namespace
}  // namespace bfio::worker
