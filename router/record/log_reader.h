// Reads one session of a decision log, record by record. Finds the segments of a session, checks frames,
// checksums and sizes, and distinguishes a log that was cut off (its router was killed) from a damaged one.
// Memory: one block. Threads: one.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/record/codec.h"

namespace bfio::record {

class LogReader {
 public:
  // How the log ends.
  enum class Ending {
    kOpen,       // not reached yet
    kClosed,     // the router ended
    kOverflow,   // the disk was too slow
    kTooLarge,   // an event was too large for a record
    kNoEnd,      // killed, still writing, or the disk failed: the log ends after a whole record
    kTruncated,  // the same, but the log ends within a record
  };

  // `path`: a log, of which the last session is read, or one segment, with which reading starts. NOT_FOUND
  // when there is no such log; INVALID_ARGUMENT when it has an older format; DATA_LOSS when that session is
  // damaged. Segments of other sessions may be damaged, or of another format.
  static absl::StatusOr<LogReader> Open(const std::string& path);

  // Header of the segment with which reading starts: not the session's first, where that was removed.
  const LogHeader& header() const { return headers_.front(); }
  size_t segments() const { return files_.size(); }
  // Size of these segments on disk.
  int64_t bytes() const;
  // Number of earlier sessions in the log.
  int64_t earlier_sessions() const { return earlier_sessions_; }

  // Reads the next record, including the headers of later segments; false at the end. DATA_LOSS with file and
  // offset when the log is damaged.
  absl::StatusOr<bool> Next(Record& record);

  Ending ending() const { return ending_; }
  // File and offset of the present segment, for messages.
  std::string Where() const;

 private:
  LogReader() = default;
  absl::Status OpenFile(size_t index);
  // False at the end of the file.
  absl::StatusOr<bool> NextBlock();
  absl::StatusOr<bool> ParseRecord(Record& record);
  absl::Status Damaged(absl::string_view what) const;
  bool in_last_file() const { return at_ + 1 == files_.size(); }

  std::vector<std::string> files_;
  std::vector<LogHeader> headers_;
  // That of the last header that was read.
  core::RequestId id_base_ = 0;
  int64_t earlier_sessions_ = 0;
  size_t at_ = 0;
  std::ifstream file_;
  int64_t left_ = 0;
  int64_t offset_ = 0;
  std::string block_;
  size_t position_ = 0;
  // Only the beginning of the present block has been written.
  bool cut_ = false;
  Ending ending_ = Ending::kOpen;
};

}  // namespace bfio::record
