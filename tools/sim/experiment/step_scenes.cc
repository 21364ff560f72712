#include "tools/sim/experiment/step_scenes.h"

#include "common/base/rng.h"

namespace bfio::sim {

std::vector<StepArrival> DrawArrivals(const StepScene& scene, int64_t requests, uint64_t seed) {
  const Trace drawn = DrawWithReplacement(*scene.workload->trace, requests, seed);
  double tokens = 0;
  for (const TraceRequest& row : drawn.requests)
    tokens += static_cast<double>(row.prompt_tokens + row.output_tokens);
  const double gap =
      tokens / static_cast<double>(requests) / (scene.load * scene.engines * BatchCost().Capacity(512));
  Rng times = Rng(seed).Fork(1);
  std::vector<StepArrival> arrivals;
  double at = 0;
  for (const TraceRequest& row : drawn.requests) {
    at += gap * times.Exponential();
    arrivals.push_back({at, row.prompt_tokens, row.output_tokens});
  }
  return arrivals;
}

}  // namespace bfio::sim
