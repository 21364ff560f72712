#include "router/core/scheduler/virtual_fcfs.h"

#include <algorithm>

namespace bfio::core {
namespace {

// The yardstick remembers so many decisions, and so many requests where decisions admit few: long enough for
// a 99th percentile, short enough to forget the start of a group or a burst.
constexpr double kMemorySteps = 30;
constexpr double kMemoryRequests = 150;
// Weight of one decision in the mean of admissions.
constexpr double kAdmittedGain = 0.02;

}  // namespace

void VirtualFcfs::Decide(int64_t step, int64_t waiting, int64_t admitted, int64_t oldest_step) {
  if (waiting > queued_) {
    queue_.push_back({step, waiting - queued_});
    queued_ = waiting;
  } else {
    Pop(queued_ - waiting, step, oldest_step, /*record=*/false);
  }
  admitted_ += kAdmittedGain * (static_cast<double>(admitted) - admitted_);
  Pop(admitted, step, oldest_step, /*record=*/true);
  if (admitted > 0) p99_ = waits_.Quantile(0.01);
}

void VirtualFcfs::Pop(int64_t requests, int64_t step, int64_t oldest_step, bool record) {
  while (requests > 0 && !queue_.empty()) {
    Arrivals& head = queue_.front();
    const int64_t taken = std::min(requests, head.requests);
    if (record) {
      const int64_t wait = std::max<int64_t>(0, step - std::max(head.step, oldest_step));
      const double memory = std::max(kMemoryRequests, kMemorySteps * admitted_);
      for (int64_t i = 0; i < taken; ++i) waits_.Add(wait, memory);
    }
    head.requests -= taken;
    requests -= taken;
    queued_ -= taken;
    if (head.requests == 0) queue_.pop_front();
  }
}

}  // namespace bfio::core
