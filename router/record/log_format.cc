#include "router/record/log_format.h"

#include "absl/strings/str_format.h"
#include "router/record/crc32c.h"

namespace bfio::record {
namespace {

void PutLittleEndian32(uint32_t value, std::string& out) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

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

}  // namespace bfio::record
