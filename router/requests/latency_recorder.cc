#include "router/requests/latency_recorder.h"

namespace bfio::router {

void LatencyRecorder::OnCompleted(uint64_t prompt_tokens, uint64_t output_tokens,
                                  absl::Duration since_accepted, absl::Duration since_first_token) {
  prompt_tokens_.Add(static_cast<double>(prompt_tokens));
  output_tokens_.Add(static_cast<double>(output_tokens));
  end_to_end_.Add(absl::ToDoubleSeconds(since_accepted));
  if (output_tokens > 1) {
    per_output_token_.Add(absl::ToDoubleSeconds(since_first_token) / static_cast<double>(output_tokens - 1));
  }
}

void LatencyRecorder::Fill(v1::RequestLatencies& out) const {
  FillDistribution(queue_time_, *out.mutable_queue_time_s());
  FillDistribution(first_token_, *out.mutable_time_to_first_token_s());
  FillDistribution(inter_token_, *out.mutable_inter_token_s());
  FillDistribution(per_output_token_, *out.mutable_time_per_output_token_s());
  FillDistribution(end_to_end_, *out.mutable_end_to_end_s());
  FillDistribution(prompt_tokens_, *out.mutable_prompt_tokens());
  FillDistribution(output_tokens_, *out.mutable_output_tokens());
}

void FillDistribution(const Distribution& distribution, v1::Distribution& out) {
  out.mutable_upper_bounds()->Assign(distribution.bounds().begin(), distribution.bounds().end());
  out.mutable_counts()->Assign(distribution.counts().begin(), distribution.counts().end());
  out.set_sum(distribution.sum());
}

}  // namespace bfio::router
