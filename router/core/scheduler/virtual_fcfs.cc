#include "router/core/scheduler/virtual_fcfs.h"

#include <algorithm>
#include <iterator>

namespace bfio::core {
namespace {

// The recent wait covers so many decisions, and so many requests where decisions admit few: long enough
// for a 99th percentile, short enough that the start of a group or a burst soon leaves it.
constexpr double kMemorySteps = 30;
constexpr double kMemoryRequests = 150;
// Length of the long-run wait's window, relative to the recent one: its percentile varies by a third as much.
constexpr double kLongRun = 10;
// Share above a 99th percentile.
constexpr double kAbove = 0.01;
// Weight of one decision in the mean of admissions.
constexpr double kAdmittedGain = 0.02;

}  // namespace

void VirtualFcfs::Arrive(int64_t step) {
  ++queued_;
  // At the end, except for requests that return with their age.
  auto at = queue_.end();
  while (at != queue_.begin() && std::prev(at)->step > step) --at;
  if (at != queue_.begin() && std::prev(at)->step == step) {
    ++std::prev(at)->requests;
  } else {
    queue_.insert(at, {step, 1});
  }
}

void VirtualFcfs::Leave() {
  --queued_;
  if (--queue_.front().requests == 0) queue_.pop_front();
}

void VirtualFcfs::Decide(int64_t step, int64_t admitted) {
  admitted_ += kAdmittedGain * (static_cast<double>(admitted) - admitted_);
  const double memory = std::max(kMemoryRequests, kMemorySteps * admitted_);
  for (int64_t i = 0; i < admitted; ++i) {
    const int64_t wait = std::max<int64_t>(0, step - queue_.front().step);
    recent_.waits.Add(wait, memory);
    long_run_.waits.Add(wait, kLongRun * memory);
    Leave();
  }
  if (admitted > 0) recent_.p99 = long_run_.p99 = -1;
}

int64_t VirtualFcfs::Waits::P99() const {
  if (p99 < 0) p99 = waits.Quantile(kAbove);
  return p99;
}

}  // namespace bfio::core
