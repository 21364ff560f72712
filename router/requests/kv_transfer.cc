#include "router/requests/kv_transfer.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"

namespace bfio::router {
namespace {

constexpr size_t kMaxIdBytes = 256;
// Lists of blocks: one for each group of layers.
constexpr size_t kMostGroups = 64;

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

// Block 0 is vLLM's for layers that need none.
absl::Status CheckBlocks(const nlohmann::json& list, size_t most) {
  if (list.size() > most)
    return Wrong(
        absl::StrCat("remote_block_ids has ", list.size(), " blocks; the prompt has at most ", most));
  std::vector<uint64_t> ids;
  for (const nlohmann::json& id : list) {
    if (!id.is_number_unsigned() || id > std::numeric_limits<int32_t>::max())
      return Wrong("remote_block_ids are not numbers of blocks");
    if (id != 0) ids.push_back(id.get<uint64_t>());
  }
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end())
    return Wrong("remote_block_ids has a block twice");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<KvTransfer> ReadKvTransfer(absl::string_view text, size_t most_blocks, size_t least_blocks) {
  BFIO_ASSIGN_OR_RETURN(
      const nlohmann::json fields,
      ReadJsonObject(text, "", {.bytes = 8 << 20, .values = (16 << 10) + 2 * most_blocks},
                     {"do_remote_prefill", "do_remote_decode", "remote_request_id", "transfer_id",
                      "remote_engine_id", "remote_block_ids", "remote_host", "remote_port",
                      "remote_bootstrap_addr", "tp_size", "dcp_size", "pp_size"}));
  const auto field = [&](const char* name) { return fields.value(name, nlohmann::json()); };
  KvTransfer transfer;
  const nlohmann::json fetches = field("do_remote_prefill");
  if (fetches == false || fetches.is_null()) return transfer;
  if (fetches != true || field("do_remote_decode") == true)
    return Wrong("do_remote_prefill and do_remote_decode do not say which side fetches");
  transfer.fetches = true;
  const auto id = [&](const char* name) {
    const nlohmann::json value = field(name);
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    return text.size() <= kMaxIdBytes ? text : "";
  };
  for (const char* const name : {"remote_request_id", "transfer_id"})
    if (transfer.name.empty()) transfer.name = id(name);
  if (transfer.name.empty()) return Wrong("neither remote_request_id nor transfer_id names the KV");
  for (const char* const name : {"remote_engine_id", "remote_host", "remote_bootstrap_addr"})
    if (!field(name).is_null() && id(name).empty()) return Wrong(absl::StrCat(name, " is not a name"));
  for (const auto& [name, most] : {std::pair("remote_port", 65'535), std::pair("tp_size", 1024),
                                   std::pair("dcp_size", 1024), std::pair("pp_size", 1024)}) {
    const nlohmann::json number = field(name);
    if (!number.is_null() && (!number.is_number_unsigned() || number < 1 || number > most))
      return Wrong(absl::StrCat(name, " is not a number within 1..", most));
  }
  transfer.engine = id("remote_engine_id");
  const nlohmann::json port = field("remote_port"), blocks = field("remote_block_ids");
  if (!field("remote_host").is_null() && !port.is_null())
    transfer.source = absl::StrCat(id("remote_host"), ":", port.get<int>());
  // Without one of these the request would hang in vLLM, or end it.
  if (!field("remote_request_id").is_null() &&
      (transfer.engine.empty() || transfer.source.empty() || blocks.is_null()))
    return Wrong("remote_engine_id, remote_host, remote_port or remote_block_ids is missing");
  if (blocks.is_null()) return transfer;
  // A list for each group of layers, or one.
  const bool grouped = blocks.is_array() && !blocks.empty() && blocks.front().is_array();
  if (!blocks.is_array() || (grouped && blocks.size() > kMostGroups))
    return Wrong("remote_block_ids names no blocks");
  size_t longest = 0;
  for (const nlohmann::json& list : grouped ? blocks : nlohmann::json::array({blocks})) {
    if (!list.is_array()) return Wrong("remote_block_ids are not numbers of blocks");
    BFIO_RETURN_IF_ERROR(CheckBlocks(list, most_blocks));
    longest = std::max(longest, list.size());
  }
  // Ranks that divide a context among them keep as many times fewer blocks.
  if (const nlohmann::json ranks = field("dcp_size"); !ranks.is_null() && ranks > 1) least_blocks = 1;
  if (longest < least_blocks)
    return Wrong(
        absl::StrCat("remote_block_ids has ", longest, " blocks; the prompt has at least ", least_blocks));
  return transfer;
}

}  // namespace bfio::router
