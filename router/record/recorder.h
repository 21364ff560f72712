// Turns the events of a cluster into records of the decision log.
//
// Purpose: encodes each event with its outcome and passes the bytes to a sink; from time to time it starts a
// new segment with the cluster's whole state. Cost: a few hundred nanoseconds per event, no lock except in
// Flush, and nothing once the sink has stopped. It reads the clock, because the duration of decisions is part
// of the log. Threads: the cluster's.
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

// What a session's header contains besides the options.
struct SessionInfo {
  std::string version;
  // A number near the session's ids, which are written as differences from it.
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
  void After(const core::Cluster& cluster, const core::SchedulerEvent& event,
             const core::Outcome& outcome) override;

  // The sink has failed: recording has stopped early.
  bool stopped() const { return stopped_; }
  // Passes the recorded bytes to the sink.
  void Flush();
  // Ends the log; nothing is recorded afterwards.
  void Close();

 private:
  // Encode one event each; an event without effect is not written.
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
  // Start of the decision in progress.
  absl::Time decision_began_;
  // Reused, so that a record allocates memory only beyond what earlier records of its kind needed.
  v1::DecisionRecord report_, plan_, arrival_, other_;
  std::string pending_;
};

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_RECORDER_H_
