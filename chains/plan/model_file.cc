#include "chains/plan/model_file.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "chains/plan/json_reader.h"
#include "common/json/json_reader.h"

namespace bfio::plan {
namespace {

constexpr double kGiga = 1e9;
constexpr int64_t kLargest = int64_t{1} << 30;
constexpr double kLeastGb = 1e-9;
// BLOOM's config has this name for hidden_size.
constexpr char kBloomsHidden[] = "n_embed";
// Other models than dense decoders with grouped heads have other sizes, even if their fields have the same
// names.
constexpr const char* kGatedFamilies[] = {"llama", "mistral", "qwen2", "qwen3"};
constexpr const char* kUnlikeFields[] = {"num_local_experts", "num_experts", "n_routed_experts",
                                         "kv_lora_rank"};

void CheckFamily(JsonReader& reader, const std::string& type) {
  const bool known = type == "bloom" || std::find(std::begin(kGatedFamilies), std::end(kGatedFamilies),
                                                  type) != std::end(kGatedFamilies);
  if (!known) {
    reader.Fail(absl::StrCat("model_type ",
                             type.empty() ? "is missing" : absl::StrCat("'", type, "' is not supported"),
                             " (bloom, ", absl::StrJoin(kGatedFamilies, ", "),
                             "); give a JSON file with blocks, block_gb and cache_gb instead"));
  }
  for (const char* field : kUnlikeFields) {
    if (reader.Has(field))
      reader.Fail(absl::StrCat(field,
                               ": models with experts or compressed caches are not supported; give a JSON "
                               "file with blocks, block_gb and cache_gb instead"));
  }
}

absl::StatusOr<ModelSizes> FromSizes(JsonReader& reader) {
  reader.AllowOnly({"blocks", "block_gb", "cache_gb", "gflop_per_token"});
  ModelSizes sizes;
  sizes.service.blocks = static_cast<int32_t>(reader.NeededWhole("blocks", 1, core::kMostBlocks));
  sizes.service.block_size = reader.NeededNumber("block_gb", kLeastGb);
  sizes.service.cache_size = reader.NeededNumber("cache_gb", kLeastGb);
  sizes.gflop_per_token = reader.Number("gflop_per_token", 0);
  if (!reader.status().ok()) return reader.status();
  return sizes;
}

absl::StatusOr<ModelSizes> FromConfig(JsonReader& reader, const StorageOptions& storage) {
  const std::string type = reader.Text("model_type").value_or("");
  CheckFamily(reader, type);
  const bool bloom = type == "bloom";
  const char* layers = reader.Has("num_hidden_layers") ? "num_hidden_layers" : "n_layer";
  const int64_t blocks = reader.NeededWhole(layers, 1, core::kMostBlocks);
  const auto hidden = static_cast<double>(
      reader.NeededWhole(reader.Has("hidden_size") ? "hidden_size" : kBloomsHidden, 1, kLargest));
  // Parameters of a layer's matrices, and values cached per token.
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
  if (!std::isfinite(sizes.service.cache_size) || !std::isfinite(sizes.service.block_size)) {
    reader.Fail(absl::StrCat("a block of ", sizes.service.block_size, " GB with ", sizes.service.cache_size,
                             " GB of cache per job is out of range"));
    return reader.status();
  }
  sizes.gflop_per_token = 2 * parameters / kGiga;
  return sizes;
}

}  // namespace

absl::StatusOr<ModelSizes> ParseModel(absl::string_view text, absl::string_view source,
                                      const StorageOptions& storage) {
  const absl::StatusOr<nlohmann::json> json = ReadJsonObject(text, source);
  if (!json.ok()) return json.status();
  JsonReader reader(*json, std::string(source));
  return reader.Has("hidden_size") || reader.Has(kBloomsHidden) ? FromConfig(reader, storage)
                                                                : FromSizes(reader);
}

}  // namespace bfio::plan
