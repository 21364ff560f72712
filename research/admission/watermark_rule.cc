#include "research/admission/watermark_rule.h"

#include <cmath>
#include <iterator>

namespace bfio::sim {

WatermarkRule::WatermarkRule(const AdmissionOptions& options, double share, int64_t block)
    : block_(block),
      blocks_(options.memory / block),
      free_(static_cast<int64_t>(std::ceil(share * static_cast<double>(blocks_) - 1e-9))) {}

void WatermarkRule::OnArrival(const AdmissionRequest& request) {
  waiting_.emplace(arrivals_, request.id);
  requests_.emplace(request.id, Entry{request.prompt, arrivals_++, 0});
}

void WatermarkRule::Decide(int64_t round, AdmissionRound& out) {
  out.Clear();
  int64_t used = 0;
  for (const auto& [place, id] : running_) used += Blocks(requests_.at(id).prompt + round - place.first);
  // A request that runs alone may use memory beyond the last whole block.
  while (used > blocks_ && running_.size() > 1) {
    const auto youngest = std::prev(running_.end());
    Entry& entry = requests_.at(youngest->second);
    // It resumes with its generated tokens.
    entry.prompt += round - entry.began;
    used -= Blocks(entry.prompt);
    waiting_.emplace(entry.arrival, youngest->second);
    out.preempt.push_back(youngest->second);
    running_.erase(youngest);
  }
  if (!out.preempt.empty()) return;
  while (!waiting_.empty()) {
    Entry& entry = requests_.at(waiting_.begin()->second);
    if (!running_.empty() && used + Blocks(entry.prompt) > blocks_ - free_) break;
    used += Blocks(entry.prompt);
    entry.began = round;
    running_.emplace(std::make_pair(round, entry.arrival), waiting_.begin()->second);
    out.begin.push_back(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
  }
}

void WatermarkRule::OnEnd(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  running_.erase({it->second.began, it->second.arrival});
  requests_.erase(it);
}

}  // namespace bfio::sim
