#include "worker/link/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/command_line.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST_F(WorkerFlags, Defaults) {
  ASSERT_TRUE(Read({}).ok());
  EXPECT_EQ(engine().limits.slots, 72);
  EXPECT_EQ(engine().limits.kv_tokens, 1 << 20);
  EXPECT_EQ(engine().limits.max_sequence_tokens, 1 << 18);
  EXPECT_EQ(engine().cpu.decode.page_tokens, 64);
  EXPECT_EQ(engine().cpu.decode.step_tokens, 512);
  EXPECT_EQ(engine().weights, cpu::Storage::kAuto);
  EXPECT_FALSE(engine().sim.plan.has_value()) << "prompts are computed whole";
  EXPECT_TRUE(engine().fit_kv);
  EXPECT_EQ(options().resume_buffer_bytes, 64 << 20);
  EXPECT_FALSE(options().worker_id.empty());
}

TEST_F(WorkerFlags, ATokenBudgetAppliesToEveryEngine) {
  ASSERT_TRUE(Read({"--token_budget=48", "--scheduler=orca:shortest", "--kv_tokens=1048576"}).ok());
  for (const DecodeOptions* decode : {&engine().cpu.decode, &engine().cuda.decode}) {
    EXPECT_EQ(decode->step_tokens, 48);
    EXPECT_EQ(decode->scheduler, "orca");
    EXPECT_EQ(decode->order, BatchOrder::kShortest);
  }
  ASSERT_TRUE(engine().sim.plan.has_value());
  EXPECT_EQ(engine().sim.plan->token_budget, 48);
  EXPECT_EQ(engine().sim.plan->scheduler, "orca");
  EXPECT_FALSE(engine().fit_kv) << "given, if with its default";
}

TEST_F(WorkerFlags, MistakesNameTheFlag) {
  EXPECT_THAT(Error({"--slots=0"}), HasSubstr("--slots=0: must be within 1..65536"));
  EXPECT_THAT(Error({"--scheduler=sarahti"}), HasSubstr("--scheduler=sarahti: "));
  EXPECT_THAT(Error({"--scheduler=sarathi:"}), HasSubstr("--scheduler=sarathi:: unknown order ''"));
  EXPECT_THAT(Error({absl::StrCat("--group=", std::string(65, 'g'))}), HasSubstr("--group"));
  ASSERT_TRUE(Read({"--worker_tls=ca=x", "--energy_device=0,1"}).ok());
  EXPECT_EQ(options().tls.ca, "x");
  EXPECT_THAT(options().energy_devices, ElementsAre("0", "1"));
}

}  // namespace
}  // namespace bfio::worker
