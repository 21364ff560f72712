// Chains of servers with GPUs, on emulated kernels: parts of a model, which pass activations as separate
// processes do, give bit for bit the results of one backend with the whole model.
#include "worker/engine/cuda/cuda_parts.h"

#include "chains/pipeline/stage.h"
#include "chains/tests/testing/local_chain.h"
#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "tests/testing/decode_schedule.h"
#include "tests/testing/emulated_device_ops.h"
#include "tests/testing/golden.h"
#include "tests/testing/latch.h"
#include "worker/engine/cuda/cuda_backend.h"

namespace bfio::worker::gpu {
namespace {

using testing::EmulatedDevice;
using ::testing::HasSubstr;

DecodeOptions SmallSteps() {
  return {.limits = {6, 600, 1000}, .page_tokens = 16, .step_tokens = 20};
}

std::shared_ptr<const Model> LoadPartly(const std::string& name) {
  auto model = LoadModel(testing::GoldenFolder(name));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// One server: its emulated device and the parts of the model on it. Must outlive the parts that Make returns.
class Server {
 public:
  explicit Server(std::shared_ptr<const Model> model)
      : parts_(
            std::move(model),
            [this] {
              ++opened;
              return std::make_unique<testing::EmulatedDeviceOps>(device);
            },
            [](const std::string&) {}) {}

  std::unique_ptr<PartBackend> Make(const ModelPart& hosted, const BlockRange& blocks) {
    auto part = parts_.Make(SmallSteps(), hosted, blocks);
    EXPECT_TRUE(part.ok()) << part.status();
    return *std::move(part);
  }
  CudaParts& parts() { return parts_; }

  EmulatedDevice device;
  int opened = 0;

 private:
  CudaParts parts_;
};

// Serialises the parts' calls: the emulator runs one kernel at a time, and each stage has its own thread.
class OneAtATime final : public PartBackend {
 public:
  explicit OneAtATime(std::unique_ptr<PartBackend> part) : part_(std::move(part)) {}

  absl::string_view name() const override { return part_->name(); }
  const ModelFacts& facts() const override { return part_->facts(); }
  int64_t hidden() const override { return part_->hidden(); }
  absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override {
    MutexLock lock(&emulator_);
    return part_->Run(plan, draws, drawn);
  }
  absl::StatusOr<absl::Span<const float>> RunHead(const StepPlan& plan) override {
    MutexLock lock(&emulator_);
    return part_->RunHead(plan);
  }
  absl::StatusOr<absl::Span<const float>> RunBlocks(const StepPlan& plan,
                                                    absl::Span<const float> hidden) override {
    MutexLock lock(&emulator_);
    return part_->RunBlocks(plan, hidden);
  }
  absl::Status DrawFrom(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                        absl::Span<Drawn> drawn) override {
    MutexLock lock(&emulator_);
    return part_->DrawFrom(hidden, draws, drawn);
  }

 private:
  static Mutex emulator_;
  const std::unique_ptr<PartBackend> part_;
};
Mutex OneAtATime::emulator_;

// A chain over servers whose blocks end at `ends`; the last server hosts one block that the chain does not
// use.
std::unique_ptr<Engine> MakeGpuChain(std::vector<std::unique_ptr<Server>>& servers,
                                     const std::vector<int32_t>& ends, int32_t micro_batches) {
  const std::shared_ptr<const Model> model = LoadPartly("llama_tied");
  ChainBackendOptions chain;
  chain.micro_batches = micro_batches;
  chain.timeout = absl::Minutes(5);
  return testing::MakeLocalChain(
      ends, model->config().hidden, chain, SmallSteps(), [&](int32_t first, int32_t end, bool head) {
        servers.push_back(std::make_unique<Server>(model));
        const int32_t hosted = end == ends.back() && !head ? first - 1 : first;
        return std::make_unique<OneAtATime>(
            servers.back()->Make({{hosted, end - hosted}, head}, {first, end - first}));
      });
}

// Three layers, with all biases and a tied lm_head.
TEST(CudaPartsTest, RandomSchedulesGiveTheWholeModelsTokensAndLogprobs) {
  const int64_t vocab = static_cast<int64_t>(testing::Golden("llama_tied").vocab());
  for (const auto& [ends, micro_batches] :
       {std::pair<std::vector<int32_t>, int32_t>{{1, 2, 3}, 3}, {{2, 3}, 1}}) {
    std::vector<std::unique_ptr<Server>> servers;
    const auto make = [&]() -> std::unique_ptr<Engine> {
      if (!servers.empty()) return MakeGpuChain(servers, ends, micro_batches);
      // The first engine that is made holds the whole model: it computes the expected tokens.
      servers.push_back(std::make_unique<Server>(LoadPartly("llama_tied")));
      auto engine = DecodeEngine::Create(SmallSteps(), servers.back()->Make(WholeModel(3), {0, 3}));
      EXPECT_TRUE(engine.ok()) << engine.status();
      return *std::move(engine);
    };
    EXPECT_GT(testing::RunSchedule(5, make, {vocab, 40, 8, 6}), 2);
  }
}

TEST(CudaPartsTest, PartsOfOneServerShareWeightsUntilTheLastEnds) {
  Server server(LoadPartly("llama_tied"));
  const ModelPart hosted = {{0, 2}, true};
  auto one = server.Make(hosted, {0, 2});
  EXPECT_EQ(server.opened, 2) << "the weights' memory, and the part's stream";
  auto other = server.Make(hosted, {1, 1});
  EXPECT_EQ(server.opened, 3);
  const auto& first = static_cast<CudaBackend&>(*one).weights();
  const auto& second = static_cast<CudaBackend&>(*other).weights();
  EXPECT_EQ(second.layers.size(), 1u);
  EXPECT_EQ(second.layers[0].qkv, first.layers[1].qkv);
  EXPECT_EQ(second.embedding, nullptr);
  one.reset();
  // The second part still has the weights.
  StepPlan plan;
  plan.Clear();
  plan.AddRun(0, 0, std::vector<uint32_t>{1}, std::vector<PageId>{0}, true);
  EXPECT_TRUE(other->RunBlocks(plan, std::vector<float>(static_cast<size_t>(other->hidden()), 0.5F)).ok());
  other.reset();
  one = server.Make(hosted, {0, 2});
  EXPECT_EQ(server.opened, 5) << "they were given back, and are uploaded again";
}

TEST(CudaPartsTest, BytesAreWhatUploadingTakes) {
  const auto model = LoadPartly("llama_tied");
  const auto taken = [&](const ModelPart& part) {
    EmulatedDevice device;
    testing::EmulatedDeviceOps ops(device);
    const int64_t before = ops.Memory()->free_bytes;
    EXPECT_TRUE(UploadWeights(*model, part, ops, [](const std::string&) {}).ok());
    return before - ops.Memory()->free_bytes;
  };
  const ModelBytes bytes = BytesOf(model->config());
  EXPECT_EQ(taken({{0, 2}, false}) - taken({{1, 1}, false}), bytes.block);
  EXPECT_EQ(taken({{0, 1}, true}) - taken({{0, 1}, false}), bytes.ends);
  EXPECT_GT(bytes.block, 0);
  EXPECT_GT(bytes.ends, 0);
  EmulatedDevice device;
  auto ops = std::make_unique<testing::EmulatedDeviceOps>(device);
  auto weights = UploadWeights(*model, {{1, 1}, false}, *ops, [](const std::string&) {});
  auto part = CudaBackend::Create(SmallSteps(), model->config(), std::move(ops), *std::move(weights),
                                  [](const std::string&) {});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ((*part)->forward().kv_token_bytes(), bytes.kv_token);
}

TEST(CudaPartsTest, MeasuringABlockReportsDeviceErrors) {
  Server server(LoadPartly("llama_tied"));
  const auto time = MeasureBlock(server.parts(), SmallSteps(), absl::ZeroDuration());
  ASSERT_TRUE(time.ok()) << time.status();
  // Makes the last device wait of the second measurement fail.
  server.device.failing_wait = 2 * server.device.waits - 1;
  EXPECT_EQ(MeasureBlock(server.parts(), SmallSteps(), absl::ZeroDuration()).status().code(),
            absl::StatusCode::kUnavailable);
}

class UnreadOutlet final : public Outlet {
 public:
  absl::Status Send(MicroBatch) override {
    ADD_FAILURE() << "a result of a step that failed";
    return absl::OkStatus();
  }
};

TEST(CudaPartsTest, ADevicesErrorBreaksTheStage) {
  Server server(LoadPartly("llama_tied"));
  auto part = server.Make({{1, 1}, false}, {1, 1});
  const auto hidden = static_cast<size_t>(part->hidden());
  server.device.failing_wait = 0;
  testing::Latch broken{1};
  Stage stage(std::move(part), {static_cast<int64_t>(hidden), 4, 4, 4, 16}, false,
              std::make_unique<UnreadOutlet>(), [&](const absl::Status& why) {
                EXPECT_THAT(std::string(why.message()), HasSubstr("cudaEventQuery"));
                broken.count_down();
              });
  MicroBatch batch;
  batch.number = 1;
  batch.plan.Clear();
  batch.plan.AddRun(0, 0, std::vector<uint32_t>{1}, std::vector<PageId>{0}, true);
  batch.hidden.assign(hidden, 0.5F);
  EXPECT_TRUE(stage.Take(batch).ok());
  broken.wait();
}

}  // namespace
}  // namespace bfio::worker::gpu
