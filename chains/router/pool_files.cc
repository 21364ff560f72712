#include "chains/router/pool_files.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/atomic_file.h"
#include "nlohmann/json.hpp"

namespace bfio::router {

std::string PoolJson(absl::Span<const core::PoolServer> servers) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const core::PoolServer& server : servers) {
    list.push_back({{"name", server.name},
                    {"memory_gb", static_cast<double>(server.memory) * 1e-9},
                    {"block_ms", server.times.compute * 1e3},
                    {"communication_ms", server.times.communication * 1e3}});
  }
  // Servers choose their names; invalid UTF-8 is replaced.
  return nlohmann::ordered_json{{"servers", std::move(list)}}.dump(
      2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string ModelJson(const core::BlockSizes& sizes) {
  return nlohmann::ordered_json{{"blocks", sizes.blocks},
                                {"block_gb", static_cast<double>(sizes.block) * 1e-9},
                                {"cache_gb", static_cast<double>(sizes.request) * 1e-9}}
      .dump(2);
}

absl::Status WritePoolFiles(const std::string& folder, absl::Span<const core::PoolServer> servers,
                            const core::BlockSizes& sizes) {
  const std::filesystem::path path(folder);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot create directory ", folder, ": ", error.message()));
  absl::Status status = WriteFileAtomically((path / "model.json").string(), ModelJson(sizes) + "\n");
  if (!status.ok()) return status;
  return WriteFileAtomically((path / "pool.json").string(), PoolJson(servers) + "\n");
}

}  // namespace bfio::router
