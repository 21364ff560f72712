// Constants and framing of the decision log's format (proto/bfio/v1/decision_log.proto).
//
// Purpose: shared by writer and reader. Pure. Any thread.
#ifndef BFIO_ROUTER_RECORD_LOG_FORMAT_H_
#define BFIO_ROUTER_RECORD_LOG_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "bfio/v1/decision_log.pb.h"

namespace bfio::record {

inline constexpr absl::string_view kMagic = "BFIODL1\n";
inline constexpr uint32_t kFormat = 2;
inline constexpr size_t kFrameBytes = 8;
// Larger records are neither written nor read: 4,096 ranks with 72 residents each stay below this.
inline constexpr size_t kMaxRecordBytes = 4 << 20;
// Limit of the records in one block of a writer that is behind, not counting the block's last record.
inline constexpr size_t kMaxBlockBytes = 32 << 20;

// Appends the size of `record`, then `record`. False, with nothing appended, when it is too large.
bool AppendRecord(const v1::DecisionRecord& record, std::string& out);

// Length and checksum of `payload`, to be written before it.
std::string Frame(absl::string_view payload);

uint32_t LittleEndian32(const char* bytes);

// For example PATH.000001.
std::string SegmentPath(const std::string& path, uint64_t number);

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_LOG_FORMAT_H_
