#include "router/record/log_format.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace bfio::record {
namespace {

void PutLittleEndian32(uint32_t value, std::string& out) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0);
    table[i] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

}  // namespace

void AppendRecord(absl::string_view record, std::string& out) {
  size_t size = record.size();
  for (; size >= 0x80; size >>= 7) out.push_back(static_cast<char>(size | 0x80));
  out.push_back(static_cast<char>(size));
  out.append(record.data(), record.size());
}

std::optional<uint64_t> TakeRecordSize(absl::string_view& bytes) {
  uint64_t size = 0;
  for (size_t i = 0; i < bytes.size() && i < 9; ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    size |= uint64_t{byte & 0x7fu} << (7 * i);
    if (byte >= 0x80) continue;
    bytes.remove_prefix(i + 1);
    return size;
  }
  return std::nullopt;
}

std::string Frame(absl::string_view payload) {
  std::string frame;
  PutLittleEndian32(static_cast<uint32_t>(payload.size()), frame);
  PutLittleEndian32(Crc32c(payload), frame);
  return frame;
}

uint32_t LittleEndian32(const char* bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return value;
}

std::string SegmentPath(const std::string& path, uint64_t number) {
  return absl::StrFormat("%s.%06d", path, number);
}

std::vector<SegmentFile> ListSegments(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path whole(path);
  const fs::path folder = whole.has_parent_path() ? whole.parent_path() : fs::path(".");
  const std::string prefix = whole.filename().string() + ".";
  std::vector<SegmentFile> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!absl::StartsWith(name, prefix)) continue;
    const std::string digits = name.substr(prefix.size());
    uint64_t number = 0;
    if (digits.size() < 6 || !std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
        !absl::SimpleAtoi(digits, &number)) {
      continue;
    }
    std::error_code gone;
    const auto bytes = fs::file_size(it->path(), gone);
    if (!gone) found.push_back({path + "." + digits, number, static_cast<int64_t>(bytes)});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return found;
}

uint32_t Crc32c(absl::string_view data) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : data) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

}  // namespace bfio::record
