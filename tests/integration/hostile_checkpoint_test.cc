// Checkpoints that are truncated, forged or damaged: the worker prints one line that says what is wrong, and
// exits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = "tests/golden/llama";

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// A copy of the model with some of its files changed.
class Copy {
 public:
  explicit Copy(const std::string& name) : directory_(absl::StrCat(TestDirectory(), "/", name)) {
    std::filesystem::remove_all(directory_);
    std::filesystem::copy(kModel, directory_);
  }
  const std::string& directory() const { return directory_; }
  std::string weights() const { return directory_ + "/model.safetensors"; }

  void Change(const std::string& file, const std::function<void(std::string&)>& change) {
    std::string bytes = Read(directory_ + "/" + file);
    change(bytes);
    Write(directory_ + "/" + file, bytes);
  }
  // Changes the JSON in front of the tensors and updates its length.
  void ChangeHeader(const std::function<void(std::string&)>& change) {
    Change("model.safetensors", [&](std::string& bytes) {
      uint64_t length = 0;
      std::memcpy(&length, bytes.data(), sizeof(length));
      std::string header = bytes.substr(8, length);
      change(header);
      const std::string rest = bytes.substr(8 + length);
      length = header.size();
      bytes.assign(reinterpret_cast<const char*>(&length), sizeof(length));
      bytes += header + rest;
    });
  }

 private:
  const std::string directory_;
};

RunResult Load(const std::string& directory) {
  return RunProgram("bfio_worker",
                    {"--engine=cpu", absl::StrCat("--model=", directory), "--router=127.0.0.1:1", "--slots=2",
                     "--kv_tokens=512", "--connect_timeout=100ms"},
                    kSlowdown * absl::Seconds(60));
}

