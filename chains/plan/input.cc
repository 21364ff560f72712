#include "chains/plan/input.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/annotated.h"
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

// A field that is misspelt is an error.
void AllowOnly(const nlohmann::json& object, const std::vector<std::string>& known, JsonFields& fields) {
  for (const auto& item : object.items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    fields.Invalid(Quote(item.key()).c_str(),
                   absl::StrCat("is unknown; known fields: ", absl::StrJoin(known, ", ")));
  }
}

}  // namespace

absl::StatusOr<std::vector<core::ChainServer>> ParsePool(absl::string_view text, absl::string_view source,
                                                         const core::ChainService& model) {
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
    AllowOnly(object, {"name", "count", "memory_gb", "block_ms", "communication_ms"}, fields);
    core::ChainServer server;
    server.name = fields.String("name", absl::StrCat("server-", i));
    const int64_t count = fields.Integer("count", 1, 1, core::kMostServers);
    server.memory = Needed(fields, "memory_gb", 0);
    server.compute = 1e-3 * Needed(fields, "block_ms", 0);
    server.communication = 1e-3 * Needed(fields, "communication_ms", 0);
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
  BFIO_RETURN_IF_ERROR(Annotated(source, core::CheckPool(servers, model)));
  return servers;
}

absl::StatusOr<core::ChainService> ParseModel(absl::string_view text, absl::string_view source) {
  constexpr double kLeastGb = 1e-9;
  const absl::StatusOr<nlohmann::json> json = ReadJsonObject(text, source);
  if (!json.ok()) return json.status();
  absl::Status status;
  JsonFields fields(*json, absl::StrCat(source, ": "), &status);
  AllowOnly(*json, {"blocks", "block_gb", "cache_gb"}, fields);
  if (fields.Find("blocks") == nullptr) fields.Invalid("blocks", "is missing");
  core::ChainService model;
  model.blocks = static_cast<int32_t>(fields.Integer("blocks", 1, 1, core::kMostBlocks));
  model.block_size = Needed(fields, "block_gb", kLeastGb);
  model.cache_size = Needed(fields, "cache_gb", kLeastGb);
  BFIO_RETURN_IF_ERROR(status);
  return model;
}

}  // namespace bfio::plan
