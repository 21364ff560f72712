#include "worker/engine/model/model_config.h"

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/quote.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"
#include "worker/engine/model/rope.h"

namespace bfio::worker {
namespace {

using nlohmann::json;
using Family = ModelConfig::Family;

// Larger than any model of these families (Llama 405B: hidden 16,384, 126 layers, 128 heads), and small
// enough that no product of two overflows.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxPositions = 1 << 24;

// Defaults of a family's configuration class in transformers for absent fields.
struct Defaults {
  Family family;
  // Such as "LlamaForCausalLM".
  const char* architecture;
  int64_t vocab, intermediate, kv_heads, max_positions;
  // Absent: hidden / heads, also when the field is null.
  std::optional<int64_t> head_dim;
  std::optional<int32_t> eos;
};

constexpr Defaults kDefaults[] = {
    // Llama's kv_heads default to its heads, which default to 32.
    {Family::kLlama, "LlamaForCausalLM", 32000, 11008, 32, 2048, std::nullopt, 2},
    {Family::kMistral, "MistralForCausalLM", 32000, 14336, 8, 131072, std::nullopt, 2},
    {Family::kQwen2, "Qwen2ForCausalLM", 151936, 22016, 32, 32768, std::nullopt, std::nullopt},
    {Family::kQwen3, "Qwen3ForCausalLM", 151936, 22016, 32, 32768, 128, std::nullopt},
};

// Null when the type is absent or not supported.
const Defaults* ReadFamily(JsonFields& fields) {
  const std::string type = fields.String("model_type", "");
  for (const Defaults& defaults : kDefaults) {
    if (type == FamilyName(defaults.family)) return &defaults;
  }
  if (type.empty()) {
    fields.Invalid("model_type", "is missing");
  } else {
    fields.Unsupported("model_type",
                       absl::StrCat("is ", Quote(type), "; llama, mistral, qwen2 and qwen3 are supported"));
  }
  return nullptr;
}

void CheckArchitecture(JsonFields& fields, const Defaults& defaults) {
  const json* const found = fields.Find("architectures");
  if (found == nullptr || (found->is_array() && found->empty())) return;
  if (!found->is_array()) return fields.Invalid("architectures", "is not an array");
  const json& first = found->front();
  // Early conversions wrote "LLaMAForCausalLM".
  if (first.is_string() && absl::EqualsIgnoreCase(first.get_ref<const std::string&>(), defaults.architecture))
    return;
  fields.Unsupported("architectures", absl::StrCat("begins with ", Shown(first), "; ", defaults.architecture,
                                                   " is supported"));
}

// Rejects fields that change the computation and are not implemented.
void RefuseExtras(JsonFields& fields) {
  for (const char* const name : {"quantization_config", "compression_config"}) {
    if (fields.Find(name) != nullptr)
      fields.Unsupported(name, "is set; only unquantised weights are supported");
  }
  for (const char* const name :
       {"add_cross_attention", "is_encoder_decoder", "use_bidirectional_attention"}) {
    if (fields.Boolean(name, false)) fields.Unsupported(name, "is true");
  }
  if (!fields.Boolean("is_causal", true)) fields.Unsupported("is_causal", "is false");
  const std::string act = fields.String("hidden_act", "silu");
  // Two names of the same function.
  if (act != "silu" && act != "swish") {
    fields.Unsupported("hidden_act", absl::StrCat("is ", Quote(act), "; silu is supported"));
  }
}

// Whether any layer attends only over a window.
bool AnySlidingLayer(JsonFields& fields, const ModelConfig& config) {
  const json* const types = fields.Find("layer_types");
  if (types == nullptr) {
    if (config.family == Family::kMistral || config.family == Family::kLlama) return true;
    return fields.Integer("max_window_layers", 28, 0, kMaxLayers) < config.layers;
  }
  if (!types->is_array() || static_cast<int64_t>(types->size()) != config.layers) {
    fields.Invalid("layer_types",
                   absl::StrCat("is not an array of num_hidden_layers, ", config.layers, ", names"));
    return false;
  }
  bool any = false;
  for (const json& type : *types) {
    any = any || type == "sliding_attention";
    if (type != "full_attention" && type != "sliding_attention") {
      fields.Unsupported("layer_types", absl::StrCat("has ", Shown(type), "; full_attention is supported"));
    }
  }
  return any;
}

// Attention over a window is not implemented. Sequences no longer than the window are not affected by it, so
// the window bounds the sequence length.
void ReadSlidingWindow(JsonFields& fields, ModelConfig& config) {
  constexpr char kName[] = "sliding_window";
  const bool any_layer = AnySlidingLayer(fields, config);
  if (!any_layer || fields.IsNull(kName)) return;
  // Absent: Mistral has 4096 by default, and the Qwen families if they use a window; Llama has none.
  const bool qwen = config.family == Family::kQwen2 || config.family == Family::kQwen3;
  if (qwen && !fields.Boolean("use_sliding_window", false)) return;
  if (config.family == Family::kLlama && fields.Find(kName) == nullptr) return;
  const int64_t window = fields.Integer(kName, 4096, 1, int64_t{1} << 40);
  if (window >= config.max_positions) return;
  config.sliding_window = window;
  config.max_positions = window;
}

void ReadSizes(JsonFields& fields, const Defaults& defaults, ModelConfig& config) {
  config.vocab = fields.Integer("vocab_size", defaults.vocab, 1, kMaxVocab);
  config.hidden = fields.Integer("hidden_size", 4096, 1, kMaxWidth);
  config.intermediate = fields.Integer("intermediate_size", defaults.intermediate, 1, kMaxWidth);
  config.layers = fields.Integer("num_hidden_layers", 32, 1, kMaxLayers);
  config.heads = fields.Integer("num_attention_heads", 32, 1, kMaxHeads);
  config.max_positions = fields.Integer("max_position_embeddings", defaults.max_positions, 1, kMaxPositions);
  config.rms_epsilon = fields.Number("rms_norm_eps", 1e-6, 0, 1);
  const int64_t absent_kv_heads = config.family == Family::kLlama ? config.heads : defaults.kv_heads;
  config.kv_heads = fields.IntegerOrNull("num_key_value_heads", absent_kv_heads, config.heads, 1, kMaxHeads);
  if (config.heads % config.kv_heads != 0) {
    fields.Invalid(
        "num_key_value_heads",
        absl::StrCat("is ", config.kv_heads, ", which does not divide num_attention_heads, ", config.heads));
  }
}

void ReadHeadDim(JsonFields& fields, const Defaults& defaults, ModelConfig& config) {
  if (defaults.head_dim) {
    config.head_dim = fields.Integer("head_dim", *defaults.head_dim, 2, kMaxHeadDim);
  } else if (fields.Find("head_dim") != nullptr) {
    config.head_dim = fields.Integer("head_dim", 0, 2, kMaxHeadDim);
  } else if (config.hidden % config.heads != 0) {
    fields.Invalid("hidden_size",
                   absl::StrCat("is ", config.hidden, ", not a multiple of num_attention_heads, ",
                                config.heads, ", and head_dim is not set"));
  } else {
    config.head_dim = config.hidden / config.heads;
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    fields.Invalid("head_dim",
                   absl::StrCat("is ", config.head_dim, "; must be an even number of at most ", kMaxHeadDim));
  }
}

void ReadBiases(JsonFields& fields, ModelConfig& config) {
  const bool attention = fields.Boolean("attention_bias", config.family == Family::kQwen2);
  const bool mlp = fields.Boolean("mlp_bias", false);
  switch (config.family) {
    case Family::kLlama:
      config.qkv_bias = config.output_bias = attention;
      config.mlp_bias = mlp;
      return;
    case Family::kQwen2:
      // Fixed in this family.
      config.qkv_bias = true;
      if (!attention) fields.Unsupported("attention_bias", "is false; qwen2 requires it");
      break;
    case Family::kQwen3:
      config.qk_norm = true;
      config.qkv_bias = config.output_bias = attention;
      break;
    case Family::kMistral:
      if (attention) fields.Unsupported("attention_bias", "is true; mistral does not support it");
      break;
  }
  if (mlp) fields.Unsupported("mlp_bias", "is true; only llama supports it");
}

using nlohmann::json;

constexpr char kName[] = "eos_token_id";

}  // namespace

absl::string_view FamilyName(ModelConfig::Family family) {
  switch (family) {
    case Family::kLlama: return "llama";
    case Family::kMistral: return "mistral";
    case Family::kQwen2: return "qwen2";
    case Family::kQwen3: return "qwen3";
  }
  return "";
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view name) {
  BFIO_ASSIGN_OR_RETURN(const json document, ReadJsonObject(text, name));
  absl::Status status;
  const std::string where = absl::StrCat(name, ": ");
  JsonFields fields(document, where, &status);
  const Defaults* const defaults = ReadFamily(fields);
  if (defaults == nullptr) return status;
  ModelConfig config;
  config.family = defaults->family;
  CheckArchitecture(fields, *defaults);
  RefuseExtras(fields);
  ReadSizes(fields, *defaults, config);
  ReadHeadDim(fields, *defaults, config);
  ReadBiases(fields, config);
  config.tied_embeddings = fields.Boolean("tie_word_embeddings", false);
  config.rope = ReadRopeConfig(document, config.max_positions, where, &status);
  // After ReadRopeConfig, which needs the maximum position without a window.
  ReadSlidingWindow(fields, config);
  std::vector<int32_t> absent;
  if (defaults->eos && *defaults->eos < config.vocab) absent.push_back(*defaults->eos);
  config.eos_token_ids = ReadEosTokens(fields, absent, config.vocab);
  config.eos_by_default = fields.Find("eos_token_id") == nullptr && !fields.IsNull("eos_token_id");
  if (const json* const bos = fields.Find("bos_token_id"); bos != nullptr && bos->is_number_unsigned())
    config.bos_token_id = bos->get<int64_t>();
  if (!status.ok()) return status;
  return config;
}

std::vector<int32_t> ReadEosTokens(JsonFields& fields, const std::vector<int32_t>& absent, int64_t vocab) {
  if (fields.IsNull(kName)) return {};
  const json* const found = fields.Find(kName);
  if (found == nullptr) return absent;
  std::set<int32_t> ids;
  const auto add = [&](const json& id) {
    if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab)) {
      ids.insert(id.get<int32_t>());
    } else {
      fields.Invalid(kName, absl::StrCat("has ", Shown(id), "; token ids must be from 0 to ", vocab - 1));
    }
  };
  if (found->is_array()) {
    for (const json& id : *found) add(id);
  } else {
    add(*found);
  }
  return {ids.begin(), ids.end()};
}

absl::StatusOr<std::vector<int32_t>> ParseGenerationEosTokens(absl::string_view text, absl::string_view name,
                                                              int64_t vocab) {
  BFIO_ASSIGN_OR_RETURN(const json document, ReadJsonObject(text, name));
  absl::Status status;
  JsonFields fields(document, absl::StrCat(name, ": "), &status);
  std::vector<int32_t> ids = ReadEosTokens(fields, {}, vocab);
  if (!status.ok()) return status;
  return ids;
}

}  // namespace bfio::worker
