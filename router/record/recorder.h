// Turns the events of a cluster into records of the decision log.
//
// Purpose: encodes each event with what came of it and hands the bytes to a sink, now and then a new segment
// that begins with the cluster's whole state. Cost: some hundred nanoseconds an event, no lock but in Flush.
// Once the sink has stopped, nothing. It reads the clock: how long decisions take is part of the log.
// Threads: the cluster's.
#ifndef BFIO_ROUTER_RECORD_RECORDER_H_
#define BFIO_ROUTER_RECORD_RECORDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/core/scheduler/cluster.h"
#include "router/record/codec.h"
#include "router/record/log_sink.h"

namespace bfio::record {

// What a session is about, besides its events.
struct SessionInfo {
  std::string version;
  // Its ids will be near this one: they are written as differences to it.
  core::RequestId id_base = 0;
};

class Recorder final : public core::EventObserver {
 public:
  // Of a cluster that is made with these options, policy and lookahead, and has this as its observer.
  Recorder(std::unique_ptr<LogSink> sink, SessionInfo info, const core::SchedulerOptions& options,
           const core::PolicySetting& policy, absl::string_view lookahead);
  ~Recorder() override;

  void Before(const core::SchedulerEvent& event) override;
  void After(const core::Cluster& cluster, const core::SchedulerEvent& event,
             const core::Outcome& outcome) override;

  // Nothing is recorded any more, though it should be.
  bool stopped() const { return stopped_; }
  // Hands over what has been recorded.
  void Flush();
  // Ends the log: nothing is recorded any more.
  void Close();

 private:
  // Encodes one event; what changes nothing is not written.
  void Record(const core::Cluster&, const core::AddGroup& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::RemoveGroup& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::Enqueue& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::Requeue& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::Cancel& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::OpenEpoch& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::CloseEpoch& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::SetAcceptsNew& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::SetTime& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::SetServiceTime& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::SetCost& event, const core::Outcome& outcome);
  void Record(const core::Cluster& cluster, const core::Report& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::MakePlan& event, const core::Outcome& outcome);
  void Record(const core::Cluster&, const core::SetPolicy& event, const core::Outcome& outcome);

  void BeginSegment(std::optional<core::ClusterState> state);
  void Write(const v1::DecisionRecord& record);

  const std::unique_ptr<LogSink> sink_;
  v1::LoggedHeader header_;
  bool stopped_ = false;
  bool closed_ = false;
  int64_t segment_bytes_ = 0;
  absl::Time last_plan_;
  // When the decision that is being made began.
  absl::Time decision_began_;
  // Kept, so that a record allocates nothing that one of its kind before it had.
  v1::DecisionRecord report_, plan_, arrival_, other_;
  std::string pending_;
};

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_RECORDER_H_
