#include "worker/engine/cpu/sample_team.h"

namespace bfio::worker::cpu {

absl::Status SampleTeam::Run(Threads& threads, absl::Span<const float> logits, absl::Span<const Draw> draws,
                             absl::Span<Drawn> drawn) {
  if (draws.empty()) return absl::OkStatus();
  const size_t vocab = logits.size() / draws.size();
  threads.Run([&](int32_t thread) {
    statuses_[thread] = absl::OkStatus();
    const auto [begin, end] = Share(static_cast<int64_t>(draws.size()), thread, threads.count());
    for (int64_t i = begin; i < end; ++i) {
      auto picked = samplers_[thread].Pick(logits.subspan(i * vocab, vocab), draws[i]);
      if (picked.ok()) {
        drawn[i] = *picked;
      } else {
        statuses_[thread] = picked.status();
      }
    }
  });
  for (const absl::Status& status : statuses_) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace bfio::worker::cpu
