// Files from elsewhere that were replayed wrongly, or ended a program in a way that a supervisor repeats.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/process.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

std::string Written(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(TestDirectory(), "/", name);
  std::ofstream(path) << text;
  return path;
}

RunResult Describe(const std::string& trace) {
  return RunProgram("bfio_sim", {"workload", absl::StrCat("--trace=", trace), "--json"});
}

// Bailian's traces were replayed a thousand times too fast, because Mooncake's have milliseconds under the
// same names.
TEST(InputFiles, TimestampsOfChatsAreSeconds) {
  std::string mooncake, bailian;
  for (int i = 0; i < 4; ++i) {
    absl::StrAppend(&mooncake, R"({"timestamp": )", 10000 * i, R"(, "input_length": 9, "output_length": 2})",
                    "\n");
    absl::StrAppend(&bailian, R"({"chat_id": )", i, R"(, "turn": 1, "timestamp": )", 10 * i,
                    R"(, "input_length": 9, "output_length": 2})", "\n");
  }
  for (const RunResult& run :
       {Describe(Written("mooncake.jsonl", mooncake)), Describe(Written("bailian.jsonl", bailian))}) {
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_DOUBLE_EQ(nlohmann::json::parse(run.out)["requests_per_s"].get<double>(), 0.1);
  }
}

TEST(InputFiles, ATraceThatCannotBeReplayedIsNamed) {
  const RunResult gzip = Describe(Written("trace.csv.gz", "\x1f\x8b\x08 and so on"));
  EXPECT_EQ(gzip.code, 2);
  EXPECT_THAT(gzip.err, HasSubstr("damaged or cut off"));
  // The row is dropped; a replay would never have come to its request.
  const RunResult late = Describe(
      Written("late.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,10\n1e300,100,20\n"));
  EXPECT_EQ(late.code, 0) << late.err;
  EXPECT_THAT(late.err, HasSubstr("1e300"));
}

// Was read as 16 tokens.
TEST(InputFiles, AHexadecimalLengthIsABadRow) {
  const RunResult run = Describe(Written(
      "hex.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,0x10,4\n1,5,0X1\n0x2,5,2\n3,7,2\n"));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["requests"], 1);
  EXPECT_THAT(run.err, HasSubstr("'0x10' is not a number"));
}

// Windows editors begin files with a byte order mark, which became part of the first key, engine or tenant.
TEST(InputFiles, AByteOrderMarkIsNoPartOfAFile) {
  const std::string mark = "\xef\xbb\xbf";
  for (const char* config : {"workers: 1\n", "{\"workers\": 1}"}) {
    const RunResult run =
        RunProgram("bfio_sim", {absl::StrCat("--config=", Written("sim.yaml", mark + config)),
                                "--profile=conversation", "--steps=600", "--json"});
    EXPECT_EQ(run.code, 0) << run.err;
  }
  // Both files are read before the port is opened, which fails.
  const RunResult run = RunProgram(
      "bfio_router",
      {absl::StrCat("--client_tokens=", Written("tokens", mark + "a0123456789abcdef0123456789abcdef acme\n")),
       absl::StrCat("--engines=file:", Written("engines.yaml", mark + "engines: vllm://127.0.0.1:1\n")),
       "--worker_listen=1.2.3.4:2", "--listen=1.2.3.4:1"});
  EXPECT_THAT(run.err, HasSubstr("1.2.3.4")) << run.err;
}

// systemd does not restart a program that ends with 2.
TEST(InputFiles, AnUnsupportedCheckpointEndsTheWorkerWithTwo) {
  const std::string model = absl::StrCat(TestDirectory(), "/model");
  ASSERT_EQ(RunProgram("bfio_make_checkpoint", {absl::StrCat("--out=", model), "--layers=1", "--hidden=64",
                                                "--heads=4", "--kv_heads=2", "--vocab=384"})
                .code,
            0);
  const std::string path = absl::StrCat(model, "/config.json");
  const nlohmann::json good = nlohmann::json::parse(std::ifstream(path));
  const std::vector<nlohmann::json> faults = {{{"model_type", "gemma2"}},
                                              {{"hidden_act", "gelu"}},
                                              {{"num_key_value_heads", 3}},
                                              {{"model_type", nullptr}},
                                              {{"quantization_config", {{"quant_method", "gptq"}}}},
                                              {{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}}};
  for (const nlohmann::json& fault : faults) {
    nlohmann::json config = good;
    config.update(fault);
    std::ofstream(path) << config;
    const RunResult run = RunProgram("bfio_worker", {"--engine=cpu", absl::StrCat("--model=", model),
                                                     "--router=127.0.0.1:1", "--connect_timeout=1s"});
    EXPECT_EQ(run.code, 2) << fault << run.err;
  }
}

}  // namespace
}  // namespace bfio::testing
