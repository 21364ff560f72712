// Distributions of request latencies and lengths: queue time, first token, between tokens, whole request.
// Metrics and the live page. Costs one bucket search per request and step. Owned by the decision thread; not
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/telemetry/metrics/distribution.h"

namespace bfio::router {

// In seconds or tokens.
struct RequestLatencies {
  // Time from acceptance to the first placement, and to the first token.
  Distribution queue_time_s{RequestSeconds()};
  Distribution time_to_first_token_s{RequestSeconds()};
  // Time between two tokens of a request.
  Distribution inter_token_s{RequestSeconds()};
  // For completed requests: (last token - first token) / (tokens - 1); time from acceptance to the end;
  // lengths.
  Distribution time_per_output_token_s{RequestSeconds()};
  Distribution end_to_end_s{RequestSeconds()};
  Distribution prompt_tokens{TokenCounts()};
  Distribution output_tokens{TokenCounts()};
};

class LatencyRecorder {
 public:
  // The request's first placement; later placements are replays and not counted.
  void OnPlaced(absl::Duration waited) { latencies_.queue_time_s.Add(absl::ToDoubleSeconds(waited)); }
  void OnFirstToken(absl::Duration since_accepted) {
    latencies_.time_to_first_token_s.Add(absl::ToDoubleSeconds(since_accepted));
  }
  // `tokens` more tokens, `since` after the previous one. They arrived together, so each counts an equal
  // share of the time.
  void OnTokens(uint64_t tokens, absl::Duration since) {
    latencies_.inter_token_s.Add(absl::ToDoubleSeconds(since) / static_cast<double>(tokens), tokens);
  }
  // `since_first_token`: empty where that is not known.
  void OnCompleted(uint64_t prompt_tokens, uint64_t output_tokens, absl::Duration since_accepted,
                   std::optional<absl::Duration> since_first_token);

  const RequestLatencies& latencies() const { return latencies_; }

 private:
  RequestLatencies latencies_;
};

}  // namespace bfio::router
