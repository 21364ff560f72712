// What is sent and when it is due.
//
// Purpose: the whole traffic of a run, decided before anything is sent and the same for a seed. Pure; one
// thread.
#ifndef BFIO_TOOLS_LOADGEN_SCHEDULE_H_
#define BFIO_TOOLS_LOADGEN_SCHEDULE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workload/arrivals.h"
#include "common/workload/trace.h"
#include "tools/loadgen/agents.h"
#include "tools/loadgen/options.h"
#include "tools/loadgen/rate_profile.h"

namespace bfio::loadgen {

struct PlannedRequest {
  // 0, 1, 2, ... in order of due times.
  uint64_t index = 0;
  // Seconds after the start of the run, in a sweep of the level; 0 in closed loop, where the end of another
  // request makes it due.
  double due_s = 0;
  // Of the arrival profile (rate_profile.h); 0 without one.
  uint32_t level = 0;
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  // It may end before.
  bool open_ended = false;
  // Whose call it is, and which; null: a request of its own.
  std::shared_ptr<const AgentPlan> agent;
  uint32_t call = 0;
};

// Another call of the same agent. REQUIRES: of.agent != nullptr.
PlannedRequest CallOf(const PlannedRequest& of, uint32_t call);

// The requests' lengths: the trace, or as many draws of the profile as the run may need (at most 100,000;
// then round again). Errors are those of ReadTrace and SampleProfile.
absl::StatusOr<Trace> LoadTrace(const Options& options);

class Schedule {
 public:
  // REQUIRES: Validate(options).ok(). INVALID_ARGUMENT when the trace cannot give the arrivals asked for.
  static absl::StatusOr<Schedule> Create(const Options& options, Trace trace);

  // The next request, or the first call of the next agent; nothing when the run's number of requests or its
  // duration is used up.
  std::optional<PlannedRequest> Next();

  // Requests, or agents, of the whole run; 0 when only the duration ends it.
  uint64_t total() const { return total_; }
  const Trace& trace() const { return trace_; }

 private:
  Schedule(Trace trace, std::vector<AgentShape> agents, uint64_t total, double duration_s)
      : trace_(std::move(trace)), agents_(std::move(agents)), total_(total), duration_s_(duration_s) {}

  // Due time and level; nothing after the end.
  bool NextArrival(PlannedRequest& planned);

  const TraceRequest& Row() const { return trace_.requests[row_ % trace_.requests.size()]; }

  Trace trace_;
  std::vector<AgentShape> agents_;
  // One of them, or neither in closed loop.
  std::optional<ArrivalProcess> arrivals_;
  std::optional<ProfileArrivals> profile_;
  // Of each level of the profile; all 0 in a sweep.
  std::vector<double> level_start_s_;
  uint64_t total_;
  double duration_s_;
  uint32_t max_new_tokens_ = 0;
  // Requests or agents, and rows of the trace, so far.
  uint64_t next_ = 0, row_ = 0;
  // An arrival was beyond the duration.
  bool over_ = false;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_SCHEDULE_H_
