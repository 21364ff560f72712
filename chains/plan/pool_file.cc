#include "chains/plan/pool_file.h"

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "chains/plan/json_reader.h"
#include "common/json/json_reader.h"

namespace bfio::plan {
namespace {

// Time of a mean job in one block.
double BlockSeconds(JsonReader& reader, const ModelSizes& model, const JobOptions& options) {
  if (const auto measured = reader.Number("block_ms", 0)) return 1e-3 * *measured;
  core::ServerSpeed speed;
  speed.tflops = reader.NeededNumber("tflops", 1e-6);
  speed.memory_gb_per_s = reader.NeededNumber("memory_gb_per_s", 1e-6);
  if (!model.gflop_per_token.has_value())
    reader.Fail("tflops needs gflop_per_token in the model file; give that, or block_ms in place of tflops");
  const core::BlockCost block = {model.gflop_per_token.value_or(0), model.service.block_size};
  return core::ComputeSeconds(options.job, speed, block, options.block_overhead_s);
}

double MessageSeconds(JsonReader& reader, const JobOptions& options) {
  if (const auto measured = reader.Number("communication_ms", 0)) return 1e-3 * *measured;
  return core::CommunicationSeconds(options.job, 1e-3 * reader.NeededNumber("rtt_ms", 0),
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
    JsonReader reader((*list)[i], absl::StrCat(source, ": servers[", i, "]"));
    reader.AllowOnly({"name", "count", "memory_gb", "tflops", "memory_gb_per_s", "block_ms", "rtt_ms",
                      "communication_ms"});
    core::ChainServer server;
    server.name = reader.Text("name").value_or(absl::StrCat("server-", i));
    const int64_t count = reader.Whole("count", 1, core::kMostServers).value_or(1);
    server.memory = reader.NeededNumber("memory_gb", 0);
    server.compute = BlockSeconds(reader, model, options);
    server.communication = MessageSeconds(reader, options);
    if (!reader.status().ok()) return reader.status();
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
  const absl::Status status = core::CheckPool(servers, model.service);
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(source, ": ", status.message()));
  return servers;
}

}  // namespace bfio::plan
