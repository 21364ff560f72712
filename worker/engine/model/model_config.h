// The part of a checkpoint's config.json that describes the model: sizes, biases, rotary embedding. One
// struct for the supported families (Llama, Mistral, Qwen2, Qwen3), with the defaults of transformers for
// absent and null fields. Fields that would change the computation and are not implemented are rejected by
// name. Threads: plain data and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/json/json_fields.h"

namespace bfio::worker {

// Reads the field `eos_token_id`: a number, a list of numbers or null (none). The result is ascending without
// duplicates, each in [0, vocab). `absent`: the result when the field is missing.
std::vector<int32_t> ReadEosTokens(JsonFields& fields, const std::vector<int32_t>& absent, int64_t vocab);

// The same from the text of a generation_config.json; empty when it names none.
absl::StatusOr<std::vector<int32_t>> ParseGenerationEosTokens(absl::string_view json, absl::string_view name,
                                                              int64_t vocab);

// The rotary embedding: `rope_theta` and `rope_scaling`, or the newer `rope_parameters`.
struct RopeConfig {
  enum class Kind { kDefault, kLinear, kLlama3 };

  Kind kind = Kind::kDefault;
  double theta = 10000;
  // For kLinear and kLlama3; at least 1.
  double factor = 1;
  // For kLlama3; 0 < low < high.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  // Context length that the model was trained with before the frequencies were scaled, in tokens.
  int64_t original_max_positions = 8192;
};

struct ModelConfig {
  enum class Family { kLlama, kMistral, kQwen2, kQwen3 };

  Family family = Family::kLlama;
  // Sizes of vectors, in elements. The query is heads * head_dim wide, which need not be `hidden`.
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  // Divides `heads`.
  int64_t kv_heads = 0;
  // Even.
  int64_t head_dim = 0;
  int64_t vocab = 0;
  // Upper bound of a request's prompt + output, in tokens: max_position_embeddings, or sliding_window.
  int64_t max_positions = 0;
  // Window of layers with sliding-window attention, in tokens, where it limits max_positions: requests end
  // before they exceed it. 0: no limit.
  int64_t sliding_window = 0;
  double rms_epsilon = 0;
  // The output projection uses the embedding's weights.
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  // RMSNorm over each head of query and key, before the rotation.
  bool qk_norm = false;
  RopeConfig rope;
  // The token that begins a sequence, if the file names one. Engines do not use it, because prompts come as
  // token ids; but models that differ in it are made for different clients (ModelDigest).
  std::optional<int64_t> bos_token_id;
  // Tokens that end a sequence, ascending; each in [0, vocab). May be empty.
  std::vector<int32_t> eos_token_ids;
  // True: eos_token_ids are the family's defaults, because the file names none.
  bool eos_by_default = false;
};

// "llama", "mistral", "qwen2" or "qwen3": config.json's model_type.
absl::string_view FamilyName(ModelConfig::Family family);

// Parses the text of a config.json. Every error message begins with `name`, its path. INVALID_ARGUMENT: not
// JSON, or a field of the wrong type or out of range; UNIMPLEMENTED: a model that the engines cannot run,
// with the field and its value.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view name);

}  // namespace bfio::worker
