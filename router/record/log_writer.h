// The decision log's files, written in the background (common/base/background_writer.h) as blocks, into
// segments of bounded total size; the oldest segments are removed first. Where the log ends early, a last
// record gives the reason if possible. Threads: LogSink's methods from one thread; they share a lock with the
// writer's thread only while some kilobytes are copied.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/background_writer.h"
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

  // Checks that the log can be written. INVALID_ARGUMENT for a bound that is too small; the system's error
  // for a missing folder or missing permission.
  static absl::StatusOr<std::unique_ptr<LogWriter>> Open(const LogWriterOptions& options);
  ~LogWriter() override { Close(LogEnd::kClosed); }

  void BeginSegment(const LogHeader& header) override;
  bool Append(absl::string_view records) override;
  void Close(LogEnd reason) override;
  int64_t segment_bytes() const override { return segment_bytes_; }

  // Bytes that wait for the disk.
  int64_t backlog_bytes() const { return writer_.backlog_bytes(); }

 private:
  class Files;
  LogWriter(BackgroundWriter::Options writer, int64_t segment_bytes)
      : segment_bytes_(segment_bytes), writer_(std::move(writer)) {}

  const int64_t segment_bytes_;
  bool closed_ = false;
  BackgroundWriter writer_;
};

}  // namespace bfio::record
