#include "router/service/pool_files.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace bfio::router {
namespace {

absl::Status Write(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path part = path.string() + ".part";
  std::error_code error;
  {
    std::ofstream out(part, std::ios::trunc);
    out << text << '\n';
    out.flush();
    if (!out) return absl::UnavailableError(absl::StrCat("cannot write ", part.string()));
  }
  std::filesystem::rename(part, path, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot write ", path.string(), ": ", error.message()));
  return absl::OkStatus();
}

}  // namespace

std::string PoolJson(absl::Span<const PoolServer> servers) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PoolServer& server : servers) {
    list.push_back({{"name", server.name},
                    {"memory_gb", static_cast<double>(server.memory) * 1e-9},
                    {"block_ms", server.times.compute * 1e3},
                    {"communication_ms", server.times.communication * 1e3}});
  }
  // A name is whatever a server says; what is no UTF-8 is replaced.
  return nlohmann::ordered_json{{"servers", std::move(list)}}.dump(
      2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string ModelJson(const BlockSizes& sizes) {
  return nlohmann::ordered_json{{"blocks", sizes.blocks},
                                {"block_gb", static_cast<double>(sizes.block) * 1e-9},
                                {"cache_gb", static_cast<double>(sizes.request) * 1e-9}}
      .dump(2);
}

absl::Status WritePoolFiles(const std::string& folder, absl::Span<const PoolServer> servers,
                            const BlockSizes& sizes) {
  const std::filesystem::path path(folder);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot make ", folder, ": ", error.message()));
  if (absl::Status status = Write(path / "model.json", ModelJson(sizes)); !status.ok()) return status;
  return Write(path / "pool.json", PoolJson(servers));
}

}  // namespace bfio::router
