#include "worker/engine/cpu/sample_team.h"

namespace bfio::worker::cpu {

void SampleTeam::Run(Threads& threads, absl::Span<const float> logits, absl::Span<const Draw> draws,
                     absl::Span<Drawn> drawn) {
  if (draws.empty()) return;
  const size_t vocab = logits.size() / draws.size();
  threads.Run([&](int32_t thread) {
    const auto [begin, end] = Share(static_cast<int64_t>(draws.size()), thread, threads.count());
    for (int64_t i = begin; i < end; ++i) {
      const auto picked = samplers_[thread].Pick(logits.subspan(i * vocab, vocab), draws[i]);
      // Its error is the row's, not the step's.
      drawn[i] = picked.ok() ? *picked : Drawn{.finite = false};
    }
  });
}

}  // namespace bfio::worker::cpu
