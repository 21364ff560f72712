#include "router/record/log_format.h"

#include "absl/strings/str_format.h"
#include "google/protobuf/io/coded_stream.h"
#include "router/record/crc32c.h"

namespace bfio::record {
namespace {

void PutLittleEndian32(uint32_t value, std::string& out) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

bool AppendRecord(const v1::DecisionRecord& record, std::string& out) {
  using google::protobuf::io::CodedOutputStream;
  const size_t size = record.ByteSizeLong();
  if (size > kMaxRecordBytes) return false;
  const size_t before = out.size();
  const size_t prefix = CodedOutputStream::VarintSize32(static_cast<uint32_t>(size));
  out.resize(before + prefix + size);
  auto* at = reinterpret_cast<uint8_t*>(out.data() + before);
  at = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(size), at);
  record.SerializeWithCachedSizesToArray(at);
  return true;
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
