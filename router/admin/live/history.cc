#include "router/admin/live/history.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace bfio::router {

void LiveHistory::OnStep(const v1::StepSummary& step, absl::Time now) {
  const auto& loads = step.load_tokens();
  if (loads.empty() || step.local_ns_size() != loads.size()) return;
  MutexLock lock(&mutex_);
  // Samples do not mix two groups.
  if (open_.has_value() && (open_->sample.epoch != step.epoch() || now - open_->since >= kInterval)) {
    CloseInterval();
  }
  if (!open_.has_value()) {
    open_ = Open();
    open_->since = now;
    open_->slowest_count.assign(static_cast<size_t>(loads.size()), 0);
  }
  open_->last = now;
  StepSample& sample = open_->sample;
  sample.epoch = step.epoch();
  sample.step = step.step();
  sample.load_tokens.assign(loads.begin(), loads.end());
  sample.active_requests.assign(step.active_requests().begin(), step.active_requests().end());
  sample.waiting_requests = step.waiting_requests();
  sample.assigned += step.assigned();
  ++sample.steps;
  open_->local_ns += std::accumulate(step.local_ns().begin(), step.local_ns().end(), 0.0);
  open_->wait_ns += std::accumulate(step.barrier_wait_ns().begin(), step.barrier_wait_ns().end(), 0.0);
  const auto slowest = std::max_element(step.local_ns().begin(), step.local_ns().end());
  open_->slowest_ns += static_cast<double>(*slowest);
  if (step.has_rank()) return;  // a step of its own: nobody waited
  open_->max_sum += static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  open_->mean_sum += std::accumulate(loads.begin(), loads.end(), 0.0) / loads.size();
  ++open_->slowest_count[static_cast<size_t>(slowest - step.local_ns().begin())];
}

void LiveHistory::CloseInterval() {
  StepSample& sample = open_->sample;
  sample.number = next_number_++;
  sample.time = open_->last;
  if (open_->max_sum > 0) sample.idle_fraction = 1 - open_->mean_sum / open_->max_sum;
  const double busy_ns = open_->local_ns + open_->wait_ns;
  if (busy_ns > 0) sample.wait_fraction = open_->wait_ns / busy_ns;
  sample.step_s = open_->slowest_ns / sample.steps * 1e-9;
  const auto& counts = open_->slowest_count;
  const auto most = std::max_element(counts.begin(), counts.end());
  if (*most > 0) sample.straggler = static_cast<uint32_t>(most - counts.begin());
  samples_.push_back(std::make_shared<const StepSample>(std::move(sample)));
  if (samples_.size() > kSamples) samples_.pop_front();
  open_.reset();
}

std::vector<std::shared_ptr<const StepSample>> LiveHistory::After(uint64_t after,
                                                                  absl::Duration patience) const {
  MutexLock lock(&mutex_);
  const auto ready = [this, after]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || (!samples_.empty() && (samples_.back()->number > after || after >= next_number_));
  };
  mutex_.AwaitWithTimeout(absl::Condition(&ready), patience);
  std::vector<std::shared_ptr<const StepSample>> result;
  if (closed_) return result;
  for (const auto& sample : samples_) {
    if (sample->number > after || after >= next_number_) result.push_back(sample);
  }
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
