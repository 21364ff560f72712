#include "router/admin/live/history.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace bfio::router {
namespace {

double SumSeconds(const std::vector<absl::Duration>& durations) {
  double sum = 0;
  for (const absl::Duration duration : durations) sum += absl::ToDoubleSeconds(duration);
  return sum;
}

}  // namespace

void LiveHistory::OnStep(const StepSummary& step, absl::Time now) {
  const std::vector<int64_t>& loads = step.load_tokens;
  if (loads.empty() || step.local.size() != loads.size()) return;
  MutexLock lock(&mutex_);
  Group& group = groups_[step.group];
  // A sample never mixes two epochs.
  if (group.open && (group.open->sample.epoch != step.epoch || now - group.open->since >= kInterval))
    CloseInterval(group);
  if (!group.open) {
    group.open = Open();
    group.open->since = now;
    group.open->slowest_count.assign(loads.size(), 0);
    group.open->sample.prefill_tokens.assign(loads.size(), 0);
  }
  Open& open = *group.open;
  open.last = now;
  StepSample& sample = open.sample;
  sample.group = step.group;
  sample.epoch = step.epoch;
  sample.step = step.step;
  sample.load_tokens = loads;
  sample.active_requests = step.active_requests;
  sample.waiting_requests = step.waiting_requests;
  for (size_t g = 0; g < std::min(step.prefill_tokens.size(), sample.prefill_tokens.size()); ++g)
    sample.prefill_tokens[g] += step.prefill_tokens[g];
  sample.assigned += step.assigned;
  ++sample.steps;
  open.local_s += SumSeconds(step.local);
  open.wait_s += SumSeconds(step.barrier_wait);
  const auto slowest = std::max_element(step.local.begin(), step.local.end());
  open.slowest_s += absl::ToDoubleSeconds(*slowest);
  if (!step.rank) {  // otherwise the rank steps independently, without waiting
    open.max_sum += static_cast<double>(*std::max_element(loads.begin(), loads.end()));
    open.mean_sum += std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
    ++open.slowest_count[static_cast<size_t>(slowest - step.local.begin())];
  }
  BoundGroups();
}

void LiveHistory::CloseInterval(Group& group) {
  Open& open = *group.open;
  StepSample& sample = open.sample;
  sample.number = next_number_++;
  sample.time = open.last;
  if (open.max_sum > 0) sample.idle_fraction = 1 - open.mean_sum / open.max_sum;
  const double busy_s = open.local_s + open.wait_s;
  if (busy_s > 0) sample.wait_fraction = open.wait_s / busy_s;
  sample.step_s = open.slowest_s / static_cast<double>(sample.steps);
  const auto& counts = open.slowest_count;
  const auto most = std::max_element(counts.begin(), counts.end());
  if (*most > 0) sample.straggler = static_cast<uint32_t>(most - counts.begin());
  group.samples.push_back(std::make_shared<const StepSample>(std::move(sample)));
  if (group.samples.size() > kSamples) group.samples.pop_front();
  group.open.reset();
}

void LiveHistory::BoundGroups() {
  if (groups_.size() <= kGroups) return;
  const auto newest = [](const auto& entry) {
    const Group& group = entry.second;
    if (group.open) return UINT64_MAX;
    return group.samples.empty() ? 0 : group.samples.back()->number;
  };
  // Among groups with an open interval, min_element takes the one with the smallest index: the oldest group.
  groups_.erase(std::min_element(groups_.begin(), groups_.end(),
                                 [&](const auto& a, const auto& b) { return newest(a) < newest(b); }));
}

std::vector<std::shared_ptr<const StepSample>> LiveHistory::After(uint64_t after,
                                                                  absl::Duration patience) const {
  MutexLock lock(&mutex_);
  const auto ready = [this, after]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || (next_number_ > 1 && (next_number_ - 1 > after || after >= next_number_));
  };
  mutex_.AwaitWithTimeout(absl::Condition(&ready), patience);
  std::vector<std::shared_ptr<const StepSample>> result;
  if (closed_) return result;
  for (const auto& [index, group] : groups_) {
    for (const auto& sample : group.samples) {
      if (sample->number > after || after >= next_number_) result.push_back(sample);
    }
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a->number < b->number; });
  return result;
}

void LiveHistory::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
}

bool LiveHistory::closed() const {
  MutexLock lock(&mutex_);
  return closed_;
}

}  // namespace bfio::router
