#include "router/core/shadow/plan_value.h"

#include <algorithm>

namespace bfio::core {

PlanValue PlanMeter::Measure(const Snapshot& snapshot, absl::Span<const Assignment> plan) {
  const Outlook& outlook = snapshot.outlook;
  const size_t row = static_cast<size_t>(outlook.horizon) + 1, workers = snapshot.workers.size();
  loads_.assign(outlook.load.begin(), outlook.load.end());
  loads_.resize(workers * row);
  prompts_.assign(workers * row, 0);
  for (size_t g = 0; g < workers; ++g) {
    loads_[g * row] = static_cast<double>(snapshot.workers[g].load_tokens);
  }
  for (const Assignment& assignment : plan) {
    const WaitingView& request = snapshot.waiting[static_cast<size_t>(assignment.waiting_index)];
    double* const loads = &loads_[static_cast<size_t>(assignment.worker) * row];
    double* const prompts = &prompts_[static_cast<size_t>(assignment.worker) * row];
    const double prompt = static_cast<double>(request.prefill_tokens);
    loads[0] += prompt;
    prompts[0] += prompt;
    const size_t curve = static_cast<size_t>(request.curve) * row;
    for (size_t h = 1; h < row; ++h) {
      loads[h] += (prompt + static_cast<double>(h)) * outlook.curves[curve + h];
      prompts[h] += prompt * outlook.curves[curve + h];
    }
  }
  PlanValue value;
  double weight = 1, weights = 0;
  for (size_t h = 0; h < row; ++h, weight *= discount_) {
    double longest = 0, sum = 0;
    for (size_t g = 0; g < workers; ++g) {
      const WorkerView& worker = snapshot.workers[g];
      const double time = worker.time_offset + worker.time_per_token * loads_[g * row + h] +
                          worker.prefill_weight * prompts_[g * row + h];
      longest = std::max(longest, time);
      sum += time;
    }
    const double idle = static_cast<double>(workers) * longest - sum;
    if (h == 0) {
      value.idle_now = idle;
      value.longest_now = longest;
    }
    value.idle_ahead += weight * idle;
    weights += weight;
  }
  value.idle_ahead /= weights;
  return value;
}

}  // namespace bfio::core
