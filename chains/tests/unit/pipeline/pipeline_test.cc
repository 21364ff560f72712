// Chains of servers over parts of a model, in one process: the tokens equal those of the whole model bit for
// bit.
#include <deque>

#include "chains/tests/testing/local_chain.h"
#include "gmock/gmock.h"
#include "tests/testing/decode_schedule.h"
#include "worker/engine/cpu/cpu_engine.h"
#include "worker/engine/cpu/part_memory.h"
#include "worker/kv/page_table.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Model> LoadGolden(const std::string& name) {
  auto model = LoadModel("tests/golden/" + name);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

class DeafOutlet final : public Outlet {
 public:
  absl::Status Send(MicroBatch) override { return absl::OkStatus(); }
};

class FullOutlet final : public Outlet {
 public:
  absl::Status Send(MicroBatch) override {
    return absl::ResourceExhaustedError("the neighbour takes nothing");
  }
};

struct Shape {
  // Index after the last block of the head, then of each stage; at least two entries.
  std::vector<int32_t> ends;
  int32_t micro_batches = 1;
  cpu::Storage storage = cpu::Storage::kAuto;
};

DecodeOptions DecodeLimits(int64_t kv_tokens = 600) {
  DecodeOptions options;
  options.limits = {6, kv_tokens, 1000};
  options.step_tokens = 40;
  return options;
}

