// Shadows and LP files: they watch, and change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "nlohmann/json.hpp"
#include "tools/sim/run/simulation.h"

namespace bfio::sim {
namespace {

using ::testing::HasSubstr;

SimOptions Short() {
  SimOptions options;
  options.policy = "least_tokens";
  options.workers = 4;
  options.batch = 8;
  options.reveal = 12;
  options.warmup = 10;
  options.steps = 20;
  return options;
}

// Requests of one step each: there is something to decide every time.
Trace OneStepRequests() {
  Trace trace = *SampleProfile("code", 500, 2);
  for (TraceRequest& request : trace.requests) request.output_tokens = 1;
  return trace;
}

nlohmann::ordered_json Observed(const SimOptions& options) {
  const Trace trace = OneStepRequests();
  auto run = *(*Simulation::Create(options, trace))->Run();
  for (const char* key : {"mean", "p50", "p99", "max"}) run.erase(std::string("decide_us_") + key);
  return run;
}

TEST(ShadowsTest, RegretsAreAddedAndNothingElseChanges) {
  SimOptions options = Short();
  const auto alone = Observed(options);
  options.shadow = {"lpt", "least_tokens"};
  auto watched = Observed(options);
  const auto shadows = watched.at("shadows");
  watched.erase("shadows");
  EXPECT_EQ(watched, alone);
  ASSERT_EQ(shadows.size(), 2u);
  EXPECT_EQ(shadows[0].at("policy"), "lpt");
  // Counted decisions only.
  EXPECT_EQ(shadows[0].at("decisions"), 20);
  EXPECT_GT(shadows[0].at("missed_tokens_mean"), 0);
  EXPECT_EQ(shadows[1].at("missed_tokens_mean"), 0);
  EXPECT_EQ(shadows[1].at("avoided_tokens_mean"), 0);
}

TEST(ShadowsTest, UnknownShadowIsRefused) {
  SimOptions options = Short();
  options.shadow = {"best"};
  const Trace trace = OneStepRequests();
  EXPECT_EQ(Simulation::Create(options, trace).status().code(), absl::StatusCode::kInvalidArgument);
}

class LpDumpTest : public ::testing::Test {
 protected:
  LpDumpTest() { std::filesystem::remove_all(folder_); }
  ~LpDumpTest() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ =
      (std::filesystem::path(::testing::TempDir()) /
       ("lp_dump_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name())))
          .string();
};

TEST_F(LpDumpTest, OneFileForEachCountedDecision) {
  SimOptions options = Short();
  const auto alone = Observed(options);
  options.dump_lp = folder_;
  EXPECT_EQ(Observed(options), alone);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 20);
  std::ifstream file(folder_ + "/least_tokens-0000011.lp");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("step 11"));
  EXPECT_THAT(text.str(), HasSubstr("binaries"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/least_tokens-0000010.lp"));
}

TEST_F(LpDumpTest, LimitIsKept) {
  SimOptions options = Short();
  options.dump_lp = folder_;
  options.dump_lp_limit = 3;
  Observed(options);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/least_tokens-0000013.lp"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/least_tokens-0000014.lp"));
}

TEST_F(LpDumpTest, FolderThatCannotBeMadeIsRefused) {
  SimOptions options = Short();
  options.dump_lp = "/dev/null/folder";
  const Trace trace = OneStepRequests();
  EXPECT_EQ(Simulation::Create(options, trace).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bfio::sim
