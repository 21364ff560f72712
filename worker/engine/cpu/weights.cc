#include "worker/engine/cpu/weights.h"

#include <cstring>
#include <utility>

namespace bfio::worker::cpu {
namespace {

std::vector<float> ToVector(const TensorView& tensor) {
  std::vector<float> values;
  if (!tensor.present()) return values;
  const int64_t count = tensor.elements();
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values.push_back(ElementAt(tensor, i));
  return values;
}

bool WantsBf16(const TensorView& tensor, Storage storage) {
  return storage == Storage::kBf16 || (storage == Storage::kAuto && tensor.dtype == DType::kBF16);
}

}  // namespace

std::unique_ptr<Weights> Weights::Make(std::shared_ptr<const Model> model, Storage storage) {
  const ModelPart whole = WholeModel(model->config().layers);
  return Make(std::move(model), storage, whole);
}

std::unique_ptr<Weights> Weights::Make(std::shared_ptr<const Model> model, Storage storage,
                                       const ModelPart& part) {
  return std::unique_ptr<Weights>(new Weights(std::move(model), storage, part));
}

Weights::Weights(std::shared_ptr<const Model> model, Storage storage, const ModelPart& part)
    : model_(std::move(model)), storage_(storage), part_(part) {
  if (part_.ends) {
    embedding_ = ToMatrix(model_->embedding());
    lm_head_ = config().tied_embeddings ? embedding_ : ToMatrix(model_->lm_head());
    final_norm_ = ToVector(model_->final_norm());
  }
  for (int32_t index = part_.blocks.first; index < part_.blocks.end(); ++index) {
    const LayerWeights& from = model_->layers()[index];
    Layer& layer = layers_.emplace_back();
    layer.q = ToMatrix(from.q, from.q_bias);
    layer.k = ToMatrix(from.k, from.k_bias);
    layer.v = ToMatrix(from.v, from.v_bias);
    layer.o = ToMatrix(from.o, from.o_bias);
    layer.gate = ToMatrix(from.gate, from.gate_bias);
    layer.up = ToMatrix(from.up, from.up_bias);
    layer.down = ToMatrix(from.down, from.down_bias);
    layer.input_norm = ToVector(from.input_norm);
    layer.post_attention_norm = ToVector(from.post_attention_norm);
    layer.q_norm = ToVector(from.q_norm);
    layer.k_norm = ToVector(from.k_norm);
  }
}

Matrix Weights::ToMatrix(const TensorView& tensor, const TensorView& bias) {
  Matrix matrix;
  matrix.outputs = tensor.shape[0];
  matrix.inputs = tensor.shape[1];
  matrix.bf16 = WantsBf16(tensor, storage_);
  matrix.bias = ToVector(bias);
  if (tensor.dtype == (matrix.bf16 ? DType::kBF16 : DType::kF32)) {
    matrix.data = tensor.data;
    return matrix;
  }
  const int64_t count = tensor.elements();
  uint16_t* const halves = converted_.emplace_back(static_cast<size_t>(matrix.bytes() / 2)).data();
  for (int64_t i = 0; i < count; ++i) {
    const float value = ElementAt(tensor, i);
    if (matrix.bf16) {
      halves[i] = ToBf16(value);
    } else {
      std::memcpy(halves + 2 * i, &value, 4);
    }
  }
  matrix.data = halves;
  return matrix;
}

int64_t Weights::step_bytes() const {
  int64_t bytes = lm_head_.bytes();
  for (const Layer& layer : layers_) {
    for (const Matrix* matrix :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      bytes += matrix->bytes();
    }
  }
  return bytes;
}

}  // namespace bfio::worker::cpu
