#include "router/record/log_writer.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/append_file.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
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

// Bytes for a segment, which begins with them if `begins`.
struct Item {
  bool begins = false;
  std::string bytes;
};

}  // namespace

struct LogWriter::Queue {
  Mutex mutex;
  CondVar changed;
  std::vector<Item> items ABSL_GUARDED_BY(mutex);
  int64_t bytes ABSL_GUARDED_BY(mutex) = 0;
  // Bytes removed from `items` that are being written.
  int64_t writing ABSL_GUARDED_BY(mutex) = 0;
  // No more items will come.
  bool closing ABSL_GUARDED_BY(mutex) = false;
  // The disk has failed.
  bool failed ABSL_GUARDED_BY(mutex) = false;
  // The thread has ended.
  bool done ABSL_GUARDED_BY(mutex) = false;
};

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

  absl::Status Write(const Item& item) {
    if (item.begins) {
      BFIO_RETURN_IF_ERROR(Begin());
    }
    return Block(item.bytes);
  }

  const std::string& path() const { return options_.path; }

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
  Files files(options);
  BFIO_RETURN_IF_ERROR(files.Open());
  const int64_t segment =
      IsSpecialFile(options.path) ? std::numeric_limits<int64_t>::max() : options.max_bytes / kSegments;
  const int64_t queue = std::clamp<int64_t>(options.max_bytes / 4, kMinBytes / 4, 32 << 20);
  std::unique_ptr<LogWriter> writer(new LogWriter(std::make_shared<Queue>(), segment, queue));
  writer->thread_ = std::thread(
      [shared = writer->queue_, files = std::move(files)]() mutable { Run(shared, std::move(files)); });
  return writer;
}

LogWriter::~LogWriter() {
  Close(LogEnd::kClosed);
  bool done = false;
  {
    MutexLock lock(&queue_->mutex);
    const absl::Time deadline = MonotonicNow() + kPatience;
    while (!queue_->done && !queue_->changed.WaitWithDeadline(&queue_->mutex, deadline)) {
    }
    done = queue_->done;
  }
  if (done) {
    thread_.join();
  } else {
    spdlog::warn("the decision log cannot be written to the end in time: its last records may be missing");
    thread_.detach();
  }
}

void LogWriter::BeginSegment(const LogHeader& header) {
  MutexLock lock(&queue_->mutex);
  if (closed_ || queue_->failed) return;
  queue_->items.push_back({true, RecordOf(header)});
}

bool LogWriter::Append(absl::string_view records) {
  if (closed_) return false;
  {
    MutexLock lock(&queue_->mutex);
    if (queue_->failed) return false;
    if (queue_->bytes + static_cast<int64_t>(records.size()) <= queue_bytes_) {
      if (queue_->items.empty()) queue_->items.emplace_back();
      queue_->items.back().bytes.append(records.data(), records.size());
      queue_->bytes += static_cast<int64_t>(records.size());
      // Wakes the writer early only for a long queue, because waking a thread costs more than all else here.
      if (queue_->bytes > queue_bytes_ / 2) queue_->changed.Signal();
      return true;
    }
  }
  spdlog::error(
      "the decision log ends here: the disk is too slow, or decision_log_mb too small: {} bytes and {} "
      "that wait exceed {}",
      records.size(), backlog_bytes(), queue_bytes_);
  Close(LogEnd::kOverflow);
  return false;
}

int64_t LogWriter::backlog_bytes() const {
  MutexLock lock(&queue_->mutex);
  return queue_->bytes + queue_->writing;
}

void LogWriter::Close(LogEnd reason) {
  if (std::exchange(closed_, true)) return;
  if (reason == LogEnd::kTooLarge)
    spdlog::error("the decision log ends here: an event is larger than {} bytes", kMaxRecordBytes);
  MutexLock lock(&queue_->mutex);
  if (queue_->items.empty()) queue_->items.emplace_back();
  queue_->items.back().bytes.append(RecordOf(reason));
  queue_->closing = true;
  queue_->changed.SignalAll();
}

void LogWriter::Run(const std::shared_ptr<Queue>& queue, Files files) {
  // Makes a write to a pipe without a reader return an error instead of killing the process.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  std::vector<Item> items;
  absl::Status status;
  for (bool closing = false; !closing && status.ok();) {
    items.clear();
    {
      MutexLock lock(&queue->mutex);
      queue->writing = 0;
      if (!queue->closing) queue->changed.WaitWithTimeout(&queue->mutex, kPoll);
      closing = queue->closing;
      std::swap(items, queue->items);
      queue->writing = std::exchange(queue->bytes, 0);
    }
    for (const Item& item : items) {
      if (status.ok()) status = files.Write(item);
    }
  }
  if (!status.ok()) {
    spdlog::error("the decision log ends here: {}", std::string(status.message()));
  }
  MutexLock lock(&queue->mutex);
  queue->failed = !status.ok();
  queue->items.clear();
  queue->done = true;
  queue->changed.SignalAll();
}

}  // namespace bfio::record
