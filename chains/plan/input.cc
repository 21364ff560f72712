#include "chains/plan/input.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/quote.h"
#include "common/base/status_macros.h"
#include "common/json/json_fields.h"
#include "common/json/json_reader.h"

namespace bfio::plan {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double Needed(JsonFields& fields, const char* name, double least) {
  if (fields.Find(name) == nullptr) fields.Invalid(name, "is missing");
  return fields.Number(name, least, least, kNoLimit);
}
int64_t NeededWhole(JsonFields& fields, const char* name, int64_t most) {
  if (fields.Find(name) == nullptr) fields.Invalid(name, "is missing");
  return fields.Integer(name, 1, 1, most);
}

// A field that is misspelt is an error.
void AllowOnly(const nlohmann::json& object, const std::vector<std::string>& known, JsonFields& fields) {
  for (const auto& item : object.items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    fields.Invalid(Quote(item.key()).c_str(),
                   absl::StrCat("is unknown; known fields: ", absl::StrJoin(known, ", ")));
  }
}

// Time of a mean job in one block.
double BlockSeconds(JsonFields& fields, const ModelSizes& model, const JobOptions& options) {
  if (fields.Find("block_ms") != nullptr) return 1e-3 * Needed(fields, "block_ms", 0);
  core::ServerSpeed speed;
  speed.tflops = Needed(fields, "tflops", 1e-6);
  speed.memory_gb_per_s = Needed(fields, "memory_gb_per_s", 1e-6);
  if (!model.gflop_per_token.has_value())
    fields.Invalid("tflops",
                   "needs gflop_per_token in the model file; give that, or block_ms in place of tflops");
  const core::BlockCost block = {model.gflop_per_token.value_or(0), model.service.block_size};
  return core::ComputeSeconds(options.job, speed, block, options.block_overhead_s);
}

double MessageSeconds(JsonFields& fields, const JobOptions& options) {
  if (fields.Find("communication_ms") != nullptr) return 1e-3 * Needed(fields, "communication_ms", 0);
  return core::CommunicationSeconds(options.job, 1e-3 * Needed(fields, "rtt_ms", 0),
                                    options.message_overhead_s);
}

}  // namespace

absl::StatusOr<std::vector<core::ChainServer>> ParsePool(absl::string_view text, absl::string_view source,
                                                         const ModelSizes& model, const JobOptions& options) {
  const absl::StatusOr<nlohmann::json> json = ReadJsonObject(text, source);
  if (!json.ok()) return json.status();
  const auto list = json->find("servers");
  if (list == json->end() || !list->is_array() || json->size() != 1)
    return absl::InvalidArgumentError(
        absl::StrCat(source, " must have exactly one field, the list 'servers'"));
  std::vector<core::ChainServer> servers;
  // Plans refer to servers by name, so names must be unique.
  absl::flat_hash_map<std::string, size_t> named;
  for (size_t i = 0; i < list->size(); ++i) {
    const nlohmann::json& object = (*list)[i];
    const std::string where = absl::StrCat(source, ": servers[", i, "]: ");
    if (!object.is_object()) return absl::InvalidArgumentError(absl::StrCat(where, "is not a JSON object"));
    absl::Status status;
    JsonFields fields(object, where, &status);
    AllowOnly(
        object,
        {"name", "count", "memory_gb", "tflops", "memory_gb_per_s", "block_ms", "rtt_ms", "communication_ms"},
        fields);
    core::ChainServer server;
    server.name = fields.String("name", absl::StrCat("server-", i));
    const int64_t count = fields.Integer("count", 1, 1, core::kMostServers);
    server.memory = Needed(fields, "memory_gb", 0);
    server.compute = BlockSeconds(fields, model, options);
    server.communication = MessageSeconds(fields, options);
    BFIO_RETURN_IF_ERROR(status);
    if (servers.size() + static_cast<size_t>(count) > core::kMostServers) {
      return absl::InvalidArgumentError(absl::StrCat(source, ": more than ", core::kMostServers, " servers"));
    }
    for (int64_t k = 0; k < count; ++k) {
      servers.push_back(server);
      std::string& name = servers.back().name;
      if (count > 1) absl::StrAppend(&name, "-", k);
      if (const auto [same, is_new] = named.try_emplace(name, i); !is_new) {
        return absl::InvalidArgumentError(absl::StrCat(source, ": servers[", same->second, "] and servers[",
                                                       i, "] have the same name '", name, "'"));
      }
    }
  }
  const absl::Status checked = core::CheckPool(servers, model.service);
  if (!checked.ok()) return absl::InvalidArgumentError(absl::StrCat(source, ": ", checked.message()));
  return servers;
}

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

