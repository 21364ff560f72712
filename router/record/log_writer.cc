#include "router/record/log_writer.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/append_file.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "router/record/codec.h"
#include "router/record/log_format.h"

namespace bfio::record {
namespace {

// A header or an end as a whole record.
template <class What>
std::string RecordOf(const What& what) {
  std::string record, bytes;
  Encode(what, record);
  AppendRecord(record, bytes);
  return bytes;
}

}  // namespace

// The segments on disk; used by the writer thread only.
class LogWriter::Files {
 public:
  explicit Files(LogWriterOptions options) : options_(std::move(options)) {}

  // Finds the segments of earlier sessions, and creates the first segment's file.
  absl::Status Open() {
    special_ = IsSpecialFile(options_.path);
    for (const SegmentFile& file : special_ ? std::vector<SegmentFile>() : ListSegments(options_.path)) {
      older_.push_back(file);
      total_ += file.bytes;
      next_ = file.number + 1;
    }
    return NextFile();
  }

  absl::Status Write(const BackgroundWriter::Item& item) {
    if (item.begins) {
      BFIO_RETURN_IF_ERROR(Begin());
    }
    return Block(item.bytes);
  }

 private:
  absl::Status NextFile() {
    if (file_.is_open()) older_.push_back({file_.path(), next_ - 1, file_.bytes()});
    file_ = AppendFile();
    while (older_.size() + 1 > kMaxFiles) RemoveOldest();
    BFIO_ASSIGN_OR_RETURN(
        auto file, special_ ? AppendFile::Open(options_.path, AppendFile::Mode::kAppend)
                            : AppendFile::Open(SegmentPath(options_.path, next_), AppendFile::Mode::kCreate));
    ++next_;
    file_ = std::move(file);
    return absl::OkStatus();
  }

  absl::Status Begin() {
    // Open has already created the first file, to check that it can.
    if (began_) {
      BFIO_RETURN_IF_ERROR(NextFile());
    }
    began_ = true;
    return Put(kMagic);
  }

  absl::Status Block(absl::string_view payload) {
    if (payload.empty()) return absl::OkStatus();
    return Put(Frame(payload) + std::string(payload));
  }

  absl::Status Put(absl::string_view bytes) {
    const auto size = static_cast<int64_t>(bytes.size());
    while (!special_ && total_ + size > options_.max_bytes && !older_.empty()) RemoveOldest();
    if (!special_ && total_ + size > options_.max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the maximum size of ", options_.max_bytes,
                       " bytes (decision_log_mb) is too small for one segment"));
    }
    const int64_t before = file_.bytes();
    absl::Status status = file_.Append(bytes);
    total_ += file_.bytes() - before;
    return status;
  }

  void RemoveOldest() {
    std::error_code error;
    std::filesystem::remove(older_.front().path, error);
    total_ -= older_.front().bytes;
    older_.erase(older_.begin());
  }

  LogWriterOptions options_;
  bool special_ = false;
  bool began_ = false;
  AppendFile file_;
  // Older segments, oldest first, without the present one.
  std::vector<SegmentFile> older_;
  // Size of all segments.
  int64_t total_ = 0;
  uint64_t next_ = 1;
};

absl::StatusOr<std::unique_ptr<LogWriter>> LogWriter::Open(const LogWriterOptions& options) {
  if (options.max_bytes < kMinBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the decision log's maximum size is ", options.max_bytes,
                                                   " bytes; must be at least ", kMinBytes, " are needed"));
  }
  const auto files = std::make_shared<Files>(options);
  BFIO_RETURN_IF_ERROR(files->Open());
  const int64_t segment =
      IsSpecialFile(options.path) ? std::numeric_limits<int64_t>::max() : options.max_bytes / kSegments;
  BackgroundWriter::Options writer = {
      .name = "decision log",
      .bound = "decision_log_mb",
      .max_bytes = std::clamp<int64_t>(options.max_bytes / 4, kMinBytes / 4, 32 << 20),
      .poll = kPoll,
      .write = [files](const BackgroundWriter::Item& item) { return files->Write(item); }};
  return std::unique_ptr<LogWriter>(new LogWriter(std::move(writer), segment));
}

void LogWriter::BeginSegment(const LogHeader& header) {
  writer_.Append(RecordOf(header), /*begins=*/true);
}

bool LogWriter::Append(absl::string_view records) {
  if (writer_.Append(records)) return true;
  Close(LogEnd::kOverflow);
  return false;
}

void LogWriter::Close(LogEnd reason) {
  if (std::exchange(closed_, true)) return;
  if (reason == LogEnd::kTooLarge)
    spdlog::error("the decision log ends here: an event is larger than {} bytes", kMaxRecordBytes);
  writer_.Close(RecordOf(reason));
}

}  // namespace bfio::record
