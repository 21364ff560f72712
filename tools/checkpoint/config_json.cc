#include "nlohmann/json.hpp"
#include "tools/checkpoint/generate.h"

namespace bfio::checkpoint {
namespace {

using json = nlohmann::ordered_json;
using worker::ModelConfig;
using worker::RopeConfig;
using Family = ModelConfig::Family;

// In the order of Family and of DType.
constexpr const char* kArchitectures[] = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
                                          "Qwen3ForCausalLM"};
constexpr const char* kTorchNames[] = {"bfloat16", "float16", "float32"};

json RopeScaling(const RopeConfig& rope) {
  if (rope.kind == RopeConfig::Kind::kDefault) return nullptr;
  if (rope.kind == RopeConfig::Kind::kLinear) return {{"rope_type", "linear"}, {"factor", rope.factor}};
  return {{"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_position_embeddings", rope.original_max_positions}};
}

// Adds the fields that only some model families have.
void AddFamilyFields(const ModelConfig& model, json& config) {
  switch (model.family) {
    case Family::kLlama:
      config["attention_bias"] = model.qkv_bias;
      config["mlp_bias"] = model.mlp_bias;
      break;
    case Family::kMistral: config["sliding_window"] = nullptr; break;
    case Family::kQwen3: config["attention_bias"] = model.qkv_bias; [[fallthrough]];
    case Family::kQwen2: config["use_sliding_window"] = false; break;
  }
}

}  // namespace

std::string ConfigJson(const CheckpointOptions& options) {
  const ModelConfig& model = options.model;
  json config = {{"architectures", {kArchitectures[static_cast<int>(model.family)]}},
                 {"model_type", std::string(FamilyName(model.family))},
                 {"vocab_size", model.vocab},
                 {"hidden_size", model.hidden},
                 {"intermediate_size", model.intermediate},
                 {"num_hidden_layers", model.layers},
                 {"num_attention_heads", model.heads},
                 {"num_key_value_heads", model.kv_heads},
                 {"head_dim", model.head_dim},
                 {"hidden_act", "silu"},
                 {"max_position_embeddings", model.max_positions},
                 {"rms_norm_eps", model.rms_epsilon},
                 {"tie_word_embeddings", model.tied_embeddings},
                 {"rope_theta", model.rope.theta},
                 {"rope_scaling", RopeScaling(model.rope)},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr},
                 {"torch_dtype", kTorchNames[static_cast<int>(options.dtype)]}};
  if (!model.eos_token_ids.empty()) config["eos_token_id"] = model.eos_token_ids;
  AddFamilyFields(model, config);
  return config.dump(2) + "\n";
}

}  // namespace bfio::checkpoint
