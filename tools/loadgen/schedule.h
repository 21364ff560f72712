// What is sent and when it is due.
//
// Purpose: the whole traffic of a run, decided before anything is sent and the same for a seed. Pure; one
// thread.
#ifndef BFIO_TOOLS_LOADGEN_SCHEDULE_H_
#define BFIO_TOOLS_LOADGEN_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "common/workload/arrivals.h"
#include "common/workload/trace.h"
#include "tools/loadgen/options.h"

namespace bfio::loadgen {

struct PlannedRequest {
  // 0, 1, 2, ... in order of due times.
  uint64_t index = 0;
  // Seconds after the start of the run; 0 in closed loop, where the end of another request makes it due.
  double due_s = 0;
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
};

// The requests' lengths: the trace, or as many draws of the profile as the run may need (at most 100,000;
// then round again). Errors are those of ReadTrace and SampleProfile.
absl::StatusOr<Trace> LoadTrace(const Options& options);

class Schedule {
 public:
  // REQUIRES: Validate(options).ok(). INVALID_ARGUMENT when the trace cannot give the arrivals asked for.
  static absl::StatusOr<Schedule> Create(const Options& options, Trace trace);

  // The next request; nothing when the run's number of requests or its duration is used up.
  std::optional<PlannedRequest> Next();

  // Requests of the whole run; 0 when only the duration ends it.
  uint64_t total() const { return total_; }
  const Trace& trace() const { return trace_; }

 private:
  Schedule(Trace trace, std::optional<ArrivalProcess> arrivals, uint64_t total, double duration_s)
      : trace_(std::move(trace)), arrivals_(std::move(arrivals)), total_(total), duration_s_(duration_s) {}

  Trace trace_;
  // Nothing in closed loop.
  std::optional<ArrivalProcess> arrivals_;
  uint64_t total_;
  double duration_s_;
  uint64_t next_ = 0;
  // An arrival was beyond the duration.
  bool over_ = false;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_SCHEDULE_H_
