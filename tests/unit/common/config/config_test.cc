#include <fstream>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/config/program.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Entries = std::vector<std::pair<std::string, int32_t>>;

struct Settings {
  std::string trace;
  std::string policy = "bf_io";
  int32_t workers = 16;
  uint64_t seed = 1;
  double load = 1;
  double tl = 1e-7;
  bool json = false;
  bool lockstep = false;
  absl::Duration timeout = absl::Seconds(2);
  std::vector<std::string> names = {"fcfs"};
  int64_t bytes = 3 << 20;
  std::pair<int, int> job = {1, 2};
  Entries entries;
};

absl::StatusOr<std::pair<int, int>> ParsePair(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  std::pair<int, int> pair;
  if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &pair.first) &&
      absl::SimpleAtoi(parts[1], &pair.second))
    return pair;
  return absl::InvalidArgumentError("must be FIRST:SECOND");
}

class ConfigTest : public ::testing::Test {
 protected:
  struct Program {
    Settings settings;
    OptionTable table;
    Program() {
      Settings& s = settings;
      table.Add("trace", &s.trace, "Trace file.");
      table.Add("policy", &s.policy, "Policy name.");
      table.Add("workers|ranks", &s.workers, Within(0, 4096), "Workers.");
      table.Add("seed", &s.seed, "Seed.");
      table.Add("load", &s.load, Within(-10, 10), "Load.");
      table.Add("tl", &s.tl, "Seconds per token.");
      table.Add("json", &s.json, "Print JSON.");
      table.Group("Experimental", {"names"});
      table.AddChoice<bool>("plan_mode", &s.lockstep, {{"pipelined", false}, {"lockstep", true}}, "Mode.");
      table.Add("timeout", &s.timeout, Within(absl::Milliseconds(1), absl::Hours(24)), "Time.");
      table.Add("names", &s.names, "Policies.");
      table.AddScaled("mb", static_cast<double>(s.bytes >> 20), Within(0, 1 << 20), "MiB.",
                      [&s](double mb) { s.bytes = static_cast<int64_t>(mb * (1 << 20)); });
      table.AddParsed("job", &s.job, "1:2", "FIRST:SECOND.", ParsePair);
      table.AddParsed("entries", &s.entries, "", "Entries.",
                      [](const std::string&) -> absl::StatusOr<Entries> {
                        return absl::InvalidArgumentError("must be a list");
                      });
      table.Find("entries")->set_list = [&s](const NextEntry& next) -> absl::Status {
        while (true) {
          Entries::value_type one = {"", 1};
          OptionTable entry;
          entry.Add("name", &one.first, "");
          entry.Add("size", &one.second, Within(0, 9), "");
          BFIO_ASSIGN_OR_RETURN(const bool there, next(entry));
          if (!there) return absl::OkStatus();
          if (one.first.empty()) return absl::InvalidArgumentError("needs a name");
          s.entries.push_back(one);
        }
      };
    }
  };

  // Parses a command line with options of its own, which start at their defaults.
  absl::StatusOr<CommandLine> Run(const std::vector<std::string>& args) {
    program_ = std::make_unique<Program>();
    return ParseCommandLine(args, program_->table);
  }

  const Settings& settings() const { return program_->settings; }

  std::string Message(const std::vector<std::string>& args) {
    return std::string(Run(args).status().message());
  }

  static std::string WriteFile(const std::string& text) {
    const std::string path = ::testing::TempDir() + "bfio_config_test_" +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".yaml";
    std::ofstream(path) << text;
    return path;
  }

  std::unique_ptr<Program> program_;
};

