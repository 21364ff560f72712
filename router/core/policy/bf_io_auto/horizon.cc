#include "router/core/policy/bf_io_auto/horizon.h"

#include <algorithm>
#include <numeric>

#include "router/core/policy/least_first.h"

namespace bfio::core {

bool Horizon::Place(const Snapshot& snapshot, const StopSignal& stop, FreeCapacity& free,
                    Decision& decision) {
  order_.resize(snapshot.waiting.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return snapshot.waiting[a].prefill_tokens > snapshot.waiting[b].prefill_tokens;
  });
  const FarOutlook& far = snapshot.far;
  const size_t knots = far.steps.size();
  steps_.Reset(free.views(), far);
  request_.tokens.resize(knots);
  request_.prompt.resize(knots);
  for (size_t at = 0; at < order_.size(); ++at) {
    // A placement takes some 20 us in the largest groups.
    if (stop && stop()) {
      decision.stopped_early = true;
      return PlaceOnLeastLoaded(snapshot, absl::MakeConstSpan(order_).subspan(at), free,
                                decision.assignments);
    }
    const int32_t i = order_[at];
    const WaitingView& request = snapshot.waiting[i];
    const auto prompt = static_cast<double>(request.prefill_tokens);
    for (size_t k = 0; k < knots; ++k) {
      const double stays = far.curves[static_cast<size_t>(far.curve_of[i]) * knots + k];
      request_.tokens[k] = stays * (prompt + static_cast<double>(far.steps[k]));
      request_.prompt[k] = stays * prompt;
    }
    steps_.Open(request_);
    const WorkerIndex worker = steps_.Least(free, request);
    if (worker == kNoWorker) return false;
    free.Take(request, worker);
    decision.assignments.push_back({i, worker});
    steps_.Add(worker);
  }
  return true;
}

}  // namespace bfio::core
