#include "router/requests/latency_recorder.h"

namespace bfio::router {

void LatencyRecorder::OnCompleted(uint64_t prompt_tokens, uint64_t output_tokens,
                                  absl::Duration since_accepted,
                                  std::optional<absl::Duration> since_first_token) {
  latencies_.prompt_tokens.Add(static_cast<double>(prompt_tokens));
  latencies_.output_tokens.Add(static_cast<double>(output_tokens));
  latencies_.end_to_end_s.Add(absl::ToDoubleSeconds(since_accepted));
  if (output_tokens > 1 && since_first_token) {
    latencies_.time_per_output_token_s.Add(absl::ToDoubleSeconds(*since_first_token) /
                                           static_cast<double>(output_tokens - 1));
  }
}

}  // namespace bfio::router
