// A worker's flags, and which settings of its engine are part of the model digest.
#include "worker/link/worker.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/config/program.h"
#include "tests/testing/scripted_worker.h"
#include "worker/link/flags.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

std::string DigestWith(const std::string& engine, const std::function<void(EngineOptions&)>& change) {
  EngineOptions options = {
      .name = engine, .limits = {4, 4096, 2048}, .model = engine == "sim" ? "" : "tests/golden/llama"};
  change(options);
  const auto engines = Engines::Create(options);
  EXPECT_TRUE(engines.ok()) << engines.status();
  return engines.ok() ? engines->digest().Hex() : "";
}

void AsTheyAre(EngineOptions&) {}

TEST(Engines, SimWorkersOfAnySpeedHaveTheSameModel) {
  const std::string sim = DigestWith("sim", AsTheyAre);
  EXPECT_EQ(sim, bfio::testing::kSimModel) << "scripted workers of tests say that they are sim workers";
  EXPECT_EQ(sim, DigestWith("sim", [](EngineOptions& options) {
              options.limits.slots = 9;
              options.sim.cost = {1, 2, 3};
            }));
  EXPECT_NE(sim, DigestWith("sim", [](EngineOptions& options) { options.sim.eos_probability = 0.01; }));
}

// Otherwise a worker without --engine would serve generated tokens in place of the checkpoint's.
TEST(Engines, SimWorkersRefuseACheckpoint) {
  EXPECT_EQ(CheckEngineOptions({.name = "sim", .model = "tests/golden/llama"}).message(),
            "--model=tests/golden/llama: --engine=sim, the default, does not load a checkpoint: "
            "give --engine=cpu or cuda");
  EXPECT_TRUE(CheckEngineOptions({.name = "sim"}).ok());
}

TEST(Engines, SettingsThatChangeTokensAreInTheDigest) {
  const std::string cpu = DigestWith("cpu", AsTheyAre);
  EXPECT_EQ(cpu, DigestWith("cpu", [](EngineOptions& options) {
              options.limits.slots = 8;
              options.cpu.threads = 2;
              options.cpu.decode.page_tokens = 16;
              options.cpu.decode.step_tokens = 64;
            }));
  // The checkpoint is stored in fp32, so these settings change nothing.
  EXPECT_EQ(cpu, DigestWith("cpu", [](EngineOptions& options) { options.weights = cpu::Storage::kFp32; }));
  EXPECT_NE(cpu, DigestWith("cpu", [](EngineOptions& options) { options.weights = cpu::Storage::kBf16; }));
  EXPECT_NE(cpu,
            DigestWith("cpu", [](EngineOptions& options) { options.model = "tests/golden/llama_tied"; }));
  const auto llama = LoadModel("tests/golden/llama");
  ASSERT_TRUE(llama.ok());
  EngineOptions cuda;
  cuda.name = "cuda";
  EXPECT_NE(DigestOf(cuda, **llama).Hex(), cpu) << "another engine rounds otherwise";
}

class WorkerFlags : public ::testing::Test {
 protected:
  absl::Status Read(const std::vector<std::string>& args) {
    settings_ = std::make_unique<WorkerSettings>();
    OptionTable table;
    AddWorkerOptions(table, *settings_);
    if (const auto line = ParseCommandLine(args, table); !line.ok()) return line.status();
    return FinishWorkerOptions(table, *settings_);
  }
  std::string Error(const std::vector<std::string>& args) { return std::string(Read(args).message()); }
  const WorkerOptions& options() const { return settings_->worker; }
  const EngineOptions& engine() const { return settings_->worker.engine; }

  std::unique_ptr<WorkerSettings> settings_;
};

TEST_F(WorkerFlags, ATokenBudgetAppliesToEveryEngine) {
  ASSERT_TRUE(Read({"--token_budget=48", "--kv_tokens=1048576"}).ok());
  for (const DecodeOptions* decode : {&engine().cpu.decode, &engine().cuda.decode}) {
    EXPECT_EQ(decode->step_tokens, 48);
  }
  EXPECT_EQ(engine().sim.token_budget, 48);
  EXPECT_FALSE(engine().fit_kv) << "given, if with its default";
  ASSERT_TRUE(Read({}).ok());
  EXPECT_EQ(engine().sim.token_budget, 0) << "prompts are computed whole";
  EXPECT_TRUE(engine().fit_kv);
  EXPECT_FALSE(options().worker_id.empty());
}

TEST_F(WorkerFlags, MistakesNameTheFlag) {
  EXPECT_THAT(Error({absl::StrCat("--group=", std::string(65, 'g'))}), HasSubstr("--group"));
}

}  // namespace
}  // namespace bfio::worker