std::unique_ptr<PartBackend> MakePart(const std::shared_ptr<const Model>& model, const Shape& shape,
                                      const ModelPart& part, const DecodeOptions& options) {
  auto made = CpuParts(model, shape.storage, {}).Make(options, part, part.blocks);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

std::unique_ptr<Engine> MakeChain(const std::shared_ptr<const Model>& model, const Shape& shape,
                                  const DecodeOptions& options = DecodeLimits()) {
  ChainBackendOptions chain;
  chain.micro_batches = shape.micro_batches;
  return testing::MakeLocalChain(shape.ends, model->config().hidden, chain, options,
                                 [&](int32_t first, int32_t end, bool head) {
                                   return MakePart(model, shape, {{first, end - first}, head}, options);
                                 });
}

// A head with block 0 whose chain is the outlet.
std::unique_ptr<DecodeEngine> MakeHead(const std::shared_ptr<const Model>& model,
                                       const ChainBackendOptions& chain, std::shared_ptr<Returns> returns,
                                       std::unique_ptr<Outlet> outlet) {
  auto engine = DecodeEngine::Create(
      DecodeLimits(),
      std::make_unique<ChainBackend>(chain, MakePart(model, {}, {{0, 1}, true}, DecodeLimits()),
                                     std::move(outlet), std::move(returns)));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

TEST(PipelineTest, RandomSchedulesGiveTheWholeModelsTokensAndLogprobs) {
  for (const char* name : {"llama", "llama_tied", "qwen2", "qwen3"}) {
    SCOPED_TRACE(name);
    const auto model = LoadGolden(name);
    const auto layers = static_cast<int32_t>(model->config().layers);
    Rng rng(7);
    for (const Shape& shape :
         {Shape{{1, layers}, 1}, Shape{{0, 1, layers}, 3}, Shape{{1, 2, layers}, 64, cpu::Storage::kBf16}}) {
      // The first engine that is made holds the whole model: it computes the expected tokens.
      bool first = true;
      const auto make = [&]() -> std::unique_ptr<Engine> {
        if (!std::exchange(first, false)) return MakeChain(model, shape);
        CpuOptions options;
        options.decode = DecodeLimits();
        auto engine = MakeCpuEngine(options, cpu::Weights::Make(model, shape.storage));
        EXPECT_TRUE(engine.ok()) << engine.status();
        return *std::move(engine);
      };
      EXPECT_GT(testing::RunSchedule(rng.Next(), make, {model->config().vocab, 60, 20, 12}), 3);
    }
  }
}

TEST(PipelineTest, RequestsArePreemptedAndReplayedWhileTheyAreUnderWay) {
  const auto model = LoadGolden("llama");
  const auto layers = static_cast<int32_t>(model->config().layers);
  DecodeOptions options = DecodeLimits(120);
  options.limits.max_sequence_tokens = 80;
  options.step_tokens = 80;
  int preemptions = 0;
  const auto make = [&] { return MakeChain(model, {{1, layers}, 3}, options); };
  EXPECT_GT(testing::RunSchedule(11, make, {model->config().vocab, 60, 20, 16, 0.7, &preemptions}), 3);
  EXPECT_GT(preemptions, 0);
}

// Passes a result on when the head has sent `behind` further micro-batches, so that a head that waits for all
// of a step waits forever.
class LateResults final : public Outlet {
 public:
  LateResults(std::shared_ptr<Returns> returns, size_t width, size_t behind)
      : returns_(std::move(returns)), width_(width), behind_(behind) {}

  absl::Status Send(MicroBatch batch) override {
    batch.hidden.assign(static_cast<size_t>(batch.plan.draws()) * width_, 0.5F);
    batch.plan.Clear();
    sent_.push_back(std::move(batch));
    if (sent_.size() <= behind_) return absl::OkStatus();
    MicroBatch oldest = std::move(sent_.front());
    sent_.pop_front();
    return returns_->Take(std::move(oldest));
  }

 private:
  const std::shared_ptr<Returns> returns_;
  const size_t width_, behind_;
  std::deque<MicroBatch> sent_;
};

SequenceRequest OneToken(Handle handle) {
  return {.handle = handle,
          .prompt = {static_cast<uint32_t>(handle)},
          .prompt_length = 1,
          .max_new_tokens = 8,
          .ignore_eos = true};
}

std::unique_ptr<DecodeEngine> HeadWithLateResults(int32_t micro_batches, size_t behind) {
  const auto model = LoadGolden("llama");
  const auto returns = std::make_shared<Returns>([](const absl::Status& why) { ADD_FAILURE() << why; });
  ChainBackendOptions chain;
  chain.micro_batches = micro_batches;
  chain.timeout = absl::Seconds(60);
  return MakeHead(model, chain, returns,
                  std::make_unique<LateResults>(returns, model->config().hidden, behind));
}

TEST(PipelineTest, AMicroBatchGoesOnWhileTheOthersOfItsStepAreOut) {
  const auto engine = HeadWithLateResults(4, 3);
  for (Handle handle = 1; handle <= 4; ++handle) ASSERT_TRUE(engine->Admit(OneToken(handle)).ok());
  StepOutput out;
  for (int64_t step = 0; step < 7; ++step) {
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_EQ(out.tokens.size(), 4u) << "step " << step;
    EXPECT_EQ(out.load_tokens, 4 * (1 + step));
    EXPECT_EQ(out.batch.tokens, 4) << "of what was collected";
    EXPECT_TRUE(engine->prefill_state()->prompts.empty());
  }
}

TEST(PipelineTest, AnArrivalDuringAStepIsPendingUntilTheNext) {
  const auto engine = HeadWithLateResults(2, 0);
  StepOutput out;
  ASSERT_TRUE(engine->Admit(OneToken(1)).ok());
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_EQ(out.tokens.size(), 1u) << "nothing was under way before";
  ASSERT_TRUE(engine->Admit(OneToken(2)).ok());
  ASSERT_TRUE(engine->Step(out).ok());
  ASSERT_EQ(out.tokens.size(), 1u);
  EXPECT_EQ(out.tokens[0].handle, 1u);
  EXPECT_EQ(engine->prefill_state()->prompts, (std::vector<PendingPrompt>{{2, 1}}));
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_EQ(out.tokens.size(), 2u);
  EXPECT_TRUE(engine->prefill_state()->prompts.empty());
  // A request that leaves while it is under way has no further tokens, and its slot and KV are free.
  EXPECT_TRUE(engine->Cancel(2));
  ASSERT_TRUE(engine->Step(out).ok());
  ASSERT_EQ(out.tokens.size(), 1u);
  EXPECT_EQ(out.tokens[0].handle, 1u);
  EXPECT_EQ(engine->free_slots(), 5);
  EXPECT_TRUE(engine->AuditKv().ok());
}

TEST(PipelineTest, APartHoldsOnlyItsOwnWeights) {
  const auto model = LoadGolden("llama");
  const auto middle = cpu::Weights::Make(model, cpu::Storage::kAuto, {{1, 1}, false});
  EXPECT_EQ(middle->layers().size(), 1u);
  EXPECT_EQ(middle->embedding().data, nullptr);
  EXPECT_EQ(middle->lm_head().data, nullptr);
  EXPECT_TRUE(middle->final_norm().empty());
  const auto whole = cpu::Weights::Make(model, cpu::Storage::kAuto);
  EXPECT_EQ(middle->block(1).q.data, whole->block(1).q.data) << "both are views of the mapped file";
}

TEST(PipelineTest, APartThatDoesNotFitIsRefusedWithWhatIsMissing) {
  const auto model = LoadGolden("llama");
  const ModelBytes bytes = cpu::BytesOf(*model, cpu::Storage::kFp32);
  const ModelPart part = {{0, 2}, true};
  const int64_t needed = bytes.ends + 2 * bytes.block;
  EXPECT_TRUE(CheckFits(bytes, part, 1000, needed + 1000).ok());
  const absl::Status status = CheckFits(bytes, part, 1000, needed - (1 << 20));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("blocks 0 to 1 with embedding and head"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1.0 MiB more than the memory limit"));
  // All parts together have the size of the whole model as the engine stores it.
  const auto whole = cpu::Weights::Make(model, cpu::Storage::kFp32);
  EXPECT_EQ(bytes.ends + model->config().layers * bytes.block, [&] {
    int64_t all = whole->step_bytes() + whole->embedding().bytes() + 4 * model->config().hidden;
    return all + model->config().layers * 2 * 4 * model->config().hidden;
  }());
}

MicroBatch GoodBatch() {
  MicroBatch batch;
  batch.number = 1;
  batch.plan.Clear();
  batch.plan.AddRun(0, 30, {1, 2}, {0, 3}, true);
  batch.plan.AddRun(1, 0, {1}, {2}, true);
  batch.hidden.assign(3 * 4, 0.5F);
  return batch;
}

TEST(PipelineTest, AMicroBatchThatDoesNotFitTheChainIsRefused) {
  const BatchBounds bounds = {4, 3, 2, 4, 16};
  ASSERT_TRUE(CheckMicroBatch(GoodBatch(), bounds).ok()) << CheckMicroBatch(GoodBatch(), bounds);
  const std::vector<std::pair<std::string, std::function<void(MicroBatch&)>>> faults = {
      {"4 rows", [](MicroBatch& b) { b.plan.token_ids.push_back(0); }},
      {"0 rows", [](MicroBatch& b) { b = MicroBatch(), b.plan.Clear(); }},
      {"11 hidden values", [](MicroBatch& b) { b.hidden.pop_back(); }},
      {"differ in length", [](MicroBatch& b) { b.plan.positions.pop_back(); }},
      {"differ in length", [](MicroBatch& b) { b.plan.row_runs.push_back(0); }},
      {"differ in length", [](MicroBatch& b) { b.plan.run_rows.pop_back(); }},
      {"differ in length", [](MicroBatch& b) { b.plan.run_pages.push_back(9); }},
      {"rows and pages in order", [](MicroBatch& b) { b.plan.run_rows[1] = 7; }},
      {"rows and pages in order", [](MicroBatch& b) { b.plan.run_rows[0] = -1; }},
      {"rows and pages in order", [](MicroBatch& b) { b.plan.run_pages[1] = -4; }},
      {"rows and pages in order", [](MicroBatch& b) { b.plan.pages.push_back(0); }},
      {"has no rows", [](MicroBatch& b) { b.plan.run_rows[1] = 0; }},
      {"3 runs; the limit is 2",
       [](MicroBatch& b) {
         b.plan.Clear();
         for (int run = 0; run < 3; ++run) b.plan.AddRun(run, 0, {1}, {run}, true);
       }},
      {"5 pages; the limit is 4",
       [](MicroBatch& b) {
         b.plan.pages.insert(b.plan.pages.end(), {1, 1});
         b.plan.run_pages.back() = 5;
       }},
      {"3 wanted rows, more than its 2 runs",
       [](MicroBatch& b) {
         b.plan.logit_rows = {0, 1, 2};
       }},
      {"page 4 is not below 4", [](MicroBatch& b) { b.plan.pages[1] = 4; }},
      {"page -1", [](MicroBatch& b) { b.plan.pages[0] = -1; }},
      {"begins at position -30", [](MicroBatch& b) { b.plan.positions[0] = -30; }},
      {"ends at position 33", [](MicroBatch& b) { b.plan.positions[0] = 31; }},
      {"not in the order of run 0", [](MicroBatch& b) { b.plan.positions[1] = 7; }},
      {"not in the order of run 0", [](MicroBatch& b) { b.plan.row_runs[1] = 1; }},
      {"wanted row 3", [](MicroBatch& b) { b.plan.logit_rows[1] = 3; }},
      {"wanted row 1 must be above 1",
       [](MicroBatch& b) {
         b.plan.logit_rows = {1, 1};
       }},
  };
  for (const auto& [what, spoil] : faults) {
    MicroBatch batch = GoodBatch();
    spoil(batch);
    const absl::Status status = CheckMicroBatch(batch, bounds);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
}

TEST(PipelineTest, AMessageOutOfOrderBreaksTheStageAndIsReportedOnce) {
  const auto model = LoadGolden("llama");
  const DecodeOptions options = DecodeLimits();
  int broken = 0;
  Stage stage(MakePart(model, {}, {{0, 1}, false}, options), BoundsOf(model->config().hidden, options), false,
              std::make_unique<DeafOutlet>(), [&](const absl::Status& why) {
                ++broken;
                EXPECT_THAT(std::string(why.message()), HasSubstr("micro-batch 2 followed micro-batch 0"));
              });
  MicroBatch batch = GoodBatch();
  batch.number = 2;
  batch.hidden.assign(static_cast<size_t>(3 * model->config().hidden), 0.5F);
  EXPECT_TRUE(absl::IsInvalidArgument(stage.Take(batch)));
  batch.number = 1;
  EXPECT_TRUE(absl::IsUnavailable(stage.Take(batch)));
  stage.OnLost(absl::UnavailableError("gone"));
  EXPECT_EQ(broken, 1);
}

// A head whose outlet passes nothing on, so that no result returns.
std::unique_ptr<DecodeEngine> LonelyHead(std::shared_ptr<Returns> returns, absl::Duration timeout,
                                         std::unique_ptr<Outlet> outlet = std::make_unique<DeafOutlet>()) {
  ChainBackendOptions chain;
  chain.timeout = timeout;
  auto engine = MakeHead(LoadGolden("llama"), chain, std::move(returns), std::move(outlet));
  EXPECT_TRUE(engine->Admit(OneToken(1)).ok());
  return engine;
}

TEST(PipelineTest, AHeadGivesUpASilentBrokenOrInvalidChain) {
  int broken = 0;
  const auto count = [&](const absl::Status&) { ++broken; };
  StepOutput out;
  {
    const auto head = LonelyHead(std::make_shared<Returns>(count), absl::Milliseconds(20));
    EXPECT_TRUE(absl::IsDeadlineExceeded(head->Step(out)));
    EXPECT_EQ(broken, 1);
  }
  {
    const auto returns = std::make_shared<Returns>(count);
    const auto head = LonelyHead(returns, absl::Seconds(60));
    returns->OnLost(absl::UnavailableError("server b is gone"));
    const absl::Status status = head->Step(out);
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("server b is gone"));
    EXPECT_EQ(broken, 2);
  }
  {
    const auto head =
        LonelyHead(std::make_shared<Returns>(count), absl::Seconds(60), std::make_unique<FullOutlet>());
    EXPECT_TRUE(absl::IsResourceExhausted(head->Step(out)));
    EXPECT_EQ(broken, 3) << "the others keep what this step has sent them";
  }
  Returns returns(count);
  EXPECT_TRUE(absl::IsInvalidArgument(returns.Take({1, {}, {}}))) << "nothing was sent";
  EXPECT_EQ(broken, 4);
  Returns others(count);
  EXPECT_EQ(others.Expect(4), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(others.Take({1, {}, std::vector<float>(5)})));
  EXPECT_EQ(broken, 5);
}

}  // namespace
}  // namespace bfio::worker
