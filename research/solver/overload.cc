#include "research/solver/overload.h"

#include <algorithm>

namespace bfio::testing {
namespace {

constexpr int64_t kAmpleKv = int64_t{1} << 50;

}  // namespace

Overload::Overload(const OverloadOptions& options, const Trace& trace)
    : options_(options), trace_(trace), workers_(options.workers) {
  const int32_t steps = options.horizon + 1;
  instance_.horizon = options.horizon;
  if (options.horizon == 0) return;
  // Curve c: the request certainly ends after c + 1 steps; the last curve extends beyond the horizon.
  for (int32_t c = 0; c < steps; ++c) {
    for (int32_t h = 0; h < steps; ++h) instance_.curves.push_back(h <= c ? 1 : 0);
  }
}

double Overload::Step(const Decide& decide) {
  while (static_cast<int64_t>(waiting_.size()) < options_.reveal) {
    const TraceRequest& request = trace_.requests[next_++ % trace_.requests.size()];
    waiting_.push_back({request.prompt_tokens, request.output_tokens});
  }
  if (const core::Instance& instance = Build(); instance.Target() > 0) {
    const core::Solution& solution = decide(instance);
    std::deque<Request> passed_over;
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const int32_t g = solution.worker_of[i];
      if (g == core::kUnassigned) {
        passed_over.push_back(waiting_[i]);
      } else {
        workers_[g].push_back(waiting_[i]);
      }
    }
    waiting_ = std::move(passed_over);
  }
  int64_t max = 0, sum = 0;
  for (std::vector<Request>& worker : workers_) {
    int64_t load = 0;
    for (Request& request : worker) {
      load += request.load++;
      --request.left;
    }
    worker.erase(std::remove_if(worker.begin(), worker.end(), [](const Request& r) { return r.left <= 0; }),
                 worker.end());
    max = std::max(max, load);
    sum += load;
  }
  return static_cast<double>(options_.workers * max - sum);
}

const core::Instance& Overload::Build() {
  const int32_t steps = options_.horizon + 1;
  instance_.workers.clear();
  instance_.items.clear();
  instance_.ahead.clear();
  for (const std::vector<Request>& worker : workers_) {
    std::vector<double> ahead(steps, 0);
    for (const Request& request : worker) {
      const auto active = static_cast<int32_t>(std::min<int64_t>(steps, request.left));
      for (int32_t h = 0; h < active; ++h) ahead[h] += static_cast<double>(request.load + h);
    }
    core::WorkerView view;
    view.load_tokens = static_cast<int64_t>(ahead[0]);
    view.free_slots = options_.batch - static_cast<int32_t>(worker.size());
    view.free_kv_tokens = kAmpleKv;
    view.active = static_cast<int32_t>(worker.size());
    instance_.workers.push_back(view);
    if (options_.horizon > 0) instance_.ahead.insert(instance_.ahead.end(), ahead.begin(), ahead.end());
  }
  for (const Request& request : waiting_) {
    core::SolverItem item;
    item.load = request.load;
    item.kv_reserve = request.load;
    if (options_.horizon > 0) item.curve = static_cast<int32_t>(std::min<int64_t>(steps, request.left)) - 1;
    instance_.items.push_back(item);
  }
  return instance_;
}

}  // namespace bfio::testing
