// The decision log's files: segments, blocks and records, as bytes. A log is a sequence of segments,
// PATH.000001, PATH.000002 and so on: cuts of one file, of which the oldest are removed when the log exceeds
// its bound. A router that starts again with the same PATH begins a new session with the next number. A
// segment is
//
//   magic       8 bytes
//   block ...   4 bytes length of the payload, 4 bytes CRC-32C of it (both little endian), payload
//
// and the payloads of its blocks hold records (codec.h), each after its size as a varint; no record is split
// between blocks. The first record of a segment is its header. A session that was closed ends with an end
// record; one that was killed ends anywhere. Pure. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace bfio::record {

// CRC-32C (Castagnoli): detects damaged blocks. Pure. Any thread.
uint32_t Crc32c(absl::string_view data);

// The segments of a decision log on disk: PATH.000001 and so on. Lists and names them. Threads: any; other
// processes may use the folder.
struct SegmentFile {
  std::string path;
  uint64_t number = 0;
  int64_t bytes = 0;
};

// Sorted by number. Empty when there are none, or when the folder cannot be read.
std::vector<SegmentFile> ListSegments(const std::string& path);

// Its last digit is the version of blocks and records.
inline constexpr absl::string_view kMagic = "BFIODL3\n";
// What every version's magic begins with.
inline constexpr absl::string_view kAnyMagic = "BFIODL";
inline constexpr size_t kFrameBytes = 8;
// Larger records are neither written nor read. Above what a worker's largest message becomes.
inline constexpr size_t kMaxRecordBytes = 32 << 20;
// Limit of one block: the most that a writer that is behind has queued.
inline constexpr size_t kMaxBlockBytes = 64 << 20;

// Appends the size of `record`, then `record`. REQUIRES: at most kMaxRecordBytes.
void AppendRecord(absl::string_view record, std::string& out);
// Takes the size of a record from the front of `bytes`; empty when they end before.
std::optional<uint64_t> TakeRecordSize(absl::string_view& bytes);

// Length and checksum of `payload`, to be written before it.
std::string Frame(absl::string_view payload);

uint32_t LittleEndian32(const char* bytes);

// For example PATH.000001.
std::string SegmentPath(const std::string& path, uint64_t number);

}  // namespace bfio::record
