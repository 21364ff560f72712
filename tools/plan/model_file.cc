#include "tools/plan/model_file.h"

#include <string>

#include "tools/plan/json_reader.h"

namespace bfio::plan {
namespace {

constexpr double kGiga = 1e9;
constexpr int64_t kLargest = int64_t{1} << 30;

absl::StatusOr<ModelSizes> FromSizes(JsonReader& reader) {
  reader.AllowOnly({"blocks", "block_gb", "cache_gb", "gflop_per_token"});
  ModelSizes sizes;
  sizes.service.blocks = static_cast<int32_t>(reader.NeededWhole("blocks", 1, core::kMostBlocks));
  sizes.service.block_size = reader.NeededNumber("block_gb", 0);
  sizes.service.cache_size = reader.NeededNumber("cache_gb", 0);
  sizes.gflop_per_token = reader.Number("gflop_per_token", 0);
  if (!reader.status().ok()) return reader.status();
  return sizes;
}

absl::StatusOr<ModelSizes> FromConfig(JsonReader& reader, const StorageOptions& storage) {
  const bool bloom = reader.Text("model_type").value_or("") == "bloom";
  const char* layers = reader.Has("num_hidden_layers") ? "num_hidden_layers" : "n_layer";
  const int64_t blocks = reader.NeededWhole(layers, 1, core::kMostBlocks);
  const auto hidden = static_cast<double>(reader.NeededWhole("hidden_size", 1, kLargest));
  // Parameters of a layer's matrices, and values cached for a token.
  double parameters = 12 * hidden * hidden, cached = 2 * hidden;
  if (!bloom) {
    const int64_t heads = reader.NeededWhole("num_attention_heads", 1, kLargest);
    const int64_t kv_heads = reader.Whole("num_key_value_heads", 1, kLargest).value_or(heads);
    const double head_dim = static_cast<double>(
        reader.Whole("head_dim", 1, kLargest).value_or(static_cast<int64_t>(hidden) / heads));
    const auto inner = static_cast<double>(reader.NeededWhole("intermediate_size", 1, kLargest));
    const double q = static_cast<double>(heads) * head_dim, kv = static_cast<double>(kv_heads) * head_dim;
    parameters = 2 * hidden * q + 2 * hidden * kv + 3 * hidden * inner;
    cached = 2 * kv;
  }
  if (!reader.status().ok()) return reader.status();
  ModelSizes sizes;
  sizes.service = {.blocks = static_cast<int32_t>(blocks),
                   .block_size = parameters * storage.weight_bytes / kGiga,
                   .cache_size = cached * storage.kv_bytes * storage.context_tokens / kGiga};
  sizes.gflop_per_token = 2 * parameters / kGiga;
  return sizes;
}

}  // namespace

absl::StatusOr<ModelSizes> ParseModel(absl::string_view text, absl::string_view source,
                                      const StorageOptions& storage) {
  const absl::StatusOr<nlohmann::json> json = ParseObject(text, source);
  if (!json.ok()) return json.status();
  JsonReader reader(*json, std::string(source));
  return reader.Has("hidden_size") ? FromConfig(reader, storage) : FromSizes(reader);
}

}  // namespace bfio::plan
