// Reads a session of a decision log back, record by record.
//
// Purpose: finds the segments that belong together, checks frames, checksums and sizes, and distinguishes a
// log that was cut off (its router was killed) from one that is damaged. Memory: one block. Threads: one.
#ifndef BFIO_ROUTER_RECORD_LOG_READER_H_
#define BFIO_ROUTER_RECORD_LOG_READER_H_

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bfio/v1/decision_log.pb.h"

namespace bfio::record {

class LogReader {
 public:
  // How the log ends.
  enum class Ending {
    kOpen,       // not reached yet
    kClosed,     // the router ended
    kOverflow,   // the disk was too slow
    kTooLarge,   // something did not fit
    kNoEnd,      // killed, still writing, or the disk failed: after a whole record
    kTruncated,  // the same, within a record
  };

  // `path` is a log's, and the last session of it is read; or the path of one segment, and reading starts
  // there. NOT_FOUND when there is no such log; DATA_LOSS when it is damaged.
  static absl::StatusOr<LogReader> Open(const std::string& path);

  // Of the segment that reading starts with.
  const v1::LoggedHeader& header() const { return headers_.front(); }
  size_t segments() const { return files_.size(); }
  // Of these segments, on disk.
  int64_t bytes() const;
  // Sessions that are in the log before this one.
  int64_t earlier_sessions() const { return earlier_sessions_; }

  // The next record, headers of later segments among them; false at the end. DATA_LOSS naming file and
  // offset when the log is damaged.
  absl::StatusOr<bool> Next(v1::DecisionRecord& record);

  Ending ending() const { return ending_; }
  // Of the present segment: for messages.
  std::string Where() const;

 private:
  LogReader() = default;
  absl::Status OpenFile(size_t index);
  // False at the end of the file.
  absl::StatusOr<bool> NextBlock();
  absl::StatusOr<bool> ParseRecord(v1::DecisionRecord& record);
  absl::Status Damaged(absl::string_view what) const;
  bool in_last_file() const { return at_ + 1 == files_.size(); }

  std::vector<std::string> files_;
  std::vector<v1::LoggedHeader> headers_;
  int64_t earlier_sessions_ = 0;
  size_t at_ = 0;
  std::ifstream file_;
  int64_t left_ = 0;
  int64_t offset_ = 0;
  std::string block_;
  size_t position_ = 0;
  // The block at hand is all that was written of a longer one.
  bool cut_ = false;
  Ending ending_ = Ending::kOpen;
};

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_LOG_READER_H_
