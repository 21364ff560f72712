#include "worker/engine/model/model_config.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace bfio::worker {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

json Base(const std::string& type = "llama") {
  return {{"model_type", type},       {"vocab_size", 256},          {"hidden_size", 64},
          {"intermediate_size", 96},  {"num_hidden_layers", 2},     {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"rms_norm_eps", 1e-5},       {"max_position_embeddings", 512},
          {"eos_token_id", 2},        {"use_sliding_window", false}};
}

json With(const std::string& field, const json& value, const std::string& type = "llama") {
  json config = Base(type);
  config[field] = value;
  return config;
}

absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseModelConfig(config.dump(), "D/config.json");
}

ModelConfig Good(const json& config) {
  const absl::StatusOr<ModelConfig> parsed = Parse(config);
  EXPECT_TRUE(parsed.ok()) << parsed.status() << " " << config;
  return parsed.value_or(ModelConfig());
}

// Expects a refusal in one line that names the file.
void ExpectRefused(const json& config, absl::StatusCode code, const std::string& why) {
  const absl::StatusOr<ModelConfig> parsed = Parse(config);
  ASSERT_FALSE(parsed.ok()) << config;
  EXPECT_EQ(parsed.status().code(), code) << parsed.status();
  EXPECT_THAT(std::string(parsed.status().message()),
              AllOf(HasSubstr("D/config.json: "), HasSubstr(why), Not(HasSubstr("\n"))));
}

void ExpectUnsupported(const json& config, const std::string& why) {
  ExpectRefused(config, absl::StatusCode::kUnimplemented, why);
}
void ExpectInvalid(const json& config, const std::string& why) {
  ExpectRefused(config, absl::StatusCode::kInvalidArgument, why);
}

