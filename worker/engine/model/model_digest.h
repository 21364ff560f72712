// Identifies the model that a worker holds, in 32 bytes.
//
// Purpose: two workers whose digests differ may answer the same prompt differently, so they never serve in
// one group (router/group/group_set.h) and never serve one chain. A model's digest is a SHA-256 over
//   - the configuration: every field of ModelConfig, including vocabulary, bos and eos ids;
//   - for every tensor that the configuration demands: name, dtype, shape, and samples of its bytes.
// An engine adds how it computes with them (With): its name, and the types of weights and KV cache.
//
// Samples. A tensor of at most n * 256 bytes is hashed whole. Of a larger one n samples of 256 bytes are
// hashed: its first bytes, its last bytes, and the others at even distances. n is SamplesPerTensor: 64, fewer
// if the model has more than 256 tensors, at least 2. Models with up to 8,192 tensors have at most 16,384
// samples: 4 MiB are hashed, and at most 64 MiB of the files are read for them (a page of 4 KiB each, plus
// the system's read-ahead). Llama-3.1-8B: 291 tensors, 56 samples each, 57 MiB of pages.
//
// Detection. A contiguous change as long as 1/(n - 1) of its tensor always meets a sample. A change spread
// over a matrix (a merged LoRA, another finetune, a quantisation) is missed only if no sampled element
// changed: with a share p of the elements changed, the probability is (1 - p)^(128 n) for 16-bit types, below
// 1e-30 for n = 56 and p = 1 %. A change confined to a shorter range (some rows of an embedding, one head)
// can be missed: the digest is not a checksum of the files and does not protect against a deliberately
// constructed model. Tensors that no engine uses, and files other than the model's (a tokenizer's), are not
// covered.
//
// Threads: plain data and pure functions.
#ifndef BFIO_WORKER_ENGINE_MODEL_MODEL_DIGEST_H_
#define BFIO_WORKER_ENGINE_MODEL_MODEL_DIGEST_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace bfio::worker {

class Model;

class ModelDigest {
 public:
  // Digest of these bytes; for models without a checkpoint.
  static ModelDigest Of(absl::string_view bytes);

  // Digest of this digest and `how`, a text that describes how an engine computes with the model.
  ModelDigest With(absl::string_view how) const;
  // 64 lower-case hexadecimal digits.
  std::string Hex() const;

  friend bool operator==(const ModelDigest&, const ModelDigest&) = default;

 private:
  class Hasher;
  friend ModelDigest DigestOf(const Model& model);
  std::array<unsigned char, 32> bytes_ = {};
};

// Reads the samples; pages of the files that are not in memory are read from disk.
ModelDigest DigestOf(const Model& model);

inline constexpr int64_t kSampleBytes = 256;

// Samples per tensor for a model with `tensors` tensors. REQUIRES: tensors > 0.
int64_t SamplesPerTensor(int64_t tensors);

// Byte offsets of the samples of a tensor of `bytes` bytes, ascending; empty: it is hashed whole. REQUIRES:
// samples > 1.
std::vector<int64_t> SampleOffsets(int64_t bytes, int64_t samples);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_MODEL_DIGEST_H_
