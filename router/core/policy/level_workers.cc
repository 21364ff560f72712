#include "router/core/policy/level_workers.h"

#include <algorithm>

namespace bfio::core {

const std::vector<WorkerIndex>& LevelWorkers::Find(absl::Span<const WorkerView> workers) {
  level_.clear();
  loads_.clear();
  for (const WorkerView& worker : workers) {
    if (worker.accepts_new) loads_.push_back(worker.load_tokens);
  }
  if (loads_.empty()) return level_;
  const auto middle = loads_.begin() + static_cast<int64_t>(loads_.size() / 2);
  std::nth_element(loads_.begin(), middle, loads_.end());
  for (size_t g = 0; g < workers.size(); ++g) {
    if (workers[g].accepts_new && 2 * workers[g].load_tokens >= *middle) {
      level_.push_back(static_cast<WorkerIndex>(g));
    }
  }
  return level_;
}

double LevelTarget(const Instance& instance, absl::Span<const WorkerIndex> level, double item_tokens) {
  double time = 0, rate = 0;
  int64_t slots = 0;
  for (const WorkerIndex g : level) {
    const WorkerView& worker = instance.workers[g];
    time += worker.TimeAt(static_cast<double>(worker.load_tokens));
    rate += worker.time_per_token;
    slots += worker.free_slots;
  }
  const auto workers = static_cast<double>(level.size());
  const auto admitted =
      static_cast<double>(std::min<int64_t>(slots, static_cast<int64_t>(instance.items.size())));
  return (time + admitted * item_tokens * rate / workers) / workers;
}

}  // namespace bfio::core
