#include "research/admission/protection_rule.h"

#include <cmath>

namespace bfio::sim {

ProtectionRule::ProtectionRule(const AdmissionOptions& options, double alpha, std::optional<double> beta)
    : options_(options),
      limit_(static_cast<int64_t>(std::floor((1 - alpha) * static_cast<double>(options.memory) + 1e-9))),
      beta_(beta),
      rng_(options.seed) {}

void ProtectionRule::OnArrival(const AdmissionRequest& request) {
  waiting_.emplace(arrivals_, request.id);
  requests_.emplace(request.id, Entry{request, arrivals_++, 0});
}

void ProtectionRule::Decide(int64_t round, AdmissionRound& out) {
  out.Clear();
  const auto memory = [&] { return base_ + static_cast<int64_t>(running_.size()) * round; };
  while (memory() > options_.memory) {
    std::vector<RequestId> thrown_out;
    for (const auto& [arrival, id] : running_) {
      if (!beta_ || rng_.Uniform() < *beta_) thrown_out.push_back(id);
    }
    for (const RequestId id : thrown_out) Evict(id, out);
  }
  while (!waiting_.empty()) {
    Entry& entry = requests_.at(waiting_.begin()->second);
    if (memory() + entry.request.prompt > limit_) break;
    entry.began = round;
    base_ += entry.request.prompt - round;
    running_.insert(*waiting_.begin());
    out.begin.push_back(entry.request.id);
    waiting_.erase(waiting_.begin());
  }
}

void ProtectionRule::Evict(RequestId id, AdmissionRound& out) {
  const Entry& entry = requests_.at(id);
  base_ -= entry.request.prompt - entry.began;
  running_.erase(entry.arrival);
  waiting_.emplace(entry.arrival, id);
  out.evict.push_back(id);
}

void ProtectionRule::OnEnd(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  base_ -= it->second.request.prompt - it->second.began;
  running_.erase(it->second.arrival);
  requests_.erase(it);
}

}  // namespace bfio::sim
