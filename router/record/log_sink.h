// Where a recorder's bytes go: a file behind a thread of its own (log_writer.h), or a test's memory.
//
// Threads: of the recorder's thread. No method blocks or fails; a sink that can take no more says so and the
// recorder stops.
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

  // What is appended from now on belongs to a new segment.
  virtual void BeginSegment(SegmentStart start) = 0;
  // Whole records. False when the log has stopped: nothing is taken any more.
  virtual bool Append(absl::string_view records) = 0;
  // No more will come, and why.
  virtual void Close(v1::LoggedEnd::Reason reason) = 0;
  // After how many bytes of records a segment should end.
  virtual int64_t segment_bytes() const = 0;
};

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_LOG_SINK_H_
