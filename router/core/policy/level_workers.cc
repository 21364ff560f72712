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

}  // namespace bfio::core
