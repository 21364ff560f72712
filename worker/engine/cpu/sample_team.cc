#include "worker/engine/cpu/sample_team.h"

#include <utility>

namespace bfio::worker::cpu {

void SampleTeam::Run(Threads& threads, absl::Span<const float> logits, absl::Span<const Draw> draws,
                     absl::Span<Drawn> drawn) {
  if (draws.empty()) return;
  const size_t vocab = logits.size() / draws.size();
  threads.Run([&](int32_t thread) {
    const auto [begin, end] = Share(static_cast<int64_t>(draws.size()), thread, threads.count());
    for (int64_t i = begin; i < end; ++i) {
      auto picked = samplers_[thread].Pick(logits.subspan(i * vocab, vocab), draws[i]);
      // A failed draw ends that row's request, not the step.
      drawn[i] = picked.ok() ? *std::move(picked) : Drawn{.finite = false};
    }
  });
}

}  // namespace bfio::worker::cpu
