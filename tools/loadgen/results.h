// What a run has measured so far.
//
// Purpose: counters and latency histograms, fed once per ended stream. Pure; not thread-safe (the runner
// guards it). Latencies in seconds, from the time a request was due, not from the time it was sent: a
// generator that falls behind, or a retry, must not make the router look faster (the error known as
// coordinated omission).
#ifndef BFIO_TOOLS_LOADGEN_RESULTS_H_
#define BFIO_TOOLS_LOADGEN_RESULTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/stats/histogram.h"
#include "tools/loadgen/agents.h"
#include "tools/loadgen/ended_request.h"
#include "tools/loadgen/goodput.h"
#include "tools/loadgen/levels.h"
#include "tools/loadgen/timeline.h"

namespace bfio::loadgen {

struct Results {
  uint64_t requests_sent = 0;
  uint64_t completed = 0;
  // Ended with an error, by code; the first message of each.
  std::map<std::string, uint64_t> failed;
  std::map<std::string, std::string> failed_examples;
  uint64_t interrupted = 0;
  // Due within the duration, but not sent in it: the generator or max_in_flight held them back.
  uint64_t not_sent = 0;
  uint64_t retries = 0;
  // Requests whose stream broke and was taken up again, and tokens that were others then.
  uint64_t resumed = 0;
  uint64_t token_mismatches = 0;
  uint64_t stream_breaches = 0;
  std::vector<std::string> breach_examples;
  // Of completed requests, and tokens received by all of them.
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  // From the start to the last stream's end.
  double duration_s = 0;

  // Of completed requests. TPOT is (E2E - TTFT) / (tokens - 1) of a request, for those of two tokens and
  // more. ITL is the time between tokens; tokens that come in one message share the time since the one
  // before.
  Histogram ttft_s, tpot_s, itl_s, e2e_s;
  // Of every request sent: how much later than due. Open loop only.
  Histogram schedule_lag_s;

  // Where agents were sent; the figures above are of their calls.
  AgentResults agents;

  Goodput goodput;
  // Of the arrival profile.
  Levels levels;
  Timeline timeline;

  // `level` is that of the arrival profile. Closed loop has no lag.
  void Sent(double due_s, uint32_t level, std::optional<double> lag_s);
  void NotSent(uint32_t level);
  void Add(const EndedRequest& request);
  uint64_t failed_total() const;
  double tokens_per_s() const { return duration_s > 0 ? static_cast<double>(output_tokens) / duration_s : 0; }
  // Of all requests due whose end is known, 0 to 1; nothing before the first.
  std::optional<double> good_share() const;
  double good_per_s() const { return duration_s > 0 ? static_cast<double>(goodput.good()) / duration_s : 0; }
  double requests_per_s() const { return duration_s > 0 ? static_cast<double>(completed) / duration_s : 0; }
};

// 130 after an interruption, 3 if a stream broke a promise or gave other tokens after a resume, 1 if a
// request failed or none completed, 0 otherwise.
int ExitCode(const Results& results, bool interrupted);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_RESULTS_H_
