// Which requests are sent, and when each is due.
//
// Purpose: the whole traffic of a run, decided before anything is sent and the same for the same seed. Pure;
// one thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "common/workload/arrivals.h"
#include "common/workload/trace.h"
#include "tools/loadgen/options.h"

namespace bfio::loadgen {

struct PlannedRequest {
  // 0, 1, 2, ... in order of due times.
  uint64_t index = 0;
  // Seconds after the start of the run; 0 in a closed loop, where the end of another request makes it due.
  double due_s = 0;
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  // The model may end the request before `output_tokens` are generated; a sim engine that ends requests by
  // seed generates exactly this number.
  std::optional<uint32_t> hidden_length;
};

// The lengths of the requests: the trace, or as many samples of the profile as the run may need (at most
// 100,000, which are then repeated). Errors are those of ReadTrace and SampleProfile.
absl::StatusOr<Trace> LoadTrace(const Options& options);

class Schedule {
 public:
  // REQUIRES: Validate(options).ok(). INVALID_ARGUMENT when the trace cannot provide the arrivals asked for.
  static absl::StatusOr<Schedule> Create(const Options& options, Trace trace);

  // Empty when the run's number of requests or its duration is reached.
  std::optional<PlannedRequest> Next();

  // Number of requests of the whole run; 0 when only the duration limits it.
  uint64_t total() const { return total_; }
  const Trace& trace() const { return trace_; }

 private:
  Schedule(const Options& options, Trace trace);

  Trace trace_;
  // Empty in a closed loop.
  std::optional<ArrivalProcess> arrivals_;
  uint64_t total_;
  double duration_s_;
  uint32_t max_new_tokens_;
  // Number of requests so far.
  uint64_t next_ = 0;
  // An arrival was after the end of the duration.
  bool over_ = false;
};

}  // namespace bfio::loadgen
