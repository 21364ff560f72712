#include "router/core/policy/bf_io_auto/virtual_fcfs.h"

#include <algorithm>

namespace bfio::core {

void VirtualFcfs::Decide(int64_t step, int64_t waiting, int64_t admitted) {
  if (waiting > queued_) {
    queue_.push_back({step, waiting - queued_});
    queued_ = waiting;
  } else {
    Pop(queued_ - waiting, step, /*record=*/false);
  }
  Pop(admitted, step, /*record=*/true);
  if (admitted > 0) p99_ = waits_.Quantile(0.01);
}

void VirtualFcfs::Pop(int64_t requests, int64_t step, bool record) {
  while (requests > 0 && !queue_.empty()) {
    Arrivals& head = queue_.front();
    const int64_t taken = std::min(requests, head.requests);
    if (record) {
      for (int64_t i = 0; i < taken; ++i) waits_.Add(step - head.step);
    }
    head.requests -= taken;
    requests -= taken;
    queued_ -= taken;
    if (head.requests == 0) queue_.pop_front();
  }
}

}  // namespace bfio::core
