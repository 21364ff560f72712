// A checkpoint, checked and mapped, for an engine to use. Configuration and weights of one model directory.
// All tensors that the configuration demands are present with the right shape, and no others. Weights stay in
// the files' pages and types; an engine converts or uploads what it needs. Threads: immutable once loaded;
// any thread may read.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/engine/model/model_config.h"
#include "worker/engine/model/safetensors.h"

namespace bfio::worker {

// The tensors of a checkpoint in one or more files. Locates each tensor, and checks the index and the shards
// against each other. Threads: immutable once open; any thread may read.

// Tensor name -> file name, as in a model.safetensors.index.json.
using WeightMap = std::map<std::string, std::string, std::less<>>;

// Parses the text of an index. File names are plain and end in ".safetensors". Every error message begins
// with `path`. INVALID_ARGUMENT: malformed.
absl::StatusOr<WeightMap> ParseWeightMap(absl::string_view json, absl::string_view path);

// The tensors of a checkpoint directory: model.safetensors.index.json and its shards when there is an index,
// model.safetensors otherwise. The index and the shards must agree on which tensor is in which file. A
// shard's name is a plain file name (a symbolic link may point out of the directory, as in a download cache).
class Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory);

  const TensorMap& tensors() const { return tensors_; }
  // Path of the file that holds the tensor. REQUIRES: tensors() has it.
  const std::string& FileOf(absl::string_view name) const;

 private:
  Checkpoint() = default;
  void Add(std::unique_ptr<SafetensorsFile> file);
  absl::Status AddShards(const std::string& directory, const std::string& index);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  TensorMap tensors_;
  std::map<std::string, const SafetensorsFile*, std::less<>> file_of_;
};

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
// (ModelDigest). An error names the file, the tensor or field, the value found and what was expected.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory);

}  // namespace bfio::worker
