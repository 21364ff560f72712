// Turns the events of a cluster into records of the decision log. Encodes each event with its outcome and
// passes the bytes to a sink, cut into segments. Cost: a few hundred nanoseconds per event, no lock except in
// Flush, and nothing once the sink has stopped. It reads the clock, because the duration of decisions is part
// of the log. Threads: the cluster's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/core/scheduler/cluster.h"
#include "router/record/codec.h"

namespace bfio::record {

// The destination of a recorder's bytes: files behind a separate thread (log_writer.h), or a test's memory.
// Threads: the recorder's. No method blocks or fails. When Append returns false, the recorder stops.
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

// What a session's header contains besides the options.
struct SessionInfo {
  std::string version;
  // LogHeader::id_base.
  core::RequestId id_base = 0;
};

class Recorder final : public core::EventObserver {
 public:
  // For a cluster that is made with these options, policy and lookahead, and that has this recorder as its
  // observer.
  Recorder(std::unique_ptr<LogSink> sink, SessionInfo info, const core::SchedulerOptions& options,
           const core::PolicySetting& policy, absl::string_view lookahead);
  ~Recorder() override;

  void Before(const core::SchedulerEvent& event) override;
  // An event without effect is not recorded.
  void After(const core::Cluster& cluster, const core::SchedulerEvent& event,
             const core::Outcome& outcome) override;

  // The log has ended before its router: its disk has failed or is too slow, or an event was too large for a
  // record.
  bool stopped() const { return stopped_; }
  // Passes the recorded bytes to the sink.
  void Flush();
  // Ends the log; nothing is recorded afterwards.
  void Close();

 private:
  void BeginSegment();

  const std::unique_ptr<LogSink> sink_;
  LogHeader header_;
  const absl::Time began_;
  bool stopped_ = false;
  bool closed_ = false;
  int64_t segment_bytes_ = 0;
  // Start of the decision in progress.
  absl::Time decision_began_;
  std::string record_, pending_;
};

}  // namespace bfio::record
