// The destination of a recorder's bytes: files behind a separate thread (log_writer.h), or a test's memory.
//
// Threads: the recorder's. No method blocks or fails. When Append returns false, the recorder stops.
#ifndef BFIO_ROUTER_RECORD_LOG_SINK_H_
#define BFIO_ROUTER_RECORD_LOG_SINK_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "router/record/codec.h"

namespace bfio::record {

class LogSink {
 public:
  virtual ~LogSink() = default;

  // Starts a segment; everything appended from now on belongs to it.
  virtual void BeginSegment(const LogHeader& header) = 0;
  // Appends whole records. False when the log has stopped and accepts no more records.
  virtual bool Append(absl::string_view records) = 0;
  // Ends the log for this reason.
  virtual void Close(LogEnd reason) = 0;
  // Size in bytes of records at which a segment should end.
  virtual int64_t segment_bytes() const = 0;
};

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_LOG_SINK_H_
