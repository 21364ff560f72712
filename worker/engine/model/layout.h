// The tensors of a model, with their shapes. The one list that loading checks a checkpoint against and that a
// generator of checkpoints fills. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/engine/model/model.h"

namespace bfio::worker {

inline constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
inline constexpr char kFinalNormName[] = "model.norm.weight";
// Not in the list for a model with tied embeddings.
inline constexpr char kHeadName[] = "lm_head.weight";

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

struct LayerTensor {
  TensorView LayerWeights::*place;
  // Without LayerPrefix.
  std::string name;
  std::vector<int64_t> shape;
};

// "model.layers.7."
std::string LayerPrefix(int64_t layer);

// The tensors that every layer of such a model has.
std::vector<LayerTensor> LayerTensors(const ModelConfig& config);

// All tensors, in the order of their use.
std::vector<TensorSpec> ModelTensors(const ModelConfig& config);

}  // namespace bfio::worker
