#include "router/core/policy/vllm/vllm.h"

#include <algorithm>

#include "router/core/policy/place_in_order.h"

namespace bfio::core {
namespace {

constexpr double kWaitingWeight = 6;
constexpr double kFreeKvShare = 0.5;
constexpr int32_t kClients = 1;

}  // namespace

double VllmPolicy::Score(WorkerIndex worker) const {
  const WorkerView& view = free_[worker];
  // `active` includes the requests that this plan has placed.
  const int32_t in_flight = view.active, waiting = waiting_[worker], running = in_flight - waiting;
  const double kv = 1 - static_cast<double>(view.free_kv_tokens) / static_cast<double>(view.total_kv_tokens);
  return std::max(kClients * in_flight, waiting + running) +
         kWaitingWeight * waiting * std::max(0.0, kv - kFreeKvShare);
}

void VllmPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  const WorkerIndex workers = free_.workers();
  waiting_.assign(static_cast<size_t>(workers), 0);
  PlaceInOrder(snapshot, free_, decision.assignments, [&](const WaitingView& request) {
    WorkerIndex best = kNoWorker;
    double least = 0;
    for (WorkerIndex turn = 0; turn < workers; ++turn) {
      const WorkerIndex g = (start_ + turn) % workers;
      if (!free_.Fits(request, g)) continue;
      const double score = Score(g);
      if (best != kNoWorker && score >= least) continue;
      best = g;
      least = score;
    }
    if (best == kNoWorker) return best;
    ++waiting_[best];
    start_ = (start_ + 1) % workers;
    return best;
  });
}

}  // namespace bfio::core
