// The destination of a recorder's bytes: files behind a separate thread (log_writer.h), or a test's memory.
//
// Threads: the recorder's. No method blocks or fails. When Append returns false, the recorder stops.
#ifndef BFIO_ROUTER_RECORD_LOG_SINK_H_
#define BFIO_ROUTER_RECORD_LOG_SINK_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/strings/string_view.h"
#include "bfio/v1/decision_log.pb.h"
#include "router/core/scheduler/scheduler_state.h"

namespace bfio::record {

struct SegmentStart {
  v1::LoggedHeader header;
  // Absent in a session's first segment.
  std::optional<core::ClusterState> state;
};

class LogSink {
 public:
  virtual ~LogSink() = default;

  // Starts a segment; everything appended from now on belongs to it.
  virtual void BeginSegment(SegmentStart start) = 0;
  // Appends whole records. False when the log has stopped and accepts no more records.
  virtual bool Append(absl::string_view records) = 0;
  // Ends the log with this reason.
  virtual void Close(v1::LoggedEnd::Reason reason) = 0;
  // Size in bytes of records at which a segment should end.
  virtual int64_t segment_bytes() const = 0;
};

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_LOG_SINK_H_