TEST_F(ConfigTest, EveryWayToWriteAFlag) {
  const auto line = Run({"--policy=a-b=c", "first", "--workers", "4", "-load=2", "--load", "-5", "--json",
                         "--plan-mode=lockstep", "--trace", "", "--", "--workers=9"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->positional, ElementsAre("first", "--workers=9"));
  EXPECT_EQ(settings().policy, "a-b=c");
  EXPECT_EQ(settings().workers, 4);
  EXPECT_EQ(settings().load, -5);
  EXPECT_TRUE(settings().json);
  EXPECT_EQ(settings().lockstep, true);
  ASSERT_TRUE(Run({"--workers=9999", "--ranks=3", "--json", "--nojson"}).ok());
  EXPECT_EQ(settings().workers, 3) << "the last value counts";
  EXPECT_FALSE(settings().json);
}

TEST_F(ConfigTest, AFlagSetToItsDefaultCountsAsGiven) {
  ASSERT_TRUE(Run({"--workers=16", "--nojson", "--config=" + WriteFile("tl: 1e-7\n")}).ok());
  EXPECT_TRUE(program_->table.given("workers"));
  EXPECT_TRUE(program_->table.given("json"));
  EXPECT_TRUE(program_->table.given("tl"));
  EXPECT_FALSE(program_->table.given("policy"));
  ASSERT_TRUE(Run({"--config=" + WriteFile("workers: 0\njson: false")}).ok());
  EXPECT_EQ(settings().workers, 0);
  EXPECT_TRUE(program_->table.given("json"));
  EXPECT_FALSE(program_->table.given("tl")) << "of an earlier command line";
}

TEST_F(ConfigTest, TheCommandLineOverridesTheFileInAnyOrder) {
  const std::string path = WriteFile("workers: 8\npolicy: fcfs\n# comment\ntl: 1.00525e-7\njson: true\n");
  ASSERT_TRUE(Run({"--workers=2", "--config=" + path}).ok());
  EXPECT_EQ(settings().workers, 2);
  EXPECT_EQ(settings().policy, "fcfs");
  EXPECT_EQ(settings().tl, 1.00525e-7);
  EXPECT_TRUE(settings().json);
  EXPECT_EQ(settings().load, 1) << "not in the file: the default stays";
  for (const char* empty : {"", "# nothing\n", "{}"}) EXPECT_TRUE(Run({"--config=" + WriteFile(empty)}).ok());
  ASSERT_TRUE(Run({"--config", WriteFile("\xef\xbb\xbf\n  {\"workers\": 3,\n\t\"load\": 0.1}\n")}).ok())
      << "JSON";
  EXPECT_EQ(settings().workers, 3);
  EXPECT_EQ(settings().load, 0.1);
}

TEST_F(ConfigTest, EveryTypeIsReadFromArgumentsAndFiles) {
  const auto check = [&] {
    EXPECT_EQ(settings().timeout, absl::Milliseconds(1500));
    EXPECT_THAT(settings().names, ElementsAre("a", "b"));
    EXPECT_EQ(settings().bytes, 5 << 19);
    EXPECT_EQ(settings().job, std::make_pair(3, 4));
    EXPECT_EQ(settings().seed, std::numeric_limits<uint64_t>::max());
    EXPECT_TRUE(settings().lockstep);
  };
  ASSERT_TRUE(Run({"--timeout=1.5s", "--names=a,,b", "--mb=2.5", "--job=3:4", "--seed=18446744073709551615",
                   "--plan_mode=lockstep"})
                  .ok());
  check();
  for (const char* names : {"a,b", "[a, b]", "\n- a\n- 'b'"}) {
    ASSERT_TRUE(Run({"--config=" + WriteFile(absl::StrCat("timeout: 1500ms\nnames: ", names,
                                                          "\nmb: 2.5\njob: 3:4\nplan_mode: \"lockstep\"\n"
                                                          "seed: 18446744073709551615\n"))})
                    .ok());
    check();
  }
}

TEST_F(ConfigTest, MistakesNameTheFlagTheValueAndWhatIsPermitted) {
  const std::pair<const char*, const char*> kCases[] = {
      {"--workers=4097", "--workers=4097: must be within 0..4096"},
      {"--workers=-1", "--workers=-1: "},
      {"--workers=three", "--workers=three: must be a whole number"},
      {"--workers", "--workers needs a value"},
      {"--load=nan", "--load=nan: must be within -10..10"},
      {"--timeout=0s", "--timeout=0s: must be within 1ms..24h"},
      {"--mb=1e9", "--mb=1e9: must be within 0..1048576"},
      {"--json=maybe", "--json=maybe: must be true or false"},
      {"--plan_mode=fast", "--plan_mode=fast: must be pipelined or lockstep"},
      {"--job=3", "--job=3: must be FIRST:SECOND"},
      {"--polcy=x", "unknown flag --polcy (did you mean --policy?)"},
      {"--work=3", "unknown flag --work (did you mean --workers?)"},
      {"--zzzzzzzz", "unknown flag --zzzzzzzz (--help lists them)"}};
  for (const auto& [arg, message] : kCases) {
    EXPECT_THAT(Message({arg}), StartsWith(message));
    EXPECT_EQ(Run({arg}).status().code(), absl::StatusCode::kInvalidArgument) << arg;
  }
}

TEST_F(ConfigTest, MistakesInAFileNameTheFileTheLineAndTheKey) {
  std::string bomb = "trace: &a [x, x]\n", deep = "names: ";
  for (int i = 0; i < 9; ++i)
    absl::StrAppend(&bomb, "names: &", i, " [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n");
  for (int i = 0; i < 100'000; ++i) deep += '[';
  const std::pair<std::string, const char*> kCases[] = {
      {"policy: fcfs\nworkers: 4097", ":2: workers=4097: must be within 0..4096"},
      {"workers: three\n", ":1: workers=three: must be a whole number"},
      {"workers:\n", ":1: workers has no value; an empty text is ''"},
      {"workers: [3]\n", ":1: workers must be a single value"},
      {"workers: {a: 3}\n", ":1: workers must be a single value"},
      {"workers: 3\n\nworker: 4\n", ":3: no flag is named worker (did you mean workers?)"},
      {"zzzzzzzz: 4\n", ":1: no flag is named zzzzzzzz (--help lists them)"},
      {"config: x\n", ":1: a config file cannot set config"},
      {"workers: 3\nseed: 1\nranks: 3\n", ":3: ranks is given twice"},
      {"names: [a,\n [b]]\n", ":2: each entry of names must be a single value"},
      {"[workers]\n", ":1: must have lines such as 'NAME: VALUE'"},
      {"policy: a seed: 4\n", ":1: not YAML: mapping values are not allowed in this context"},
      {"workers: 3\n---\nworkers: 4\n", ":2: must be one YAML document"},
      {"? [workers]\n: 3\n", ":1: a key must be a name"},
      {"workers: 3\npolicy: \"\xff\"", ":2: not YAML: invalid leading UTF-8 octet"},
      {"{\"workers\": 3,\n \"worker\": 4}", ":2: no flag is named worker (did you mean workers?)"},
      {"{\"workers\" 3", ":1: workers has no value; an empty text is ''"},
      {"names: [a\nworkers: 3", ":2: while parsing a flow sequence: did not find expected ',' or ']'"},
      {bomb, ":1: anchors (&) and aliases (*) are not supported"},
      {"workers: *a\n", ":1: anchors (&) and aliases (*) are not supported"},
      {"workers: !!int 3\n", ":1: tags (!) are not supported"},
      {deep, ":1: each entry of names must be a single value"},
      {"entries: 3\n", ":1: entries=3: must be a list"},
      {"entries:\n- name: a\n  size: 9\n- name: b\n  sise: 3\n",
       ":5: no key is named sise (did you mean size?)"},
      {"entries:\n- {zzzzzzzz: 3}\n", ":2: no key is named zzzzzzzz; choose from name, size"},
      {"entries: [{name: a,\n size: 99}]\n", ":2: size=99: must be within 0..9"},
      {"entries: [{name: a, name: b}]\n", ":1: name is given twice"},
      {"entries:\n- a\n- size: 3\n", ":3: entries: needs a name"},
      {"entries:\n- - a\n", ":2: an entry of entries must have lines such as 'NAME: VALUE'"},
  };
  for (const auto& [text, want] : kCases) {
    const std::string file = WriteFile(text);
    const absl::Status status = Run({"--config=" + file}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(std::string(status.message()), file + want);
  }
  for (const char* missing : {"/nonexistent.yaml", "/"}) {
    EXPECT_EQ(Run({absl::StrCat("--config=", missing)}).status(),
              absl::NotFoundError(absl::StrCat("cannot read ", missing)));
  }
  const std::string large = WriteFile(std::string((1 << 20) + 1, '#'));
  EXPECT_EQ(Message({"--config=" + large}), large + " is larger than 1048576 bytes");
}

TEST_F(ConfigTest, AListMayHaveEntriesWithKeys) {
  ASSERT_TRUE(Run({"--config=" + WriteFile("workers: 3\nentries:\n- name: a\n  size: 4\n- b\n")}).ok());
  EXPECT_THAT(settings().entries, ElementsAre(std::pair("a", 4), std::pair("b", 1)));
  EXPECT_TRUE(program_->table.given("entries"));
  ASSERT_TRUE(Run({"--config=" + WriteFile("entries: []")}).ok());
  EXPECT_THAT(settings().entries, ElementsAre());
}

TEST_F(ConfigTest, SomeSettingsAreNoFlags) {
  program_ = std::make_unique<Program>();
  program_->table.OnlyInConfig({"tl"});
  EXPECT_EQ(ParseCommandLine({"--tl=3"}, program_->table).status().message(),
            "tl is no flag, but a key of --config");
  EXPECT_TRUE(ParseCommandLine({"--config=" + WriteFile("tl: 3")}, program_->table).ok());
  EXPECT_EQ(settings().tl, 3);
  EXPECT_THAT(program_->table.Describe(), HasSubstr("\n  only in --config: tl=1e-07\n"));
}

TEST_F(ConfigTest, HelpTakesPrecedenceOverErrorsAndSetsNothing) {
  const auto line = Run({"--polcy=x", "--workers=3", "--help"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_TRUE(line->help);
  EXPECT_EQ(settings().workers, 16);
  EXPECT_TRUE(Run({"--version"})->version);
}

TEST_F(ConfigTest, HelpShowsEachFlagWithItsDefault) {
  const std::string text = Program().table.Describe();
  for (const char* shown :
       {"--policy=\"bf_io\"\n", "--workers=16 (0..4096)\n", "      Trace file.\n", "--json\n",
        "Workers.; older name: --ranks\n", "\n\nExperimental:\n  --names=",
        "--plan_mode=\"pipelined\" (pipelined|lockstep)\n", "--timeout=\"2s\" (1ms..24h)\n"})
    EXPECT_THAT(text, HasSubstr(shown));
}

using ProgramDeathTest = ConfigTest;

TEST_F(ProgramDeathTest, ProgramsExitWithOneLineAndTheirExitCode) {
  const ProgramInfo info = {"bfio_test", "0.1.0", "A test."};
  const auto init = [&](const char* arg) {
    char name[] = "bfio_test";
    std::string copy = arg;
    char* argv[] = {name, copy.data(), nullptr};
    Program program;
    InitWithoutArguments(2, argv, info, program.table);
  };
  EXPECT_EXIT(init("--polcy=1"), ::testing::ExitedWithCode(2),
              "^bfio_test: unknown flag --polcy \\(did you mean --policy\\?\\)\n$");
  EXPECT_EXIT(init("more"), ::testing::ExitedWithCode(2), "^bfio_test: unexpected argument 'more'\n$");
  EXPECT_EXIT(init("--help"), ::testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(init("--version"), ::testing::ExitedWithCode(0), "^$");
  EXPECT_EQ(ExitWith(info, absl::InvalidArgumentError("a\nb")), 2);
  EXPECT_EQ(ExitWith(info, absl::NotFoundError("x")), 2);
  EXPECT_EQ(ExitWith(info, absl::UnavailableError("x")), 1);
}

}  // namespace
}  // namespace bfio
