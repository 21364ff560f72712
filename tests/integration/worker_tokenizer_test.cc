// The tokenizer that workers offer to the router, and that gateways fetch from it.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/status.h"
#include "tests/testing/cluster.h"
#include "tests/testing/vllm_calls.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

// A checkpoint with a tokenizer of a few tokens and `more_bytes` additional bytes.
std::string ModelFolder(const std::string& name, size_t more_bytes = 0) {
  const std::string folder = absl::StrCat(TestDirectory(), "/", name);
  std::filesystem::create_directories(folder);
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(absl::StrCat("tests/golden/qwen3/", file), absl::StrCat(folder, "/", file),
                               std::filesystem::copy_options::overwrite_existing);
  }
  std::ofstream tokenizer(folder + "/tokenizer.json");
  tokenizer << R"({"model":{"vocab":{)";
  for (int id = 0; id < 256; ++id) tokenizer << (id > 0 ? "," : "") << "\"<" << id << ">\":" << id;
  tokenizer << R"(}},"decoder":{"type":"ByteLevel"},"more":")" << std::string(more_bytes, 'x') << "\"}";
  std::ofstream(folder + "/tokenizer_config.json") << R"({"chat_template":"{{ messages }}"})";
  return folder;
}

ClusterOptions WorkersOf(const std::string& model, std::vector<std::string> router_flags = {}) {
  return {.router_flags = std::move(router_flags),
          .worker_flags = {"--engine=cpu", "--model=" + model, "--slots=2", "--kv_tokens=1024"}};
}

struct Tokenizer {
  grpc::Status status;
  std::string archive, sha256;
};

Tokenizer Fetch(Cluster& cluster) {
  const auto stub = StubAt(cluster.address());
  grpc::ClientContext context;
  const auto reader = stub->GetTokenizer(&context, {});
  Tokenizer tokenizer;
  for (common_pb::GetTokenizerChunk chunk; reader->Read(&chunk);) {
    EXPECT_LE(chunk.data().size(), size_t{64} << 10);
    tokenizer.archive += chunk.data();
    tokenizer.sha256 = chunk.sha256();
  }
  tokenizer.status = reader->Finish();
  return tokenizer;
}

pb::GetModelInfoResponse ModelInfo(Cluster& cluster) {
  const auto stub = StubAt(cluster.address());
  grpc::ClientContext context;
  pb::GetModelInfoResponse info;
  EXPECT_TRUE(stub->GetModelInfo(&context, {}, &info).ok());
  return info;
}

TEST(WorkerTokenizerTest, IsTheSameAsFromTheRoutersOwnFolder) {
  // Several parts and chunks.
  const std::string model = ModelFolder("small", size_t{3} << 20);
  Tokenizer expected;
  {
    ClusterOptions options = {.router_flags = {"--tokenizer=" + model}};
    Cluster cluster(options);
    ASSERT_TRUE(cluster.ok());
    expected = Fetch(cluster);
    ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();
    ASSERT_GT(expected.archive.size(), size_t{3} << 20);
  }
  Cluster cluster(WorkersOf(model));
  ASSERT_TRUE(cluster.ok());
  const Tokenizer got = Fetch(cluster);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.sha256, expected.sha256);
  EXPECT_TRUE(got.archive == expected.archive);
  const pb::GetModelInfoResponse info = ModelInfo(cluster);
  EXPECT_EQ(info.served_model_name(), "small");
  EXPECT_EQ(info.tokenizer_path(), model);
  EXPECT_EQ(info.vocab_size(), 256u);
  // A later router gets the tokenizer too, before its workers serve again.
  cluster.KillRouter();
  cluster.StartRouterAgain();
  ASSERT_TRUE(cluster.WaitFor("the workers", [](const v1::ClusterState& state) {
    return std::count_if(state.workers().begin(), state.workers().end(),
                         [](const v1::WorkerState& worker) { return worker.has_rank(); }) == 2;
  }));
  EXPECT_EQ(Fetch(cluster).sha256, expected.sha256);
}

TEST(WorkerTokenizerTest, StopTextsAreFoundWithIt) {
  Cluster cluster(WorkersOf(ModelFolder("small")));
  ASSERT_TRUE(cluster.ok());
  const auto stub = StubAt(cluster.address());
  const Tokens plain = Generate(*stub, Request(20)).tokens.at(0);
  pb::GenerateRequest request = Request(20);
  request.mutable_sampling_params()->add_stop(absl::StrCat("<", plain[7], ">"));
  const Outputs stopped = Generate(*stub, request);
  ASSERT_TRUE(stopped.status.ok()) << stopped.status.error_message();
  EXPECT_EQ(stopped.reason(), "stop");
  EXPECT_LE(stopped.tokens.at(0).size(), 8u);
}

TEST(WorkerTokenizerTest, TheRoutersOwnFolderTakesPrecedence) {
  const std::string own = ModelFolder("own");
  Cluster cluster(WorkersOf(ModelFolder("small"), {"--tokenizer=" + own}));
  ASSERT_TRUE(cluster.ok());
  EXPECT_EQ(ModelInfo(cluster).tokenizer_path(), own);
  EXPECT_TRUE(Fetch(cluster).status.ok());
}

TEST(WorkerTokenizerTest, ATooLargeTokenizerIsNotSentAndWorkersServe) {
  Cluster cluster(WorkersOf(ModelFolder("large", size_t{65} << 20)));
  ASSERT_TRUE(cluster.ok());
  const Tokenizer none = Fetch(cluster);
  EXPECT_EQ(none.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(none.status.error_message(), HasSubstr("no worker has sent one"));
  EXPECT_THAT(cluster.workers()[0].Stderr(), HasSubstr("exceed 64 MiB"));
  EXPECT_EQ(ModelInfo(cluster).served_model_name(), "bfio");
  const auto stub = StubAt(cluster.address());
  EXPECT_EQ(Generate(*stub, Request(5)).tokens.at(0).size(), 5u);
}

}  // namespace
}  // namespace bfio::testing
