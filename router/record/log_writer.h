// The decision log's files, written by a separate thread. Takes bytes from the decision thread without ever
// blocking it, and writes them as blocks into segments of bounded total size; the oldest segments are removed
// first. When the disk fails, or is so slow that the queue is full, the log ends: with a last record that
// gives the reason where possible, and one line in the program's log. The router continues. Threads:
// LogSink's methods from one thread; they share a lock with the writer's thread only while some kilobytes are
// copied. The writer checks for work every kPoll, so a killed router loses the records of at most that
// interval.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/record/recorder.h"

namespace bfio::record {

struct LogWriterOptions {
  // Segments are PATH.000001 and so on. A device or pipe is written to directly, without segments.
  std::string path;
  // Bound of all segments together, including those of earlier sessions. At least kMinBytes.
  int64_t max_bytes = 256 << 20;
};

class LogWriter final : public LogSink {
 public:
  static constexpr int64_t kMinBytes = 1 << 20;
  // Number of segments in the bound: removing the oldest loses one part in kSegments.
  static constexpr int64_t kSegments = 8;
  // Limit of the number of files, whatever their size: each start of a router leaves some behind.
  static constexpr size_t kMaxFiles = 64;
  static constexpr absl::Duration kPoll = absl::Milliseconds(50);
  // How long Close waits for a disk that does not respond.
  static constexpr absl::Duration kPatience = absl::Seconds(2);

  // Checks that the log can be written. INVALID_ARGUMENT for a bound that is too small; the system's error
  // for a missing folder or missing permission.
  static absl::StatusOr<std::unique_ptr<LogWriter>> Open(const LogWriterOptions& options);
  ~LogWriter() override;

  void BeginSegment(const LogHeader& header) override;
  bool Append(absl::string_view records) override;
  void Close(LogEnd reason) override;
  int64_t segment_bytes() const override { return segment_bytes_; }

  // queue_bytes: limit of the bytes that may wait for the disk; backlog_bytes: bytes that wait.
  int64_t queue_bytes() const { return queue_bytes_; }
  int64_t backlog_bytes() const;

 private:
  struct Queue;
  class Files;
  LogWriter(std::shared_ptr<Queue> queue, int64_t segment_bytes, int64_t queue_bytes)
      : queue_(std::move(queue)), segment_bytes_(segment_bytes), queue_bytes_(queue_bytes) {}
  static void Run(const std::shared_ptr<Queue>& queue, Files files);

  // Shared with the thread, which outlives this object if its disk does not respond.
  const std::shared_ptr<Queue> queue_;
  const int64_t segment_bytes_;
  const int64_t queue_bytes_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace bfio::record