json Llama3() {
  return {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

TEST(ModelConfig, EndOfSequenceIsANumberAListOrNothing) {
  EXPECT_THAT(Good(With("eos_token_id", 7)).eos_token_ids, ElementsAre(7));
  EXPECT_THAT(Good(With("eos_token_id", {9, 3, 9})).eos_token_ids, ElementsAre(3, 9));
  EXPECT_THAT(Good(With("eos_token_id", nullptr)).eos_token_ids, IsEmpty());
  ExpectInvalid(With("eos_token_id", 256), "eos_token_id has 256; token ids must be from 0 to 255");
  ExpectInvalid(With("eos_token_id", {1, -1}), "eos_token_id has -1");
  ExpectInvalid(With("eos_token_id", "2"), "eos_token_id has '2'");
  json silent = Base();
  silent.erase("eos_token_id");
  EXPECT_TRUE(Good(silent).eos_by_default);
  for (const json& said : {With("eos_token_id", 2), With("eos_token_id", nullptr)}) {
    EXPECT_FALSE(Good(said).eos_by_default);
  }
}

TEST(ModelConfig, UnsupportedModelsAreRefusedByName) {
  ExpectUnsupported(Base("mixtral"),
                    "model_type is 'mixtral'; llama, mistral, qwen2 and qwen3 are supported");
  ExpectUnsupported(Base("qwen3_moe"), "model_type is 'qwen3_moe'");
  ExpectUnsupported(With("hidden_act", "gelu"), "hidden_act is 'gelu'; silu is supported");
  ExpectUnsupported(With("quantization_config", {{"quant_method", "gptq"}}), "quantization_config is set");
  ExpectUnsupported(
      With("architectures", {"LlamaForSequenceClassification"}),
      "architectures begins with 'LlamaForSequenceClassification'; LlamaForCausalLM is supported");
  ExpectUnsupported(With("is_encoder_decoder", true), "is_encoder_decoder is true");
  ExpectUnsupported(With("attention_bias", true, "mistral"),
                    "attention_bias is true; mistral does not support it");
  ExpectUnsupported(With("attention_bias", false, "qwen2"), "attention_bias is false; qwen2 requires it");
  ExpectUnsupported(With("mlp_bias", true, "qwen3"), "mlp_bias is true");
}

TEST(ModelConfig, UnsupportedRopeTypesAreRefusedByName) {
  for (const char* type : {"dynamic", "yarn", "longrope", "su", "mrope", "proportional"}) {
    ExpectUnsupported(With("rope_scaling", {{"rope_type", type}, {"factor", 2.0}}),
                      absl::StrCat("rope_scaling.rope_type is '", type, "'"));
  }
  ExpectUnsupported(With("rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}), "rope_scaling.type is 'yarn'");
  // The message names the unsupported type and not its fields.
  ExpectUnsupported(
      With("rope_scaling", {{"beta_fast", 32}, {"factor", 16.0}, {"finetuned", true}, {"type", "yarn"}}),
      "rope_scaling.type is 'yarn'");
  ExpectUnsupported(With("rope_scaling", {{"long_factor", {1.0, 1.1}}, {"rope_type", "longrope"}}),
                    "rope_scaling.rope_type is 'longrope'");
  ExpectUnsupported(With("partial_rotary_factor", 0.5), "partial_rotary_factor is 0.5; only 1 is supported");
  ExpectUnsupported(With("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}}),
                    "rope_parameters.partial_rotary_factor is 0.25");
  ExpectUnsupported(With("rope_scaling", {{"type", "default"}, {"mrope_section", {16, 24, 24}}}),
                    "rope_scaling has a field 'mrope_section'");
  ExpectUnsupported(With("rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}),
                    "rope_parameters has a field 'full_attention'");
}

TEST(ModelConfig, ContradictoryRopeSettingsAreInvalid) {
  ExpectInvalid(With("rope_scaling", {{"rope_type", "linear"}}), "rope_scaling.factor is missing");
  ExpectInvalid(With("rope_scaling", {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 4}}),
                "rope_scaling.rope_type is 'linear' and type 'yarn'");
  ExpectInvalid(With("rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}),
                "rope_scaling.factor is 0.5");
  ExpectInvalid(With("rope_scaling", {{"rope_type", "default"}, {"factor", 4}}),
                "'default' does not support it");
  ExpectInvalid(With("rope_scaling", "linear"), "rope_scaling is 'linear'; must be an object");
  ExpectInvalid(With("rope_theta", 0), "rope_theta is 0");
  ExpectInvalid(With("rope_theta", "big"), "rope_theta is 'big'; must be a number");
  json flat = Llama3();
  flat["high_freq_factor"] = 1.0;
  ExpectInvalid(With("rope_scaling", flat), "high_freq_factor is 1; must be above low_freq_factor, 1");
  json both = With("rope_theta", 10000.0);
  both["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000.0}};
  ExpectInvalid(both, "rope_parameters.rope_theta is 20000, but 10000 at the top level");
  json two = With("rope_scaling", Llama3());
  two["rope_parameters"] = {{"rope_type", "default"}};
  ExpectInvalid(two, "rope_scaling and rope_parameters are both set and differ");
}

// Full attention gives the same result for sequences no longer than the window.
TEST(ModelConfig, ASlidingWindowLimitsTheSequenceLength) {
  const auto expect = [](const json& config, int64_t longest, int64_t window) {
    const ModelConfig model = Good(config);
    EXPECT_EQ(model.max_positions, longest);
    EXPECT_EQ(model.sliding_window, window);
  };
  expect(With("sliding_window", 512, "mistral"), 512, 0);
  expect(With("sliding_window", nullptr, "mistral"), 512, 0);
  expect(With("sliding_window", 511, "mistral"), 511, 511);
  ExpectInvalid(With("sliding_window", 0, "mistral"), "sliding_window is 0; must be between 1 and ");
  // Mistral 7B v0.1 with its window, and with the family's default.
  json first = With("sliding_window", 4096, "mistral");
  first["max_position_embeddings"] = 32768;
  expect(first, 4096, 4096);
  first.erase("sliding_window");
  expect(first, 4096, 4096);
  // Frequencies are scaled by the length that the file names, not by the window.
  json stretched = With("sliding_window", 128, "mistral");
  stretched["rope_scaling"] = Llama3();
  stretched["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_EQ(Good(stretched).rope.original_max_positions, 512);
  // Qwen models name a window that they do not use.
  expect(With("sliding_window", 128, "qwen2"), 512, 0);
  json used = With("sliding_window", 128, "qwen2");
  used["use_sliding_window"] = true;
  // The window applies from layer 28 on by default, and the model has two layers.
  Good(used);
  used["max_window_layers"] = 1;
  expect(used, 128, 128);
  used["layer_types"] = {"full_attention", "full_attention"};
  expect(used, 512, 0);
  used["layer_types"] = {"full_attention", "sliding_attention"};
  expect(used, 128, 128);
  used["layer_types"] = {"full_attention", "linear_attention"};
  ExpectUnsupported(used, "layer_types has 'linear_attention'");
  used["layer_types"] = {"full_attention"};
  ExpectInvalid(used, "layer_types is not an array of num_hidden_layers, 2, names");
}

TEST(ModelConfig, NumbersOutOfRangeAreRefusedWithTheirLimits) {
  struct Row {
    const char* field;
    json value;
    const char* why;
  };
  for (const Row& row :
       {Row{"hidden_size", 0, "hidden_size is 0; must be between 1 and 1048576"},
        {"hidden_size", -64, "hidden_size is -64"},
        {"num_hidden_layers", 1'000'000, "num_hidden_layers is 1000000; must be between 1 and 1024"},
        {"vocab_size", 18446744073709551615u, "vocab_size is 18446744073709551615"},
        {"vocab_size", int64_t{1} << 40, "vocab_size is 1099511627776"},
        {"intermediate_size", 1.5, "intermediate_size is 1.5; must be an integer"},
        {"intermediate_size", true, "intermediate_size is true"},
        {"num_attention_heads", "four", "num_attention_heads is 'four'"},
        {"num_key_value_heads", 3, "num_key_value_heads is 3, which does not divide"},
        {"hidden_size", 66, "hidden_size is 66, not a multiple of num_attention_heads, 4"},
        {"head_dim", 15, "head_dim is 15; must be an even number"},
        {"rms_norm_eps", -1e-6, "rms_norm_eps is -1e-06"},
        {"rms_norm_eps", nullptr, "rms_norm_eps is null"},
        {"max_position_embeddings", 0, "max_position_embeddings is 0"},
        {"tie_word_embeddings", 1, "tie_word_embeddings is 1; must be true or false"},
        {"model_type", 5, "model_type is 5; must be a string"}}) {
    ExpectInvalid(With(row.field, row.value), row.why);
  }
  ExpectInvalid(With("head_dim", nullptr, "qwen3"), "head_dim is null");
  json none = Base();
  none.erase("model_type");
  ExpectInvalid(none, "model_type is missing");
}

TEST(ModelConfig, TextThatIsNotAJsonObjectIsRefused) {
  const auto message = [](const std::string& text) {
    const auto parsed = ParseModelConfig(text, "D/config.json");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(parsed.status().message());
  };
  EXPECT_THAT(message(""), HasSubstr("D/config.json: is not JSON"));
  EXPECT_THAT(message("{"), HasSubstr("is not JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(message("{\"hidden_size\": NaN}"), HasSubstr("is not JSON"));
  EXPECT_THAT(message("{\"rope_theta\": 1e999}"), HasSubstr("is not JSON"));
  EXPECT_THAT(message("{\"a\": 1, \"a\": 2}"), HasSubstr("gives 'a' twice"));
  EXPECT_THAT(message("{\"a\": {\"b\": 1, \"b\": 2}}"), HasSubstr("gives 'b' twice"));
  EXPECT_THAT(message(std::string(100'000, '[')), HasSubstr("is nested more than 32 deep"));
  EXPECT_THAT(message(std::string(2 << 20, ' ')),
              HasSubstr("has 2097152 bytes, more than the 1048576 allowed"));
}

}  // namespace
}  // namespace bfio::worker
