// The measurements of a run so far.
//
// Purpose: counters and latency histograms, updated once per ended stream. Pure; not thread-safe (the runner
// guards it). Latencies are in seconds from the time a request was due, not from the time it was sent:
// otherwise a generator that falls behind, or a retry, would make the router look faster than it is
// (coordinated omission).
#pragma once

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
  // Failed requests by status code; one example message per code.
  std::map<std::string, uint64_t> failed;
  std::map<std::string, std::string> failed_examples;
  uint64_t interrupted = 0;
  // Requests due within the duration that were not sent in time, because of the generator's speed or
  // kMaxInFlight.
  uint64_t not_sent = 0;
  uint64_t retries = 0;
  // Requests whose stream broke and was resumed; tokens that were delivered again with another id.
  uint64_t resumed = 0;
  uint64_t token_mismatches = 0;
  uint64_t stream_breaches = 0;
  std::vector<std::string> breach_examples;
  // Prompt tokens of completed requests; tokens received by all of them.
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  // From the start of the run to the end of the last stream.
  double duration_s = 0;

  // For completed requests. TPOT is (E2E - TTFT) / (tokens - 1), for requests of two tokens or more. ITL is
  // the time between tokens; tokens of one message share the time since the previous message equally.
  Histogram ttft_s, tpot_s, itl_s, e2e_s;
  // Time between due and sent, for every request sent. Open loop only.
  Histogram schedule_lag_s;

  // Set when agents are sent; the other measurements then count their calls.
  AgentResults agents;

  Goodput goodput;
  // Levels of the arrival profile.
  Levels levels;
  Timeline timeline;

  // `level` is the level of the arrival profile. `lag_s` is empty in a closed loop.
  void Sent(double due_s, uint32_t level, std::optional<double> lag_s);
  void NotSent(uint32_t level);
  void Add(const EndedRequest& request);
  uint64_t failed_total() const;
  double tokens_per_s() const { return duration_s > 0 ? static_cast<double>(output_tokens) / duration_s : 0; }
  // Share, 0 to 1, of all requests due whose end is known; empty before the first.
  std::optional<double> good_share() const;
  double good_per_s() const { return duration_s > 0 ? static_cast<double>(goodput.good()) / duration_s : 0; }
  double requests_per_s() const { return duration_s > 0 ? static_cast<double>(completed) / duration_s : 0; }
};

// 130 after an interruption, 3 if a stream broke a guarantee or tokens differed after a resume, 1 if a
// request failed or none completed, 0 otherwise.
int ExitCode(const Results& results, bool interrupted);

}  // namespace bfio::loadgen
