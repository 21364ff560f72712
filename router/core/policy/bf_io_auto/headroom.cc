#include "router/core/policy/bf_io_auto/headroom.h"

#include <algorithm>
#include <numeric>

namespace bfio::core {
namespace {

// Weight of the next request's step against the present one.
constexpr double kAhead = 0.1;
// Requests remembered: their largest few matter.
constexpr size_t kRecent = 4000;
// Share of the workers that are kept low, at least one.
constexpr double kLowShare = 0.06;

double TimeOf(const WorkerView& worker) {
  return worker.time_offset + worker.time_per_token * static_cast<double>(worker.load_tokens);
}

}  // namespace

void Headroom::Observe(const Snapshot& snapshot) {
  RequestId newest = last_id_;
  for (const WaitingView& request : snapshot.waiting) {
    if (request.id <= last_id_) continue;
    Learn(static_cast<double>(request.prefill_tokens));
    newest = std::max(newest, request.id);
  }
  last_id_ = newest;
}

void Headroom::Learn(double tokens) {
  if (recent_.size() == kRecent) {
    sorted_.erase(std::lower_bound(sorted_.begin(), sorted_.end(), recent_.front()));
    recent_.pop_front();
  }
  recent_.push_back(tokens);
  sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), tokens), tokens);
}

bool Headroom::Place(const Snapshot& snapshot, Room& room, std::vector<Assignment>& plan) {
  order_.resize(snapshot.waiting.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return snapshot.waiting[a].prefill_tokens > snapshot.waiting[b].prefill_tokens;
  });
  for (const int32_t i : order_) {
    const WorkerIndex worker = Choose(room, snapshot.waiting[i]);
    if (worker == kNoWorker) return false;
    room.Take(snapshot.waiting[i], worker);
    plan.push_back({i, worker});
  }
  return true;
}

double Headroom::Cost(double largest, double smallest) const {
  if (sorted_.empty()) return largest;
  const auto above = std::upper_bound(sorted_.begin(), sorted_.end(), largest - smallest);
  double excess = 0;
  for (auto x = above; x != sorted_.end(); ++x) excess += smallest + *x - largest;
  return largest + kAhead * (largest + excess / static_cast<double>(sorted_.size()));
}

WorkerIndex Headroom::Choose(const Room& room, const WaitingView& request) {
  fitting_.clear();
  double largest = 0;
  for (WorkerIndex g = 0; g < room.workers(); ++g) {
    largest = std::max(largest, TimeOf(room[g]));
    if (room.Fits(request, g)) fitting_.push_back(g);
  }
  if (fitting_.empty()) return kNoWorker;
  const size_t low =
      std::min(fitting_.size() - 1, std::max<size_t>(1, static_cast<size_t>(kLowShare * room.workers())));
  const auto lower = [&](WorkerIndex a, WorkerIndex b) {
    const double ta = TimeOf(room[a]), tb = TimeOf(room[b]);
    return ta < tb || (ta == tb && a < b);
  };
  std::partial_sort(fitting_.begin(),
                    fitting_.begin() + static_cast<int64_t>(std::min(fitting_.size(), low + 2)),
                    fitting_.end(), lower);
  if (low == 0) return fitting_[0];
  const double tokens = static_cast<double>(request.prefill_tokens);
  const auto with = [&](WorkerIndex g) { return TimeOf(room[g]) + room[g].time_per_token * tokens; };
  const double lowest = TimeOf(room[fitting_[0]]);
  const double on_lowest =
      Cost(std::max(largest, with(fitting_[0])), std::min(with(fitting_[0]), TimeOf(room[fitting_[1]])));
  const double above = Cost(std::max(largest, with(fitting_[low])), lowest);
  return above < on_lowest ? fitting_[low] : fitting_[0];
}

}  // namespace bfio::core
