#include "router/frontend/tokenizer/zip_archive.h"

#include <zlib.h>

#include <cstdint>

namespace bfio::router {
namespace {

void Append16(uint32_t value, std::string& out) {
  out.push_back(static_cast<char>(value));
  out.push_back(static_cast<char>(value >> 8));
}

void Append32(uint32_t value, std::string& out) {
  Append16(value, out);
  Append16(value >> 16, out);
}

// Appends the fields that a file's header and its directory entry have in common.
void AppendFacts(const std::string& name, const std::string& content, std::string& out) {
  // 1980-01-01 00:00, the earliest time of the format: a file's own time would change the archive's digest.
  constexpr uint32_t kTime = 0, kDate = 1 << 5 | 1;
  const uint32_t checksum =
      static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size()));
  Append16(20, out);  // version 2.0 suffices
  Append16(0, out);   // flags
  Append16(0, out);   // not compressed
  Append16(kTime, out);
  Append16(kDate, out);
  Append32(checksum, out);
  Append32(static_cast<uint32_t>(content.size()), out);
  Append32(static_cast<uint32_t>(content.size()), out);
  Append16(static_cast<uint32_t>(name.size()), out);
  Append16(0, out);  // no extra field
}

}  // namespace

std::string ZipArchive(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string archive, directory;
  for (const auto& [name, content] : files) {
    const auto offset = static_cast<uint32_t>(archive.size());
    Append32(0x04034b50, archive);
    AppendFacts(name, content, archive);
    archive += name;
    archive += content;
    Append32(0x02014b50, directory);
    Append16(20, directory);  // made by version 2.0
    AppendFacts(name, content, directory);
    Append16(0, directory);  // no comment
    Append16(0, directory);  // on this disk
    Append16(0, directory);  // internal attributes
    Append32(0, directory);  // external attributes
    Append32(offset, directory);
    directory += name;
  }
  const auto offset = static_cast<uint32_t>(archive.size());
  archive += directory;
  Append32(0x06054b50, archive);
  Append16(0, archive);  // this disk
  Append16(0, archive);  // disk of the directory
  Append16(static_cast<uint32_t>(files.size()), archive);
  Append16(static_cast<uint32_t>(files.size()), archive);
  Append32(static_cast<uint32_t>(directory.size()), archive);
  Append32(offset, archive);
  Append16(0, archive);  // no comment
  return archive;
}

}  // namespace bfio::router
