// The checkpoint module against what transformers wrote and computed (tests/golden/README.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "nlohmann/json.hpp"
#include "worker/engine/model/model.h"
#include "worker/engine/model/rope.h"

namespace bfio::worker {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::FloatNear;

constexpr char kGolden[] = "tests/golden/";

json ReadJson(const std::string& name) {
  std::ifstream in(kGolden + name);
  EXPECT_TRUE(in) << "run from the repository's root";
  return json::parse(in);
}

std::unique_ptr<Model> Load(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel(kGolden + name);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

RopeConfig::Kind KindOf(const std::string& name) {
  return name == "linear"   ? RopeConfig::Kind::kLinear
         : name == "llama3" ? RopeConfig::Kind::kLlama3
                            : RopeConfig::Kind::kDefault;
}

RopeConfig RopeOf(const json& rope) {
  return {KindOf(rope["rope_type"]),           rope["rope_theta"],
          rope.value("factor", 1.0),           rope.value("low_freq_factor", 1.0),
          rope.value("high_freq_factor", 4.0), rope.value("original_max_position_embeddings", int64_t{8192})};
}

TEST(GoldenCheckpoints, FrequenciesEqualTransformers) {
  const json cases = ReadJson("rope.json");
  ASSERT_GE(cases.size(), 8u);
  for (const json& c : cases) {
    const std::vector<float> ours = InverseFrequencies(RopeOf(c["rope"]), c["head_dim"]);
    ASSERT_EQ(ours.size(), c["inverse_frequencies"].size()) << c["rope"];
    for (size_t i = 0; i < ours.size(); ++i) {
      // Theirs are computed in fp32, with errors of some units in the last place.
      const double theirs = c["inverse_frequencies"][i];
      EXPECT_NEAR(ours[i], theirs, 1e-6 * theirs) << c["rope"] << " pair " << i;
    }
  }
}

TEST(GoldenCheckpoints, AbsentAndNullFieldsResolveAsInTransformers) {
  for (const json& c : ReadJson("configs.json")) {
    json config = c["config"];
    const json& want = c["resolved"];
    if (!want["sliding_window"].is_null()) config["max_position_embeddings"] = want["sliding_window"];
    const absl::StatusOr<ModelConfig> got = ParseModelConfig(config.dump(), "config.json");
    ASSERT_TRUE(got.ok()) << got.status() << " " << config;
    SCOPED_TRACE(config.dump());
    EXPECT_EQ(got->vocab, want["vocab"]);
    EXPECT_EQ(got->hidden, want["hidden"]);
    EXPECT_EQ(got->intermediate, want["intermediate"]);
    EXPECT_EQ(got->layers, want["layers"]);
    EXPECT_EQ(got->heads, want["heads"]);
    EXPECT_EQ(got->kv_heads, want["kv_heads"]);
    EXPECT_EQ(got->head_dim, want["head_dim"]);
    EXPECT_EQ(got->rms_epsilon, want["rms_epsilon"]);
    EXPECT_EQ(got->tied_embeddings, want["tied_embeddings"]);
    EXPECT_EQ(got->qkv_bias, want["qkv_bias"]);
    EXPECT_EQ(got->output_bias, want["output_bias"]);
    EXPECT_EQ(got->mlp_bias, want["mlp_bias"]);
    EXPECT_EQ(got->qk_norm, want["qk_norm"]);
    EXPECT_THAT(got->eos_token_ids, ElementsAreArray(want["eos"].get<std::vector<int32_t>>()));
    const RopeConfig rope = RopeOf(want["rope"]);
    EXPECT_EQ(got->rope.kind, rope.kind);
    EXPECT_EQ(got->rope.theta, rope.theta);
    EXPECT_EQ(got->rope.factor, rope.factor);
    if (rope.kind == RopeConfig::Kind::kLlama3) {
      EXPECT_EQ(got->rope.low_freq_factor, rope.low_freq_factor);
      EXPECT_EQ(got->rope.high_freq_factor, rope.high_freq_factor);
      EXPECT_EQ(got->rope.original_max_positions, rope.original_max_positions);
    }
    if (want["sliding_window"].is_null()) {
      EXPECT_EQ(got->max_positions, want["max_positions"]);
    }
  }
}

TEST(GoldenCheckpoints, LlamaIsUntiedWithScaledRope) {
  const auto model = Load("llama");
  const ModelConfig& c = model->config();
  EXPECT_EQ(c.family, ModelConfig::Family::kLlama);
  EXPECT_EQ(c.rope.kind, RopeConfig::Kind::kLlama3);
  EXPECT_EQ(c.rope.original_max_positions, 64);
  EXPECT_NE(model->lm_head().data, model->embedding().data);
  EXPECT_THAT(model->layers()[1].k.shape, ElementsAre(32, 64));
  EXPECT_FALSE(model->layers()[0].q_bias.present());
  EXPECT_FALSE(model->layers()[0].q_norm.present());
  // Embedding and lm_head, the last norm, and two layers.
  EXPECT_EQ(model->weight_bytes(), 4 * (2 * 64 * 256 + 64 + 2 * 30848));
}

TEST(GoldenCheckpoints, TiedHeadIsTheEmbeddingAndEveryBiasIsPresent) {
  const auto model = Load("llama_tied");
  EXPECT_EQ(model->config().rope.kind, RopeConfig::Kind::kLinear);
  EXPECT_EQ(model->config().rope.factor, 4);
  EXPECT_EQ(model->lm_head().data, model->embedding().data);
  ASSERT_EQ(model->layers().size(), 3u);
  for (const LayerWeights& layer : model->layers()) {
    EXPECT_THAT(layer.q_bias.shape, ElementsAre(64));
    EXPECT_THAT(layer.k_bias.shape, ElementsAre(16));
    EXPECT_THAT(layer.o_bias.shape, ElementsAre(64));
    EXPECT_THAT(layer.gate_bias.shape, ElementsAre(72));
    EXPECT_THAT(layer.down_bias.shape, ElementsAre(64));
  }
}

TEST(GoldenCheckpoints, MistralInBf16StaysInBf16) {
  const auto model = Load("mistral");
  EXPECT_EQ(model->embedding().dtype, DType::kBF16);
  EXPECT_EQ(model->layers()[0].down.dtype, DType::kBF16);
  EXPECT_EQ(model->embedding().bytes(), 256 * 96 * 2);
}

TEST(GoldenCheckpoints, ShardsOfQwen2AreOneModel) {
  const auto model = Load("qwen2");
  EXPECT_TRUE(model->config().qkv_bias);
  EXPECT_FALSE(model->config().output_bias);
  for (const LayerWeights& layer : model->layers()) {
    EXPECT_TRUE(layer.v_bias.present());
    EXPECT_FALSE(layer.o_bias.present());
  }
}

TEST(GoldenCheckpoints, QueryOfQwen3IsWiderThanTheModel) {
  const auto model = Load("qwen3");
  EXPECT_TRUE(model->config().qk_norm);
  EXPECT_THAT(model->layers()[0].q.shape, ElementsAre(128, 48));
  EXPECT_THAT(model->layers()[0].o.shape, ElementsAre(48, 128));
  EXPECT_THAT(model->layers()[0].q_norm.shape, ElementsAre(32));
}

TEST(GoldenCheckpoints, LogitsAgreeWithTheirOwnSums) {
  for (const std::string name : {"llama", "llama_tied", "mistral", "qwen2", "qwen3"}) {
    const auto file = SafetensorsFile::Open(kGolden + name + "/logits.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    const json facts = ReadJson(name + "/case.json");
    const TensorView& logits = (*file)->tensors().find("logits")->second;
    const TensorView& sums = (*file)->tensors().find("logsumexp")->second;
    ASSERT_EQ(facts["forced"].size(), 64u);
    EXPECT_THAT(sums.shape, ElementsAre(65));
    ASSERT_EQ(logits.shape[0], static_cast<int64_t>(facts["rows"].size()));
    const int64_t vocab = logits.shape[1];
    for (int64_t i = 0; i < logits.shape[0]; ++i) {
      const float* const row = reinterpret_cast<const float*>(logits.data) + i * vocab;
      double sum = 0;
      for (int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
      const int64_t which = facts["rows"][i];
      EXPECT_THAT(reinterpret_cast<const float*>(sums.data)[which], FloatNear(std::log(sum), 1e-4));
      EXPECT_EQ(std::max_element(row, row + vocab) - row, facts["top1"][which]);
    }
  }
}

}  // namespace
}  // namespace bfio::worker
