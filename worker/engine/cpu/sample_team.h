// Draws tokens from logits on an engine's threads. Shared by the CPU engine and the head of a chain. Threads:
// used by the thread that leads the team.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/engine/cpu/threads.h"
#include "worker/engine/sampling/sampler.h"

namespace bfio::worker::cpu {

class SampleTeam {
 public:
  explicit SampleTeam(int32_t threads) : samplers_(static_cast<size_t>(threads)) {}

  // `logits`: [draws, vocab]. REQUIRES: `threads` has as many threads as this was made for; draws and drawn
  // are equally long.
  void Run(Threads& threads, absl::Span<const float> logits, absl::Span<const Draw> draws,
           absl::Span<Drawn> drawn);

 private:
  // By thread.
  std::vector<Sampler> samplers_;
};

}  // namespace bfio::worker::cpu
