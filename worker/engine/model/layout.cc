#include "worker/engine/model/layout.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::worker {

std::string LayerPrefix(int64_t layer) {
  return absl::StrCat("model.layers.", layer, ".");
}

std::vector<LayerTensor> LayerTensors(const ModelConfig& config) {
  using W = LayerWeights;
  const int64_t hidden = config.hidden, wide = config.intermediate;
  const int64_t query = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  std::vector<LayerTensor> tensors;
  const auto add = [&](bool has, TensorView W::*place, const char* name, std::vector<int64_t> shape) {
    if (has) tensors.push_back({place, name, std::move(shape)});
  };
  add(true, &W::input_norm, "input_layernorm.weight", {hidden});
  add(true, &W::q, "self_attn.q_proj.weight", {query, hidden});
  add(true, &W::k, "self_attn.k_proj.weight", {kv, hidden});
  add(true, &W::v, "self_attn.v_proj.weight", {kv, hidden});
  add(config.qkv_bias, &W::q_bias, "self_attn.q_proj.bias", {query});
  add(config.qkv_bias, &W::k_bias, "self_attn.k_proj.bias", {kv});
  add(config.qkv_bias, &W::v_bias, "self_attn.v_proj.bias", {kv});
  add(config.qk_norm, &W::q_norm, "self_attn.q_norm.weight", {config.head_dim});
  add(config.qk_norm, &W::k_norm, "self_attn.k_norm.weight", {config.head_dim});
  add(true, &W::o, "self_attn.o_proj.weight", {hidden, query});
  add(config.output_bias, &W::o_bias, "self_attn.o_proj.bias", {hidden});
  add(true, &W::post_attention_norm, "post_attention_layernorm.weight", {hidden});
  add(true, &W::gate, "mlp.gate_proj.weight", {wide, hidden});
  add(true, &W::up, "mlp.up_proj.weight", {wide, hidden});
  add(true, &W::down, "mlp.down_proj.weight", {hidden, wide});
  add(config.mlp_bias, &W::gate_bias, "mlp.gate_proj.bias", {wide});
  add(config.mlp_bias, &W::up_bias, "mlp.up_proj.bias", {wide});
  add(config.mlp_bias, &W::down_bias, "mlp.down_proj.bias", {hidden});
  return tensors;
}

std::vector<TensorSpec> ModelTensors(const ModelConfig& config) {
  std::vector<TensorSpec> tensors;
  tensors.push_back({kEmbeddingName, {config.vocab, config.hidden}});
  const std::vector<LayerTensor> layer = LayerTensors(config);
  for (int64_t i = 0; i < config.layers; ++i) {
    for (const LayerTensor& tensor : layer) tensors.push_back({LayerPrefix(i) + tensor.name, tensor.shape});
  }
  tensors.push_back({kFinalNormName, {config.hidden}});
  if (!config.tied_embeddings) tensors.push_back({kHeadName, {config.vocab, config.hidden}});
  return tensors;
}

}  // namespace bfio::worker
