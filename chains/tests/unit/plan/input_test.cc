// Input files of pools and models: what is read from them, and an error message for every mistake.
#include <gmock/gmock.h>

#include "chains/plan/input.h"
#include "chains/plan/planner.h"

namespace bfio::plan {
namespace {

using ::testing::HasSubstr;

std::string ModelError(const char* text) {
  return std::string(ParseModel(text, "m.json", {}).status().message());
}

constexpr char kBloom[] = R"({"blocks": 70, "block_gb": 1.32, "cache_gb": 0.11, "gflop_per_token": 5})";

std::string PoolError(const std::string& server) {
  const std::string text = "{\"servers\": [" + server + "]}";
  return std::string(ParsePool(text, "p.json", *ParseModel(kBloom, "m.json", {}), {}).status().message());
}

TEST(ParseModel, Sizes) {
  const ModelSizes sizes = *ParseModel(kBloom, "m.json", {});
  EXPECT_EQ(sizes.service.blocks, 70);
  EXPECT_EQ(sizes.service.block_size, 1.32);
  EXPECT_EQ(sizes.gflop_per_token, 5);
  EXPECT_FALSE(
      ParseModel(R"({"blocks": 1, "block_gb": 1, "cache_gb": 1})", "", {})->gflop_per_token.has_value());
}

TEST(ParseModel, CheckpointConfigs) {
  // Llama-2-7B: 32 layers, 202.4 million parameters in each, 2 x 4096 KV values per token and layer.
  const ModelSizes llama = *ParseModel(
      R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
          "num_attention_heads": 32, "vocab_size": 32000})",
      "m.json", {.weight_bytes = 2, .kv_bytes = 2, .context_tokens = 2048});
  EXPECT_EQ(llama.service.blocks, 32);
  EXPECT_NEAR(llama.service.block_size, 0.4047, 1e-3);
  EXPECT_NEAR(llama.service.cache_size, 2 * 4096 * 2 * 2048 / 1e9, 1e-12);
  // BLOOM-176B at 4 bits: the paper's 1.32 GB per block (with some of NF4's overhead) and 5 GFLOP.
  const ModelSizes bloom =
      *ParseModel(R"({"model_type": "bloom", "hidden_size": 14336, "n_layer": 70})", "m.json",
                  {.weight_bytes = 0.5, .kv_bytes = 2, .context_tokens = 2048});
  EXPECT_EQ(bloom.service.blocks, 70);
  EXPECT_NEAR(bloom.service.block_size, 1.32, 0.1);
  EXPECT_NEAR(*bloom.gflop_per_token, 5, 0.1);
  EXPECT_NEAR(bloom.service.cache_size, 0.11, 0.01);
  const auto original = ParseModel(R"({"model_type": "bloom", "n_embed": 14336, "n_layer": 70})", "m.json",
                                   {.weight_bytes = 0.5});
  EXPECT_EQ(original->service.block_size, bloom.service.block_size);
  EXPECT_FALSE(ParseModel(R"({"model_type": "bloom", "n_embed": 14336, "n_layer": 70})", "m.json",
                          {.context_tokens = 1e305})
                   .ok());
}

TEST(ParseModel, Mistakes) {
  EXPECT_EQ(ModelError("[1]"), "m.json: is not a JSON object");
  EXPECT_EQ(ModelError(R"({"block_gb": 1, "cache_gb": 1})"), "m.json: blocks is missing");
  EXPECT_EQ(ModelError(R"({"blocks": 1.5, "block_gb": 1, "cache_gb": 1})"),
            "m.json: blocks is 1.5; must be an integer");
  EXPECT_EQ(ModelError(R"({"blocks": 2, "block_gb": "1", "cache_gb": 1})"),
            "m.json: block_gb is '1'; must be a number");
  EXPECT_THAT(ModelError(R"({"blocks": 2, "block_gb": 1, "cash_gb": 1})"), HasSubstr("'cash_gb' is unknown"));
  EXPECT_EQ(ModelError(R"({"blocks": 2, "block_gb": 0, "cache_gb": 1})"),
            "m.json: block_gb is 0; must be at least 1e-09");
  EXPECT_THAT(ModelError(R"({"hidden_size": 64, "num_hidden_layers": 2})"),
              HasSubstr("model_type is missing"));
  EXPECT_THAT(ModelError(R"({"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2})"),
              HasSubstr("model_type 'mixtral' is not supported"));
  EXPECT_THAT(ModelError(R"({"model_type": "llama", "num_local_experts": 8, "hidden_size": 64})"),
              HasSubstr("num_local_experts"));
  EXPECT_EQ(
      ModelError(
          R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4})"),
      "m.json: intermediate_size is missing");
}

TEST(ParsePool, TimesAndNames) {
  const auto servers = *ParsePool(
      R"({"servers": [{"name": "fast", "count": 2, "memory_gb": 40, "tflops": 120, "memory_gb_per_s": 1020, "rtt_ms": 20},
                      {"memory_gb": 20, "block_ms": 175, "communication_ms": 760}]})",
      "p.json", *ParseModel(kBloom, "m.json", {}), {});
  ASSERT_EQ(servers.size(), 3u);
  EXPECT_EQ(servers[1].name, "fast-1");
  EXPECT_EQ(servers[2].name, "server-1");
  EXPECT_NEAR(servers[0].compute, 0.1089, 5e-5);
  EXPECT_NEAR(servers[0].communication, 0.76, 1e-12);
  EXPECT_NEAR(servers[2].compute, 0.175, 1e-12);
  EXPECT_NEAR(servers[2].communication, 0.76, 1e-12);
}

TEST(ParsePool, Mistakes) {
  EXPECT_THAT(PoolError(R"({"memory_gb": 20, "block_ms": 1})"),
              HasSubstr("p.json: servers[0]: rtt_ms is missing"));
  EXPECT_THAT(PoolError(R"({"block_ms": 1, "rtt_ms": 1})"), HasSubstr("memory_gb is missing"));
  EXPECT_THAT(PoolError(R"({"memory_gb": -1, "block_ms": 1, "rtt_ms": 1})"),
              HasSubstr("memory_gb is -1; must be"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1, "memory": 2, "block_ms": 1, "rtt_ms": 1})"),
              HasSubstr("'memory'"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1, "rtt_ms": 1})"), HasSubstr("tflops is missing"));
  EXPECT_THAT(PoolError("7"), HasSubstr("servers[0]: is not a JSON object"));
  EXPECT_THAT(PoolError(""), HasSubstr("1 to 1024 servers, not 0"));
  EXPECT_THAT(PoolError(R"({"count": 2000, "memory_gb": 1, "block_ms": 1, "rtt_ms": 1})"),
              HasSubstr("count is 2000; must be"));
  EXPECT_THAT(PoolError(R"({"name": "a", "count": 2, "memory_gb": 1, "block_ms": 1, "rtt_ms": 1},
                           {"name": "a-1", "memory_gb": 1, "block_ms": 1, "rtt_ms": 1})"),
              HasSubstr("servers[0] and servers[1] have the same name 'a-1'"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1, "block_ms": 1, "communication_ms": 1e250})"),
              HasSubstr("within 0..1e9 s"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1e300, "block_ms": 1, "rtt_ms": 1})"), HasSubstr("holds more than"));
  EXPECT_THAT(std::string(ParsePool(R"({"server": []})", "p.json", {}, {}).status().message()),
              HasSubstr("the list 'servers'"));
}

}  // namespace
}  // namespace bfio::plan