// `code`: 2 for invalid input, 1 for valid input that is not supported.
void ExpectOneLine(const RunResult& run, const std::string& part, int code = 2) {
  EXPECT_EQ(run.code, code) << run.err;
  EXPECT_THAT(run.err, HasSubstr(part));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

void Replace(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

TEST(HostileCheckpoint, TheModelItselfLoads) {
  const RunResult run = Load(kModel);
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_THAT(run.err, HasSubstr("router"));
}

// Memory is allocated as it is used: too large a KV cache would end the worker hours later.
TEST(HostileCheckpoint, MoreKvThanTheMachineHas) {
  const RunResult run = RunProgram("bfio_worker",
                                   {"--engine=cpu", absl::StrCat("--model=", kModel), "--router=127.0.0.1:1",
                                    "--slots=2", "--kv_tokens=100000000000", "--ranks_per_process=2"},
                                   kSlowdown * absl::Seconds(60));
  ExpectOneLine(run, "--kv_tokens=100000000000: the KV cache of 2 ranks needs up to ", 1);
  EXPECT_THAT(run.err, HasSubstr("tokens per rank fit"));
  // Without the flag, the KV cache is as large as fits; the limit of 4 MiB includes the weights.
  const RunResult fits = RunProgram("bfio_worker",
                                    {"--engine=cpu", absl::StrCat("--model=", kModel), "--router=127.0.0.1:1",
                                     "--slots=2", "--memory_limit_mb=4", "--connect_timeout=100ms"},
                                    kSlowdown * absl::Seconds(60));
  EXPECT_THAT(fits.err, HasSubstr("the most that fits into 4.0 MiB of memory"));
  EXPECT_THAT(fits.err, HasSubstr("router")) << "it went on";
}

TEST(HostileCheckpoint, ACutFile) {
  for (const int64_t left : {0, 7, 100, 20'000}) {
    Copy copy("cut");
    std::filesystem::resize_file(copy.weights(), static_cast<uintmax_t>(left));
    ExpectOneLine(Load(copy.directory()), "model.safetensors: ");
  }
  Copy copy("cut");
  std::filesystem::resize_file(copy.weights(), std::filesystem::file_size(copy.weights()) - 1);
  ExpectOneLine(Load(copy.directory()), "truncated?");
}

TEST(HostileCheckpoint, AHeaderOfAbsurdLength) {
  for (const uint64_t length : {uint64_t{1} << 40, ~uint64_t{0}, uint64_t{99'999'999}}) {
    Copy copy("length");
    copy.Change("model.safetensors",
                [&](std::string& bytes) { std::memcpy(bytes.data(), &length, sizeof(length)); });
    ExpectOneLine(Load(copy.directory()), absl::StrCat("the header length is ", length, " bytes"));
  }
}

TEST(HostileCheckpoint, TensorsThatOverlap) {
  Copy copy("overlap");
  // Two tensors of one shape at the same offset.
  copy.ChangeHeader([](std::string& header) {
    const auto range = [&](const std::string& name) {
      const size_t at = header.find("\"data_offsets\":[", header.find(absl::StrCat("\"", name, "\"")));
      return std::pair(at, header.find(']', at) - at);
    };
    const auto [from, from_size] = range("model.layers.0.mlp.gate_proj.weight");
    const std::string offsets = header.substr(from, from_size);
    const auto [to, to_size] = range("model.layers.0.mlp.up_proj.weight");
    header.replace(to, to_size, offsets);
  });
  ExpectOneLine(Load(copy.directory()), "overlaps tensor");
}

TEST(HostileCheckpoint, AnotherTypeOrAMissingTensor) {
  Copy dtype("dtype");
  dtype.ChangeHeader([](std::string& header) { Replace(header, "\"F32\"", "\"F64\""); });
  ExpectOneLine(Load(dtype.directory()), "has dtype 'F64'; BF16, F16 and F32 are supported", 1);
  Copy half("half");
  half.ChangeHeader([](std::string& header) { Replace(header, "\"F32\"", "\"F16\""); });
  ExpectOneLine(Load(half.directory()), "bytes, but data_offsets have");
  Copy missing("missing");
  missing.ChangeHeader([](std::string& header) {
    Replace(header, "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.wait!!");
  });
  ExpectOneLine(Load(missing.directory()), "'model.layers.0.mlp.up_proj.weight' is missing");
}

TEST(HostileCheckpoint, AnInvalidOrUnsupportedConfiguration) {
  Copy garbage("garbage");
  Write(garbage.directory() + "/config.json", "model_type: llama\n");
  ExpectOneLine(Load(garbage.directory()), "config.json: ");
  Copy other("other");
  other.Change("config.json", [](std::string& json) { Replace(json, "\"llama\"", "\"gpt2\""); });
  ExpectOneLine(Load(other.directory()),
                "model_type is 'gpt2'; llama, mistral, qwen2 and qwen3 are supported", 1);
  Copy wide("wide");
  wide.Change("config.json", [](std::string& json) {
    Replace(json, "\"hidden_size\": 64", "\"hidden_size\": 4611686018427387904");
  });
  ExpectOneLine(Load(wide.directory()), "hidden_size");
  Copy none("none");
  std::filesystem::remove(none.directory() + "/config.json");
  ExpectOneLine(Load(none.directory()), "config.json");
}

// Random damage, the same in every run: the program always ends with one line.
TEST(HostileCheckpoint, DamagedHeaders) {
  const std::string original = Read(absl::StrCat(kModel, "/model.safetensors"));
  uint64_t length = 0;
  std::memcpy(&length, original.data(), sizeof(length));
  Rng rng(20'251'121);
  Copy copy("damaged");
  for (int round = 0; round < 40 / kSlowdown; ++round) {
    std::string bytes = original;
    for (uint64_t changes = 1 + rng.Below(4); changes > 0; --changes) {
      bytes[rng.Below(8 + length)] = static_cast<char>(rng.Next());
    }
    if (rng.Below(4) == 0) bytes.resize(rng.Below(bytes.size()));
    Write(copy.weights(), bytes);
    const RunResult run = Load(copy.directory());
    // 1: the damage was harmless (in a name of metadata), and there is no router.
    EXPECT_TRUE(run.code == 2 || run.code == 1)
        << "round " << round << ", code " << run.code << ": " << run.err;
    const auto lines = std::count(run.err.begin(), run.err.end(), '\n');
    EXPECT_TRUE(run.code != 2 || lines == 1) << run.err;
  }
}

// The file is complete when it is opened, and is truncated while the worker uses it.
TEST(HostileCheckpoint, AFileThatIsCutWhileItIsInUse) {
  Copy copy("live");
  ClusterOptions options;
  options.worker_processes = 1;
  options.worker_flags = {"--engine=cpu", absl::StrCat("--model=", copy.directory()), "--slots=2",
                          "--kv_tokens=1024"};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  const GenerateResult before = Generate(cluster.inference(), SyntheticRequest(8, 4));
  ASSERT_TRUE(before.status.ok()) << before.status.error_message();
  std::filesystem::resize_file(copy.weights(), 4096);
  const RequestStream stream(cluster.inference(), SyntheticRequest(8, 4));
  Process& worker = cluster.workers()[0];
  EXPECT_EQ(worker.Wait(kSlowdown * absl::Seconds(30)), 1) << worker.Stderr();
  EXPECT_THAT(worker.Stderr(), HasSubstr(absl::StrCat("bfio_worker: ", copy.weights(),
                                                      ": was truncated or became unreadable")));
}

}  // namespace
}  // namespace bfio::testing