void CheckFamily(JsonFields& fields, const std::string& type) {
  const bool known = type == "bloom" || std::find(std::begin(kGatedFamilies), std::end(kGatedFamilies),
                                                  type) != std::end(kGatedFamilies);
  if (!known) {
    fields.Invalid("model_type",
                   absl::StrCat(type.empty() ? "is missing" : absl::StrCat("'", type, "' is not supported"),
                                " (bloom, ", absl::StrJoin(kGatedFamilies, ", "),
                                "); give a JSON file with blocks, block_gb and cache_gb instead"));
  }
  for (const char* field : kUnlikeFields) {
    if (fields.Find(field) != nullptr)
      fields.Invalid(field,
                     "is set: models with experts or compressed caches are not supported; give a JSON file "
                     "with blocks, block_gb and cache_gb instead");
  }
}

ModelSizes FromSizes(const nlohmann::json& object, JsonFields& fields) {
  AllowOnly(object, {"blocks", "block_gb", "cache_gb", "gflop_per_token"}, fields);
  ModelSizes sizes;
  sizes.service.blocks = static_cast<int32_t>(NeededWhole(fields, "blocks", core::kMostBlocks));
  sizes.service.block_size = Needed(fields, "block_gb", kLeastGb);
  sizes.service.cache_size = Needed(fields, "cache_gb", kLeastGb);
  if (fields.Find("gflop_per_token") != nullptr) sizes.gflop_per_token = Needed(fields, "gflop_per_token", 0);
  return sizes;
}

ModelSizes FromConfig(JsonFields& fields, const StorageOptions& storage, absl::Status& status) {
  const std::string type = fields.String("model_type", "");
  CheckFamily(fields, type);
  const bool bloom = type == "bloom";
  const char* layers = fields.Find("num_hidden_layers") != nullptr ? "num_hidden_layers" : "n_layer";
  const int64_t blocks = NeededWhole(fields, layers, core::kMostBlocks);
  const auto hidden = static_cast<double>(
      NeededWhole(fields, fields.Find("hidden_size") != nullptr ? "hidden_size" : kBloomsHidden, kLargest));
  // Parameters of a layer's matrices, and values cached per token.
  double parameters = 12 * hidden * hidden, cached = 2 * hidden;
  if (!bloom) {
    const int64_t heads = NeededWhole(fields, "num_attention_heads", kLargest);
    const int64_t kv_heads = fields.IntegerOrNull("num_key_value_heads", heads, heads, 1, kLargest);
    const int64_t usual = static_cast<int64_t>(hidden) / heads;
    const auto head_dim = static_cast<double>(fields.IntegerOrNull("head_dim", usual, usual, 1, kLargest));
    const auto inner = static_cast<double>(NeededWhole(fields, "intermediate_size", kLargest));
    const double q = static_cast<double>(heads) * head_dim, kv = static_cast<double>(kv_heads) * head_dim;
    parameters = 2 * hidden * q + 2 * hidden * kv + 3 * hidden * inner;
    cached = 2 * kv;
  }
  ModelSizes sizes;
  sizes.service = {.blocks = static_cast<int32_t>(blocks),
                   .block_size = parameters * storage.weight_bytes / kGiga,
                   .cache_size = cached * storage.kv_bytes * storage.context_tokens / kGiga};
  if (!std::isfinite(sizes.service.cache_size) || !std::isfinite(sizes.service.block_size)) {
    status.Update(absl::InvalidArgumentError(absl::StrCat("a block of ", sizes.service.block_size,
                                                          " GB with ", sizes.service.cache_size,
                                                          " GB of cache per job is out of range")));
  }
  sizes.gflop_per_token = 2 * parameters / kGiga;
  return sizes;
}

}  // namespace

absl::StatusOr<ModelSizes> ParseModel(absl::string_view text, absl::string_view source,
                                      const StorageOptions& storage) {
  const absl::StatusOr<nlohmann::json> json = ReadJsonObject(text, source);
  if (!json.ok()) return json.status();
  absl::Status status;
  JsonFields fields(*json, absl::StrCat(source, ": "), &status);
  const bool config = fields.Find("hidden_size") != nullptr || fields.Find(kBloomsHidden) != nullptr;
  const ModelSizes sizes = config ? FromConfig(fields, storage, status) : FromSizes(*json, fields);
  BFIO_RETURN_IF_ERROR(status);
  return sizes;
}

}  // namespace bfio::plan
