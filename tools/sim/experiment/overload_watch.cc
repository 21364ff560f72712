#include "tools/sim/experiment/overload_watch.h"

#include <algorithm>
#include <utility>

namespace bfio::sim {

OverloadWatch::OverloadWatch(const SimOptions& options, std::shared_ptr<const Trace> trace)
    : trace_(std::move(trace)),
      slots_(static_cast<int64_t>(options.workers) * options.batch),
      warmup_(options.warmup) {
  int64_t longest = 0;
  for (const TraceRequest& request : trace_->requests) longest = std::max(longest, request.prompt_tokens);
  waiting_.resize(static_cast<size_t>(longest) + 1);
}

// Requests are revealed in the trace's order, which wraps round, under ids from 1.
const TraceRequest& OverloadWatch::Request(int64_t id) const {
  return trace_->requests[static_cast<size_t>(id - 1) % trace_->requests.size()];
}

void OverloadWatch::See(const StepView& view) {
  const int64_t started = static_cast<int64_t>(view.started.size());
  admitted_ += started;
  while (revealed_ < admitted_ + view.waiting) {
    ++waiting_[static_cast<size_t>(Request(++revealed_).prompt_tokens)];
  }
  const int64_t free = slots_ - (view.residents - started);
  if (view.step > warmup_ && free > 0) {
    const int64_t pool = revealed_ - (admitted_ - started);
    ++decisions_;
    if (pool - *std::max_element(waiting_.begin(), waiting_.end()) >= free) ++met_;
  }
  for (const Started& one : view.started) --waiting_[static_cast<size_t>(Request(one.id).prompt_tokens)];
}

double OverloadWatch::share() const {
  return decisions_ == 0 ? 1 : static_cast<double>(met_) / static_cast<double>(decisions_);
}

}  // namespace bfio::sim
