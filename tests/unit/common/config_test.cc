#include <cstdio>
#include <fstream>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "bfio/v1/config.pb.h"
#include "common/config/command_line.h"
#include "common/config/program.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// The fields of SimConfig, less `seed`, whose absence one test needs.
ABSL_FLAG(std::string, trace, "", "Trace file.");
ABSL_FLAG(std::string, policy, "bf_io", "Policy name.");
ABSL_FLAG(uint32_t, workers, 16, "Workers.");
ABSL_FLAG(double, load, 1, "Load.");
ABSL_FLAG(double, tl, 1e-7, "Seconds per token.");
ABSL_FLAG(bool, json, false, "Print JSON.");
ABSL_FLAG(std::string, plan_mode, "pipelined", "Two words in the name.");

namespace bfio {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  static absl::StatusOr<CommandLine> Run(const std::vector<std::string>& args) {
    return ParseCommandLine(args, v1::SimConfig::default_instance());
  }

  static std::string Message(const std::vector<std::string>& args) {
    return std::string(Run(args).status().message());
  }

  std::string WriteFile(const std::string& text) {
    const std::string path = ::testing::TempDir() + "bfio_config_test_" +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".conf";
    std::ofstream(path) << text;
    return path;
  }

  absl::FlagSaver saver_;
};

