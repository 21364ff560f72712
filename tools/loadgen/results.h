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
#include <string>
#include <vector>

#include "common/stats/histogram.h"

namespace bfio::loadgen {

// One message with tokens: how long after the previous one, and how many tokens it brought.
struct TokenGap {
  double gap_s = 0;
  uint32_t tokens = 0;
};

// One request that has ended for good (no retry will follow).
struct EndedRequest {
  // "OK", or the status code's name.
  std::string code;
  // For an error, what it said.
  std::string message;
  // We cancelled it because the run was interrupted.
  bool interrupted = false;
  std::string breach;
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  // Tokens that came again after a resume and were others.
  uint64_t token_mismatches = 0;
  // From due to first token (0 without one) and to the end.
  double ttft_s = 0;
  double e2e_s = 0;
  // Between messages after the first; the first one's further tokens come as a gap of 0.
  std::vector<TokenGap> gaps;
};

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

  void Add(const EndedRequest& request);
  uint64_t failed_total() const;
  double tokens_per_s() const { return duration_s > 0 ? static_cast<double>(output_tokens) / duration_s : 0; }
  double requests_per_s() const { return duration_s > 0 ? static_cast<double>(completed) / duration_s : 0; }
};

// 130 after an interruption, 3 if a stream broke a promise or gave other tokens after a resume, 1 if a
// request failed or none completed, 0 otherwise.
int ExitCode(const Results& results, bool interrupted);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_RESULTS_H_
