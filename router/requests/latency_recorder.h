// What requests see, as distributions: queue time, first token, between tokens, whole request, lengths.
//
// Purpose: metrics and the live page. Costs a bucket search per request's tokens of a step. Owned by the
// decision thread; not thread-safe.
#ifndef BFIO_ROUTER_REQUESTS_LATENCY_RECORDER_H_
#define BFIO_ROUTER_REQUESTS_LATENCY_RECORDER_H_

#include <cstdint>

#include "absl/time/time.h"
#include "bfio/v1/admin.pb.h"
#include "common/telemetry/metrics/distribution.h"

namespace bfio::router {

class LatencyRecorder {
 public:
  // The request's first placement; later ones are replays.
  void OnPlaced(absl::Duration waited) { queue_time_.Add(absl::ToDoubleSeconds(waited)); }
  void OnFirstToken(absl::Duration since_accepted) {
    first_token_.Add(absl::ToDoubleSeconds(since_accepted));
  }
  // `tokens` more, `since` the token before them: they came together, so the time is shared out.
  void OnTokens(uint64_t tokens, absl::Duration since) {
    inter_token_.Add(absl::ToDoubleSeconds(since) / static_cast<double>(tokens), tokens);
  }
  void OnCompleted(uint64_t prompt_tokens, uint64_t output_tokens, absl::Duration since_accepted,
                   absl::Duration since_first_token);

  void Fill(v1::RequestLatencies& out) const;

 private:
  Distribution queue_time_{RequestSeconds()};
  Distribution first_token_{RequestSeconds()};
  Distribution inter_token_{RequestSeconds()};
  Distribution per_output_token_{RequestSeconds()};
  Distribution end_to_end_{RequestSeconds()};
  Distribution prompt_tokens_{TokenCounts()};
  Distribution output_tokens_{TokenCounts()};
};

void FillDistribution(const Distribution& distribution, v1::Distribution& out);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_LATENCY_RECORDER_H_
