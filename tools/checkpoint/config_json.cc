#include "nlohmann/json.hpp"
#include "tools/checkpoint/generate.h"

namespace bfio::checkpoint {
namespace {

using json = nlohmann::ordered_json;
using worker::DType;
using worker::ModelConfig;
using worker::RopeConfig;
using Family = ModelConfig::Family;

const char* Architecture(Family family) {
  switch (family) {
    case Family::kLlama:
      return "LlamaForCausalLM";
    case Family::kMistral:
      return "MistralForCausalLM";
    case Family::kQwen2:
      return "Qwen2ForCausalLM";
    case Family::kQwen3:
      return "Qwen3ForCausalLM";
  }
  return "";
}

const char* TorchName(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF32:
      return "float32";
  }
  return "";
}

json RopeScaling(const RopeConfig& rope) {
  switch (rope.kind) {
    case RopeConfig::Kind::kDefault:
      return nullptr;
    case RopeConfig::Kind::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeConfig::Kind::kLlama3:
      break;
  }
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
    case Family::kMistral:
      config["sliding_window"] = nullptr;
      break;
    case Family::kQwen3:
      config["attention_bias"] = model.qkv_bias;
      [[fallthrough]];
    case Family::kQwen2:
      config["use_sliding_window"] = false;
      break;
  }
}

}  // namespace

std::string ConfigJson(const CheckpointOptions& options) {
  const ModelConfig& model = options.model;
  json config = {{"architectures", {Architecture(model.family)}},
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
                 {"torch_dtype", TorchName(options.dtype)}};
  if (!model.eos_token_ids.empty()) config["eos_token_id"] = model.eos_token_ids;
  AddFamilyFields(model, config);
  return config.dump(2) + "\n";
}

}  // namespace bfio::checkpoint
