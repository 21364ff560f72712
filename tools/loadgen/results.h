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

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/stats/histogram.h"

namespace bfio::loadgen {

// The final result of one request (no retry will follow), as the runner reports it.
//
// Purpose: the input of every count and measurement of a run. Pure values. Seconds throughout.

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

// Goodput: the number of requests that meet their latency objectives.
//
// Purpose: limits on TTFT, TPOT and E2E ("ttft:0.5,tpot:0.05,e2e:30", in seconds; vLLM's benchmark uses
// milliseconds), and the number of requests that meet all of them. A request of one token has no TPOT and
// meets any limit on it; a failed request meets no limit. Pure; one thread at a time.

// Limits in seconds, inclusive.
struct GoodputLimits {
  std::optional<double> ttft_s, tpot_s, e2e_s;

  bool any() const { return ttft_s.has_value() || tpot_s.has_value() || e2e_s.has_value(); }
};

// "" is no limit. "e2el", as vLLM calls it, is the same as "e2e". INVALID_ARGUMENT with one line otherwise.
absl::StatusOr<GoodputLimits> ParseGoodput(absl::string_view text);

class Goodput {
 public:
  explicit Goodput(const GoodputLimits& limits = {}) : limits_(limits) {}

  // True if the request completed and meets all limits; without limits, if it completed. Interrupted requests
  // are not counted.
  bool Add(const EndedRequest& request);

  const GoodputLimits& limits() const { return limits_; }
  uint64_t good() const { return good_; }
  // Completed requests beyond each limit; one request may exceed several.
  uint64_t missed_ttft() const { return missed_ttft_; }
  uint64_t missed_tpot() const { return missed_tpot_; }
  uint64_t missed_e2e() const { return missed_e2e_; }

 private:
  GoodputLimits limits_;
  uint64_t good_ = 0;
  uint64_t missed_ttft_ = 0, missed_tpot_ = 0, missed_e2e_ = 0;
};

// A run over time, as seen by its clients.
//
// Purpose: the data of the report's charts. Every request and token is counted, in equal intervals. When the
// bins are used up, each two neighbours are merged into one of twice the width, so charts of runs of seconds
// and of days have the same size (at most some 20 MB of histograms). Pure; one thread at a time (the runner
// guards it). Times in seconds after the start of the run, in any order.
struct TimelineBin {
  // By due time, whatever their result.
  uint64_t due = 0;
  // By the time they ended.
  uint64_t completed = 0;
  uint64_t failed = 0;
  // By time of arrival; includes tokens of failed and interrupted requests.
  uint64_t tokens = 0;
  // Completed requests by due time; gaps between tokens by the time of the later token.
  Histogram ttft_s, tpot_s, e2e_s, itl_s;
  // Open loop: by due time.
  Histogram schedule_lag_s;
  // Sum, maximum and number of samples of the requests under way.
  uint64_t under_way_sum = 0;
  uint64_t under_way_max = 0;
  uint64_t under_way_samples = 0;

  void Merge(const TimelineBin& other);
};

class Timeline {
 public:
  // Maximum number of bins. After the first merge there are at least half as many.
  static constexpr size_t kMostBins = 120;

  void OnSent(double due_s) { ++At(due_s).due; }
  void OnLag(double due_s, double lag_s) { At(due_s).schedule_lag_s.Add(lag_s); }
  void OnUnderWay(double now_s, uint64_t requests);
  void OnEnded(const EndedRequest& request);

  // Bin i covers [i, i + 1) * width_s.
  const std::vector<TimelineBin>& bins() const { return bins_; }
  double width_s() const { return width_s_; }

 private:
  TimelineBin& At(double seconds);

  double width_s_ = 0.5;
  std::vector<TimelineBin> bins_;
};

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

  Goodput goodput;
  // Levels of the arrival profile.
  Timeline timeline;

  // `lag_s` is empty in a closed loop.
  void Sent(double due_s, std::optional<double> lag_s);
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
