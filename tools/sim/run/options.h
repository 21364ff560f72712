// What one simulation run is asked to do.
#ifndef BFIO_TOOLS_SIM_RUN_OPTIONS_H_
#define BFIO_TOOLS_SIM_RUN_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/cost/step_time.h"

namespace bfio::sim {

struct SimOptions {
  std::string policy = "bf_io_auto";
  std::string objective = "square";
  int32_t horizon = 0;
  std::string lookahead = "none";
  // What every request says it may generate; longer ones end there. 0: the longest of the workload.
  int64_t max_new_tokens = 0;
  // G and B.
  int32_t workers = 16;
  int32_t batch = 72;
  // "overload": requests are revealed until `reveal` wait. "arrivals": they arrive when the trace says,
  // `load` times as fast.
  std::string mode = "overload";
  int64_t reveal = 128;
  double load = 1;
  // Steps run before counting starts, and steps counted.
  int64_t warmup = 500;
  int64_t steps = 3000;
  StepCost cost;
  uint64_t seed = 1;
  // power_of_d: d.
  int32_t choices = 4;
  // Requests from the front of the pool that a policy sees; 0: 4,096, or `reveal` if that is more.
  int64_t window = 0;
  // bf_io: weight of a step ahead against the one before it.
  double discount = 1;
  // Policies that are asked on every decision and not obeyed.
  std::vector<std::string> shadow;
  // Where every counted decision is written as an LP file, and the most files; nowhere when empty.
  std::string dump_lp;
  int64_t dump_lp_limit = 1000;
};

// INVALID_ARGUMENT, naming the flag and what it may be.
absl::Status Validate(const SimOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_OPTIONS_H_
