// The final result of one request (no retry will follow), as the runner reports it.
//
// Purpose: what every count and figure of a run is made of. Pure values. Seconds throughout.
#ifndef BFIO_TOOLS_LOADGEN_ENDED_REQUEST_H_
#define BFIO_TOOLS_LOADGEN_ENDED_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

namespace bfio::loadgen {

// One message with tokens: how long after the previous one, and how many tokens it brought.
struct TokenGap {
  double gap_s = 0;
  uint32_t tokens = 0;
};

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
  // After the start of the run.
  double due_s = 0;
  // Of the arrival profile; 0 without one.
  uint32_t level = 0;

  bool ok() const { return code == "OK" && !interrupted; }
  // REQUIRES: output_tokens > 1.
  double tpot_s() const { return (e2e_s - ttft_s) / (output_tokens - 1); }

  // Calls f(when, gap, tokens) for each message with tokens: seconds after the start of the run, seconds
  // since the message before (0 for the first) and how many it brought.
  template <typename F>
  void ForEachMessage(F f) const {
    if (output_tokens == 0) return;
    double when = due_s + ttft_s;
    f(when, 0.0, 1u);
    for (const TokenGap& gap : gaps) {
      when += gap.gap_s;
      f(when, gap.gap_s, gap.tokens);
    }
  }
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_ENDED_REQUEST_H_
