// A model's weights as the CPU engine computes with them.
//
// Purpose: matrices in fp32 or bf16, norms and biases in fp32. A matrix whose file already has the wanted
// type is used where the file is mapped, so ranks of one machine share it through the page cache; others are
// converted once. fp16 becomes fp32, exactly. A server of a pipeline has a part of them: consecutive blocks,
// and the ends (embedding, final norm, lm_head) where it is the head. What is outside of the part is neither
// read nor converted. Threads: immutable once made; ranks of a process share one.
#ifndef BFIO_WORKER_ENGINE_CPU_WEIGHTS_H_
#define BFIO_WORKER_ENGINE_CPU_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/engine/cpu/aligned.h"
#include "worker/engine/decode/model_part.h"
#include "worker/engine/model/element.h"
#include "worker/engine/model/model.h"

namespace bfio::worker::cpu {

// How matrices, or the KV cache, are kept. kAuto: matrices in bf16 where the checkpoint has bf16, all else in
// fp32.
enum class Storage { kAuto, kFp32, kBf16 };

// "auto", "fp32" or "bf16"; INVALID_ARGUMENT otherwise.
absl::StatusOr<Storage> ParseStorage(absl::string_view name);

using worker::FromBf16;
using worker::ToBf16;

// [outputs, inputs]
struct Matrix {
  const void* data = nullptr;
  bool bf16 = false;
  int64_t outputs = 0;
  int64_t inputs = 0;
  // [outputs]; empty: none.
  std::vector<float> bias;

  int64_t bytes() const { return outputs * inputs * (bf16 ? 2 : 4); }
};

struct Layer {
  Matrix q, k, v, o, gate, up, down;
  std::vector<float> input_norm, post_attention_norm;
  // Empty: none.
  std::vector<float> q_norm, k_norm;
};

class Weights {
 public:
  static std::unique_ptr<Weights> Make(std::shared_ptr<const Model> model, Storage storage);
  // REQUIRES: part.blocks is within the model's.
  static std::unique_ptr<Weights> Make(std::shared_ptr<const Model> model, Storage storage,
                                       const ModelPart& part);

  // The whole model's.
  const ModelConfig& config() const { return model_->config(); }
  const ModelPart& part() const { return part_; }
  const Model& model() const { return *model_; }
  Storage storage() const { return storage_; }
  // Matrix of rows rather than of a product. This, the head and the norm are empty in a part without ends.
  const Matrix& embedding() const { return embedding_; }
  const Matrix& lm_head() const { return lm_head_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  // The part's, first one first.
  const std::vector<Layer>& layers() const { return layers_; }
  // By the model's count. REQUIRES: part().blocks contains it.
  const Layer& block(int64_t index) const { return layers_[index - part_.blocks.first]; }
  // What a step reads at least: layers and lm_head; not the embedding, of which it reads a row per token.
  int64_t step_bytes() const;

 private:
  Weights(std::shared_ptr<const Model> model, Storage storage, const ModelPart& part);

  Matrix ToMatrix(const TensorView& tensor, const TensorView& bias = {});

  // Keeps the files mapped.
  const std::shared_ptr<const Model> model_;
  const Storage storage_;
  const ModelPart part_;
  Matrix embedding_, lm_head_;
  std::vector<float> final_norm_;
  std::vector<Layer> layers_;
  // What had to be converted.
  std::vector<std::vector<uint16_t, AlignedAllocator<uint16_t>>> converted_;
};

}  // namespace bfio::worker::cpu

#endif  // BFIO_WORKER_ENGINE_CPU_WEIGHTS_H_
