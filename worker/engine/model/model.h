// A checkpoint, checked and mapped, for an engine to use. Configuration and weights of one model directory.
// All tensors that the configuration demands are present with the right shape, and no others. Weights stay in
// the files' pages and types; an engine converts or uploads what it needs. Threads: immutable once loaded;
// any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/model/checkpoint.h"
#include "worker/engine/model/model_config.h"
#include "worker/engine/model/model_digest.h"
#include "worker/engine/model/safetensors.h"

namespace bfio::worker {

// Weights of y = W x (+ b) are [outputs, inputs]. A tensor that the model does not have is not present().
// Tensors may differ in dtype.
struct LayerWeights {
  // [heads * head_dim, hidden]
  TensorView q;
  // [kv_heads * head_dim, hidden]
  TensorView k, v;
  // [hidden, heads * head_dim]
  TensorView o;
  // If ModelConfig::qkv_bias: [heads * head_dim], and twice [kv_heads * head_dim].
  TensorView q_bias, k_bias, v_bias;
  // If ModelConfig::output_bias: [hidden].
  TensorView o_bias;
  // If ModelConfig::qk_norm: [head_dim], shared by all heads.
  TensorView q_norm, k_norm;
  // [intermediate, hidden]
  TensorView gate, up;
  // [hidden, intermediate]
  TensorView down;
  // If ModelConfig::mlp_bias: [intermediate], [intermediate], [hidden].
  TensorView gate_bias, up_bias, down_bias;
  // [hidden]
  TensorView input_norm, post_attention_norm;
};

class Model {
 public:
  const ModelConfig& config() const { return config_; }
  // [vocab, hidden]
  const TensorView& embedding() const { return embedding_; }
  // [hidden]
  const TensorView& final_norm() const { return final_norm_; }
  // [vocab, hidden]; the embedding's memory if ModelConfig::tied_embeddings.
  const TensorView& lm_head() const { return lm_head_; }
  // ModelConfig::layers elements, in order.
  const std::vector<LayerWeights>& layers() const { return layers_; }
  // Lower bound of the bytes that a decode step reads: all weights as the files store them, tied ones once.
  int64_t weight_bytes() const { return weight_bytes_; }
  // Computed when the model was loaded.
  const ModelDigest& digest() const { return digest_; }

 private:
  friend class ModelBuilder;
  Model(ModelConfig config, std::unique_ptr<Checkpoint> checkpoint)
      : config_(std::move(config)), checkpoint_(std::move(checkpoint)) {}

  const ModelConfig config_;
  const std::unique_ptr<Checkpoint> checkpoint_;
  TensorView embedding_;
  TensorView final_norm_;
  TensorView lm_head_;
  std::vector<LayerWeights> layers_;
  int64_t weight_bytes_ = 0;
  ModelDigest digest_;
};

// Opens a directory in the layout of the Hugging Face hub: config.json, generation_config.json (optional,
// only its eos_token_id is used), model.safetensors or an index and its shards. Reads samples of every tensor
// (model_digest.h). An error names the file, the tensor or field, the value found and what was expected.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory);

}  // namespace bfio::worker
