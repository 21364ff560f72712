// Identifies the model that a worker holds, in 32 bytes: two workers whose digests differ may answer the same
// prompt differently, so they never serve in one group or chain. A SHA-256 over every field of ModelConfig
// and, for every tensor that it demands, name, dtype, shape and samples of its bytes. An engine adds how it
// computes with them (With): its name, and the types of weights and KV cache. Threads: plain data and pure
// functions.
//
// Of a tensor of more than n * 256 bytes, n samples of 256 bytes are hashed: its first bytes, its last bytes,
// and the others at even distances. n is SamplesPerTensor: 64, fewer if the model has more than 256 tensors,
// at least 2, so that at most 4 MiB are hashed. A contiguous change as long as 1/(n - 1) of its tensor always
// meets a sample; a change spread over a matrix is missed with a negligible probability. A change confined to
// a shorter range can be missed: the digest is not a checksum, and does not protect against a deliberately
// constructed model.
#pragma once

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
