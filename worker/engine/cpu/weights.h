// A model's weights as the CPU engine uses them. Matrices in fp32 or bf16, norms and biases in fp32. A matrix
// whose file already has the wanted type is used from the mapped file, so ranks on one machine share it
// through the page cache; others are converted once. fp16 is converted to fp32, exactly. A server of a chain
// has a part of the weights: consecutive blocks, and the ends (embedding, final norm, lm_head) if it is the
// head. Weights outside the part are neither read nor converted. Threads: immutable once made; the ranks of a
// process share one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "worker/engine/decode/model_part.h"
#include "worker/engine/model/element.h"
#include "worker/engine/model/model.h"

namespace bfio::worker::cpu {

// Float arrays that begin at a cache line. A vector of the kernels is 64 bytes. Loaded from the middle of a
// cache line it takes two accesses, which was measured to cost matrix products of many rows much of their
// speed. Threads: as std::vector.
template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}

  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kAlignment)); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kAlignment); }
  template <typename U>
  bool operator==(const AlignedAllocator<U>&) const {
    return true;
  }
};

using AlignedFloats = std::vector<float, AlignedAllocator<float>>;

// Storage type of matrices. kAuto: bf16 for those that are bf16 in the checkpoint, fp32 for all others.
enum class Storage { kAuto, kFp32, kBf16 };

using worker::FromBf16;
using worker::ToBf16;

// [outputs, inputs]
struct Matrix {
  const void* data = nullptr;
  bool bf16 = false;
  int64_t outputs = 0;
  int64_t inputs = 0;
  // [outputs]; empty: no bias.
  std::vector<float> bias;

  int64_t bytes() const { return outputs * inputs * (bf16 ? 2 : 4); }
};

struct Layer {
  Matrix q, k, v, o, gate, up, down;
  std::vector<float> input_norm, post_attention_norm;
  // Empty: no q/k norm.
  std::vector<float> q_norm, k_norm;
};

class Weights {
 public:
  static std::unique_ptr<Weights> Make(std::shared_ptr<const Model> model, Storage storage);
  // REQUIRES: part.blocks is within the model's.
  static std::unique_ptr<Weights> Make(std::shared_ptr<const Model> model, Storage storage,
                                       const ModelPart& part);

  // Configuration of the whole model.
  const ModelConfig& config() const { return model_->config(); }
  const ModelPart& part() const { return part_; }
  // Rows are looked up, not multiplied. Embedding, lm_head and final norm are empty in a part without ends.
  const Matrix& embedding() const { return embedding_; }
  const Matrix& lm_head() const { return lm_head_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  // The part's layers, in order.
  const std::vector<Layer>& layers() const { return layers_; }
  // `index` counts the whole model's blocks. REQUIRES: part().blocks contains it.
  const Layer& block(int64_t index) const { return layers_[index - part_.blocks.first]; }
  // Lower bound of the bytes that a step reads: layers and lm_head. The embedding is excluded: a step reads
  // one row of it per token.
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
  // Matrices that had to be converted.
  std::vector<std::vector<uint16_t, AlignedAllocator<uint16_t>>> converted_;
};

}  // namespace bfio::worker::cpu
