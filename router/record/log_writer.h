// The decision log's files, written by a separate thread.
//
// Purpose: takes bytes from the decision thread without ever making it wait, and writes them as blocks into
// segments whose sum stays within a bound; the oldest go first. When the disk fails, or falls so far behind
// that the queue is full, the log ends there: a last record says so where possible, and one line in the
// program's log. The router continues.
// Threads: LogSink's methods from one thread. What they share with the writer's thread is locked for as long
// as a copy of some kilobytes takes. The writer looks for work every kPoll, so what a killed router has not
// written is no older than that.
#ifndef BFIO_ROUTER_RECORD_LOG_WRITER_H_
#define BFIO_ROUTER_RECORD_LOG_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/record/log_sink.h"

namespace bfio::record {

struct LogWriterOptions {
  // Segments are PATH.000001 and on. A device or pipe is written to as it is, without segments.
  std::string path;
  // Bound of all segments together, those of earlier sessions included. At least kMinLogBytes.
  int64_t max_bytes = 256 << 20;
};

class LogWriter final : public LogSink {
 public:
  static constexpr int64_t kMinBytes = 1 << 20;
  // A segment is this share of the bound: what is lost when the oldest is removed.
  static constexpr int64_t kSegments = 8;
  // Files there may be, however small: a router that starts again and again leaves some behind each time.
  static constexpr size_t kMaxFiles = 64;
  static constexpr absl::Duration kPoll = absl::Milliseconds(50);
  // How long Close waits for a disk that hangs.
  static constexpr absl::Duration kPatience = absl::Seconds(2);

  // Makes sure that the log can be written. INVALID_ARGUMENT for a bound that is too small; what the system
  // says when there is no such folder, or no permission.
  static absl::StatusOr<std::unique_ptr<LogWriter>> Open(const LogWriterOptions& options);
  ~LogWriter() override;

  void BeginSegment(SegmentStart start) override;
  bool Append(absl::string_view records) override;
  void Close(v1::LoggedEnd::Reason reason) override;
  int64_t segment_bytes() const override { return segment_bytes_; }

  // What may wait for the disk, and what does.
  int64_t queue_bytes() const { return queue_bytes_; }
  int64_t backlog_bytes() const;

 private:
  struct Queue;
  class Files;
  LogWriter(std::shared_ptr<Queue> queue, int64_t segment_bytes, int64_t queue_bytes)
      : queue_(std::move(queue)), segment_bytes_(segment_bytes), queue_bytes_(queue_bytes) {}
  static void Run(const std::shared_ptr<Queue>& queue, Files files);

  // Shared with a thread that may outlive this, if its disk hangs.
  const std::shared_ptr<Queue> queue_;
  const int64_t segment_bytes_;
  const int64_t queue_bytes_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_LOG_WRITER_H_
