// The final result of one request (no retry will follow), as the runner reports it.
//
// Purpose: the input of every count and measurement of a run. Pure values. Seconds throughout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bfio::loadgen {

// One message with tokens: the time since the previous message, and the number of tokens in it.
struct TokenGap {
  double gap_s = 0;
  uint32_t tokens = 0;
};

struct EndedRequest {
  // "OK", or the name of the status code.
  std::string code;
  // Message of the error, if it failed.
  std::string message;
  // The load generator cancelled it because the run was interrupted.
  bool interrupted = false;
  std::string breach;
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  // Tokens that were delivered again after a resume with another id.
  uint64_t token_mismatches = 0;
  // Time from when the request was due to its first token (0 without one) and to its end.
  double ttft_s = 0;
  double e2e_s = 0;
  // One entry per message after the first. Further tokens of the first message are an entry with a gap of 0.
  std::vector<TokenGap> gaps;
  // Seconds after the start of the run.
  double due_s = 0;
  // Level of the arrival profile; 0 without one.
  uint32_t level = 0;

  bool ok() const { return code == "OK" && !interrupted; }
  // REQUIRES: output_tokens > 1.
  double tpot_s() const { return (e2e_s - ttft_s) / (output_tokens - 1); }

  // Calls f(when, gap, tokens) for each message with tokens: seconds after the start of the run, seconds
  // since the previous message (0 for the first), and number of tokens in it.
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
