// Which model a worker holds, in 32 bytes.
//
// Purpose: two workers whose digests differ may give one prompt two answers, so they never serve in one group
// (router/group/group_set.h), never share an MLP out (--mlp=tp) and never serve one chain. A model's digest
// is a SHA-256 over
//   - the configuration: every field of ModelConfig, vocabulary and bos and eos ids among them;
//   - of every tensor that the configuration demands: name, dtype, shape, and samples of its bytes.
// An engine adds how it computes with them (With): its name, the types of weights and of the KV cache, and
// whether ranks share the MLP out.
//
// Samples. A tensor of at most n * 256 bytes is taken whole. Of a larger one n samples of 256 bytes are
// taken, the first of them its first bytes, the last its last bytes, the others evenly between; n is
// SamplesPerTensor: 64, fewer where the model has more than 256 tensors, never fewer than 2. Models with up
// to 8,192 tensors have at most 16,384 samples: 4 MiB are hashed, and at most 64 MiB of the files are read
// for them (a page of 4 KiB each, less what the system reads ahead). Llama-3.1-8B: 291 tensors, 56 samples
// each, 57 MiB of pages.
//
// What is found, what is missed. A run of changed bytes as long as 1/(n - 1) of its tensor meets a sample,
// wherever it lies. A change all over a matrix, as a merged LoRA, another finetune or a quantisation makes
// it, is missed only when none of the sampled elements changed: with a share p of the elements changed that
// is (1 - p)^(128 n) for 16-bit types, below 1e-30 for n = 56 and p = 1 %. A change confined to a shorter run
// (some rows of an embedding, one head) can be missed: the digest is no checksum of the files, and none
// against a deliberately constructed model. Tensors of the files that no engine uses are not looked at,
// nor are files beside the model's (a tokenizer's).
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
  // Of these bytes: for what has no checkpoint.
  static ModelDigest Of(absl::string_view bytes);

  // Of this and of `how` an engine computes with it.
  ModelDigest With(absl::string_view how) const;
  // 64 lower-case hexadecimal digits.
  std::string Hex() const;
  // Its first 8 bytes.
  uint64_t Number() const;

  friend bool operator==(const ModelDigest&, const ModelDigest&) = default;

 private:
  class Hasher;
  friend ModelDigest DigestOf(const Model& model);
  std::array<unsigned char, 32> bytes_ = {};
};

// Reads the samples: pages of the files that are not in memory yet come from the disk.
ModelDigest DigestOf(const Model& model);

inline constexpr int64_t kSampleBytes = 256;

// Of each tensor of a model that has so many. REQUIRES: tensors > 0.
int64_t SamplesPerTensor(int64_t tensors);

// Where the samples of a tensor of so many bytes begin, ascending; empty: it is taken whole.
// REQUIRES: samples > 1.
std::vector<int64_t> SampleOffsets(int64_t bytes, int64_t samples);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_MODEL_DIGEST_H_
