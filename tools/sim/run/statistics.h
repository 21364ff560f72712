// What a run measured, and the two ways to print it.
//
// Purpose: sums over the counted steps. Definitions: imbalance and idle fraction are means over steps;
// throughput is tokens over simulated seconds; TPOT is the mean over requests of (finish - start) / o; TTFT
// runs from arrival to the end of the request's first step; waits are in steps. A step counts from warmup on,
// a request's wait and TTFT when it is admitted in a counted step, its TPOT when it finishes in one.
#ifndef BFIO_TOOLS_SIM_RUN_STATISTICS_H_
#define BFIO_TOOLS_SIM_RUN_STATISTICS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/cost/energy.h"
#include "common/stats/histogram.h"
#include "nlohmann/json.hpp"
#include "tools/sim/run/options.h"
#include "tools/sim/run/wait_counts.h"

namespace bfio::sim {

class Statistics {
 public:
  // One step of `seconds` with these loads and `active` residents.
  void AddStep(absl::Span<const int64_t> loads, int64_t active, double seconds);
  void AddDecision(double microseconds) { decide_us_.Add(microseconds); }
  void AddAdmission(int64_t wait_steps) { wait_steps_.Add(wait_steps); }
  void AddFirstToken(double ttft_s) { ttft_s_.Add(ttft_s); }
  void AddFinish(double tpot_s) { tpot_s_.Add(tpot_s); }
  // The wait so far of a request that was still waiting at the end: a rule must not look fair because those
  // it starves never got in. Counts for quantiles and the longest wait, not for the mean.
  void AddStillWaiting(int64_t wait_steps) { still_waiting_.push_back(wait_steps); }

  nlohmann::ordered_json ToJson(const SimOptions& options, const std::string& workload) const;

 private:
  int64_t steps_ = 0;
  int64_t tokens_ = 0;
  double seconds_ = 0;
  double imbalance_ = 0;
  double idle_ = 0;
  double joules_ = 0;
  std::vector<int64_t> still_waiting_;
  PowerModel power_;
  Histogram decide_us_;
  WaitCounts wait_steps_;
  Histogram ttft_s_;
  Histogram tpot_s_;
};

// The header of the table, and one run's line of it.
std::string TableHeader();
std::string TableLine(const nlohmann::ordered_json& run);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_STATISTICS_H_
