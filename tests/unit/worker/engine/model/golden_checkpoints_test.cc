// The checkpoint module against what transformers wrote and computed (tests/golden/README.md).
#include <gmock/gmock.h>

#include <fstream>

#include "nlohmann/json.hpp"
#include "worker/engine/model/model_config.h"
#include "worker/engine/model/rope.h"

namespace bfio::worker {
namespace {

using nlohmann::json;
using ::testing::ElementsAreArray;

constexpr char kGolden[] = "tests/golden/";

json ReadJson(const std::string& name) {
  std::ifstream in(kGolden + name);
  EXPECT_TRUE(in) << "run from the repository's root";
  return json::parse(in);
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
    const json fields = {{"vocab", got->vocab},
                         {"hidden", got->hidden},
                         {"intermediate", got->intermediate},
                         {"layers", got->layers},
                         {"heads", got->heads},
                         {"kv_heads", got->kv_heads},
                         {"head_dim", got->head_dim},
                         {"rms_epsilon", got->rms_epsilon},
                         {"tied_embeddings", got->tied_embeddings},
                         {"qkv_bias", got->qkv_bias},
                         {"output_bias", got->output_bias},
                         {"mlp_bias", got->mlp_bias},
                         {"qk_norm", got->qk_norm}};
    for (const auto& [field, value] : fields.items()) EXPECT_EQ(value, want[field]) << field;
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

}  // namespace
}  // namespace bfio::worker
