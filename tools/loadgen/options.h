// What one run of the traffic generator is asked to do.
//
// Purpose: plain values, apart from flags, so that tests can build and check them. Pure.
#ifndef BFIO_TOOLS_LOADGEN_OPTIONS_H_
#define BFIO_TOOLS_LOADGEN_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/loadgen/agents.h"
#include "tools/loadgen/goodput.h"
#include "tools/loadgen/knee.h"

namespace bfio::loadgen {

struct Options {
  // HOST:PORT of the router's client API, and of its admin API ("" leaves the barrier figures out).
  std::string target = "127.0.0.1:50051";
  std::string admin;
  // One of the two; profile "conversation" when both are empty.
  std::string trace;
  std::string profile;
  // "closed": `concurrency` requests at any time, each followed by the next. "trace", "poisson", "gamma":
  // open loop, requests are sent when they are due, however many are under way. "ramp", "step", "sweep": open
  // loop with rates that change, see rate_profile.h.
  std::string arrival = "closed";
  // Open loop only; see common/workload/arrivals.h.
  double rate = 0;
  double burstiness = 1;
  double time_scale = 1;
  // Ramp: from `rate` to this. Step and sweep: the rates, and how long each is held.
  double rate_to = 0;
  std::vector<double> rates;
  double step_duration_s = 30;
  uint32_t concurrency = 64;
  // What every request may make, and the model ends it: nobody knows its length beforehand. 0: the lengths of
  // trace or profile, exactly. Not for agents.
  uint32_t max_new_tokens = 0;
  // What is sent are agents of these shapes, in turn; empty: single requests. `rate`, `concurrency` and
  // `requests` then count agents.
  std::vector<AgentShape> agents;
  // What requests ask for, and until when agents are of use from when they are sent; zero: nothing.
  absl::Duration ttft_objective, tpot_objective, agent_timeout;
  // Ends of the run, whichever comes first; 0 is none. With neither: one pass over a trace, or 1,000 requests
  // of a profile. Nothing due `duration_s` or more after the start is sent, and nothing at all a second later
  // (what was due and is then unsent is counted). What is under way is waited for.
  uint32_t requests = 0;
  double duration_s = 0;
  uint64_t seed = 1;
  // Result file; "-" is standard output (instead of the table), "" none.
  std::string json;
  // The same and the series behind the report, for comparisons; the report, as an HTML page. "" none.
  std::string save;
  std::string report;
  GoodputLimits goodput;
  // The share of requests within them that a rate has to keep to be held.
  double attainment = 0.9;
  uint32_t connections = 1;
  // Streams under way at once, at most; open-loop requests due beyond it wait, which their latencies show.
  uint32_t max_in_flight = 8192;
  // How often one request is sent again after RESOURCE_EXHAUSTED with a retry delay.
  uint32_t max_retries = 5;
  // After a lost connection or UNAVAILABLE the request is taken up again where its stream broke, until
  // `timeout`.
  bool resume = false;
  // From the first attempt of a request to its end, retries included.
  absl::Duration timeout = absl::Minutes(5);
  absl::Duration connect_timeout = absl::Seconds(10);

  bool closed_loop() const { return arrival == "closed"; }
  bool sweep() const { return arrival == "sweep"; }
  // Of ramp, step and sweep; none otherwise. REQUIRES: Validate(*this).ok().
  std::vector<RateLevel> levels() const;
  KneeCriteria knee_criteria() const;
  // When the last request is due at the latest; 0 when only their number ends the run, or, in a sweep, when
  // the router's pace does.
  double due_end_s() const;
};

// INVALID_ARGUMENT with one line for values that make no sense, alone or together. Addresses are checked
// later, by whoever opens the channels.
absl::Status Validate(const Options& options);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_OPTIONS_H_