TEST_F(ConfigTest, EveryWayToWriteAFlag) {
  const auto line = Run({"--policy=lpt", "first", "--workers", "4", "-load=2", "--json",
                         "--plan-mode=lockstep", "--trace", "", "--", "--workers=9"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->positional, ElementsAre("first", "--workers=9"));
  EXPECT_EQ(absl::GetFlag(FLAGS_policy), "lpt");
  EXPECT_EQ(absl::GetFlag(FLAGS_workers), 4u);
  EXPECT_EQ(absl::GetFlag(FLAGS_load), 2);
  EXPECT_TRUE(absl::GetFlag(FLAGS_json));
  EXPECT_EQ(absl::GetFlag(FLAGS_plan_mode), "lockstep");
  ASSERT_TRUE(Run({"--nojson"}).ok());
  EXPECT_FALSE(absl::GetFlag(FLAGS_json));
}

TEST_F(ConfigTest, AFlagGivenWithItsDefaultIsGiven) {
  const std::string path = WriteFile("tl: 1e-7\n");
  ASSERT_TRUE(Run({"--workers=16", "--nojson", "--config=" + path}).ok());
  EXPECT_TRUE(FlagWasGiven("workers"));
  EXPECT_TRUE(FlagWasGiven("json"));
  EXPECT_TRUE(FlagWasGiven("tl"));
  EXPECT_FALSE(FlagWasGiven("policy"));
  ASSERT_TRUE(Run({"--policy=lpt"}).ok());
  EXPECT_FALSE(FlagWasGiven("workers")) << "of an earlier command line";
}

TEST_F(ConfigTest, ValuesMayHoldEqualSignsAndDashes) {
  ASSERT_TRUE(Run({"--policy=a-b=c"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_policy), "a-b=c");
  ASSERT_TRUE(Run({"--load", "-5"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_load), -5);
}

TEST_F(ConfigTest, TheCommandLineWinsOverTheFileInAnyOrder) {
  const std::string path = WriteFile("workers: 8\npolicy: \"fcfs\"\n# comment\ntl: 1.00525e-7\njson: true\n");
  ASSERT_TRUE(Run({"--workers=2", "--config=" + path}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_workers), 2u);
  EXPECT_EQ(absl::GetFlag(FLAGS_policy), "fcfs");
  EXPECT_EQ(absl::GetFlag(FLAGS_tl), 1.00525e-7);
  EXPECT_TRUE(absl::GetFlag(FLAGS_json));
  EXPECT_EQ(absl::GetFlag(FLAGS_load), 1) << "not in the file: the default stays";
}

TEST_F(ConfigTest, ExplicitDefaultsInTheFileCount) {
  absl::SetFlag(&FLAGS_workers, 5);
  ASSERT_TRUE(Run({"--config=" + WriteFile("workers: 0 json: false")}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_workers), 0u);
}

TEST_F(ConfigTest, JsonIsDetectedByContent) {
  ASSERT_TRUE(Run({"--config", WriteFile("\n  {\"workers\": 3, \"load\": 0.1}\n")}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_workers), 3u);
  EXPECT_EQ(absl::GetFlag(FLAGS_load), 0.1);
}

TEST_F(ConfigTest, AnEmptyFileIsAnEmptyConfig) {
  EXPECT_TRUE(Run({"--config=" + WriteFile("")}).ok());
}

TEST_F(ConfigTest, MistakesInTextNameFileLineAndKey) {
  const std::string unknown = WriteFile("workers: 3\n\nworker: 4\n");
  EXPECT_THAT(Message({"--config=" + unknown}), HasSubstr(unknown + ":3: "));
  EXPECT_THAT(Message({"--config=" + unknown}), HasSubstr("\"worker\""));
  const std::string type = WriteFile("workers: \"three\"\n");
  EXPECT_THAT(Message({"--config=" + type}), HasSubstr(type + ":1: "));
  EXPECT_EQ(Run({"--config=" + type}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ConfigTest, MistakesInJsonNameFileAndKey) {
  const std::string unknown = WriteFile("{\"workers\": 3,\n \"worker\": 4}");
  EXPECT_THAT(Message({"--config=" + unknown}), HasSubstr(unknown + ":2: "));
  EXPECT_THAT(Message({"--config=" + unknown}), HasSubstr("worker"));
  const std::string type = WriteFile("{\"workers\": \"three\"}");
  EXPECT_THAT(Message({"--config=" + type}), HasSubstr("workers"));
  const std::string broken = WriteFile("{\"workers\" 3");
  const std::string message = Message({"--config=" + broken});
  EXPECT_THAT(message, HasSubstr(broken));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST_F(ConfigTest, AFieldWithoutAFlagIsOurOwnMistake) {
  EXPECT_EQ(Run({"--config=" + WriteFile("seed: 4")}).status().code(), absl::StatusCode::kInternal);
}

TEST_F(ConfigTest, AMissingFileIsNotFound) {
  EXPECT_EQ(Run({"--config=/nonexistent.conf"}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Run({"--config=/"}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ConfigTest, UnknownFlagsGetASuggestionWhenOneIsNear) {
  EXPECT_EQ(Message({"--polcy=x"}), "unknown flag --polcy (did you mean --policy?)");
  EXPECT_EQ(Message({"--work=3"}), "unknown flag --work (did you mean --workers?)");
  EXPECT_EQ(Message({"--zzzzzzzz"}), "unknown flag --zzzzzzzz (--help lists them)");
  EXPECT_EQ(Run({"--polcy=x"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ConfigTest, BadValuesNameTheFlag) {
  EXPECT_THAT(Message({"--workers=three"}), HasSubstr("bad value 'three' for --workers"));
  EXPECT_THAT(Message({"--workers=-1"}), HasSubstr("--workers"));
  EXPECT_THAT(Message({"--json=maybe"}), HasSubstr("bad value 'maybe' for --json"));
  EXPECT_EQ(Message({"--workers"}), "--workers needs a value");
}

TEST_F(ConfigTest, HelpWinsOverMistakesAndSetsNothing) {
  const auto line = Run({"--polcy=x", "--workers=3", "--help"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_TRUE(line->help);
  EXPECT_EQ(absl::GetFlag(FLAGS_workers), 16u);
  EXPECT_TRUE(Run({"--version"})->version);
}

TEST_F(ConfigTest, HelpShowsEachFlagWithItsDefault) {
  const std::string text = DescribeFlags();
  EXPECT_THAT(text, HasSubstr("--policy=\"bf_io\"\n"));
  EXPECT_THAT(text, HasSubstr("--workers=16\n"));
  EXPECT_THAT(text, HasSubstr("      Trace file.\n"));
  EXPECT_THAT(text, HasSubstr("--json\n"));
}

using ProgramDeathTest = ConfigTest;

TEST_F(ProgramDeathTest, ProgramsEndWithOneLineAndTheirCode) {
  const ProgramInfo info = {"bfio_test", "0.1.0", "A test."};
  const auto init = [&](const char* arg) {
    char name[] = "bfio_test";
    std::string copy = arg;
    char* argv[] = {name, copy.data(), nullptr};
    InitProgram(2, argv, info, v1::SimConfig::default_instance());
  };
  EXPECT_EXIT(init("--polcy=1"), ::testing::ExitedWithCode(2),
              "^bfio_test: unknown flag --polcy \\(did you mean --policy\\?\\)\n$");
  EXPECT_EXIT(init("--help"), ::testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(init("--version"), ::testing::ExitedWithCode(0), "^$");
}

TEST_F(ConfigTest, ExitCodesSeparateBadInputFromFailure) {
  const ProgramInfo info = {"bfio_test", "0.1.0", ""};
  EXPECT_EQ(ExitWith(info, absl::InvalidArgumentError("a\nb")), 2);
  EXPECT_EQ(ExitWith(info, absl::NotFoundError("x")), 2);
  EXPECT_EQ(ExitWith(info, absl::UnavailableError("x")), 1);
}

}  // namespace
}  // namespace bfio
