// Which tensors a model has, and of which shapes.
//
// Purpose: the one list that loading checks a checkpoint against and that a generator of checkpoints fills
// in. Threads: pure functions.
#ifndef BFIO_WORKER_ENGINE_MODEL_LAYOUT_H_
#define BFIO_WORKER_ENGINE_MODEL_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "worker/engine/model/model.h"

namespace bfio::worker {

inline constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
inline constexpr char kFinalNormName[] = "model.norm.weight";
// Not in the list of a model with tied embeddings.
inline constexpr char kHeadName[] = "lm_head.weight";

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

struct LayerTensor {
  TensorView LayerWeights::*place;
  // Behind LayerPrefix.
  std::string name;
  std::vector<int64_t> shape;
};

// "model.layers.7."
std::string LayerPrefix(int64_t layer);

// What every layer of such a model has, and nothing that it does not have.
std::vector<LayerTensor> LayerTensors(const ModelConfig& config);

// All tensors, in the order in which they are used.
std::vector<TensorSpec> ModelTensors(const ModelConfig& config);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_LAYOUT_H_
