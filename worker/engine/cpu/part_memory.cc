#include "worker/engine/cpu/part_memory.h"

#include <algorithm>

#include "worker/engine/model/layout.h"

namespace bfio::worker::cpu {
namespace {

int64_t MatrixBytes(const TensorView& tensor, Storage storage) {
  if (!tensor.present()) return 0;
  // Norms and biases are kept in fp32.
  if (tensor.shape.size() < 2) return 4 * tensor.elements();
  const bool bf16 = storage == Storage::kBf16 || (storage == Storage::kAuto && tensor.dtype == DType::kBF16);
  return (bf16 ? 2 : 4) * tensor.elements();
}

}  // namespace

ModelBytes BytesOf(const Model& model, Storage weights) {
  const ModelConfig& config = model.config();
  ModelBytes bytes;
  bytes.ends = MatrixBytes(model.embedding(), weights) + MatrixBytes(model.final_norm(), weights);
  if (!config.tied_embeddings) bytes.ends += MatrixBytes(model.lm_head(), weights);
  const std::vector<LayerTensor> tensors = LayerTensors(config);
  for (const LayerWeights& layer : model.layers()) {
    int64_t block = 0;
    for (const LayerTensor& tensor : tensors) block += MatrixBytes(layer.*tensor.place, weights);
    bytes.block = std::max(bytes.block, block);
  }
  bytes.kv_token = PartShape(config, 1, kLanes, 1).token_bytes();
  return bytes;
}

KvShape PartShape(const ModelConfig& config, int64_t blocks, int32_t page_tokens, int64_t pages) {
  KvShape shape;
  shape.layers = blocks;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.page_tokens = page_tokens;
  shape.pages = pages;
  return shape;
}

}  // namespace bfio::worker::cpu
