#include "router/core/policy/bf_io_auto/headroom.h"

#include <algorithm>
#include <utility>

#include "router/core/policy/least_first.h"

namespace bfio::core {
namespace {

// Weight of the next request's step relative to the present one. Found by trial; 0.03 to 1 hardly differ.
constexpr double kAhead = 0.1;
// Number of recent prompts in the sample. The largest few matter, and 1,000 were too few where large prompts
// are rare.
constexpr size_t kRecent = 4000;
// Up to this number of new requests, inserting each into the sorted prompts is faster than sorting all.
constexpr size_t kMostInserted = 128;
// Share of the workers that are kept low, at least one. Found by trial; 2 to 15 % hardly differ.
constexpr double kLowShare = 0.06;
// A request that generates o tokens holds o / 2 of them in the mean step of its stay.
constexpr double kMeanOfStay = 0.5;
// Requests between two checks of the deadline: about 10 us.
constexpr size_t kHeadroomStopEvery = 32;

}  // namespace

void Headroom::Observe(const Snapshot& snapshot) {
  RequestId newest = last_id_;
  new_.clear();
  for (const WaitingView& request : snapshot.waiting) {
    if (request.id <= last_id_) continue;
    new_.push_back(static_cast<double>(request.prefill_tokens));
    newest = std::max(newest, request.id);
  }
  last_id_ = newest;
  // Other rules do not need sorted prompts, so Place sorts them.
  unsorted_ = unsorted_ || new_.size() > kMostInserted;
  for (const double tokens : new_) Learn(tokens);
}

void Headroom::Learn(double tokens) {
  if (recent_.size() == kRecent) {
    if (!unsorted_) sorted_.erase(std::lower_bound(sorted_.begin(), sorted_.end(), recent_.front()));
    recent_sum_ -= recent_.front();
    recent_.pop_front();
  }
  recent_.push_back(tokens);
  recent_sum_ += tokens;
  if (!unsorted_) sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), tokens), tokens);
}

double Headroom::ExpectedGrowth(const Snapshot& snapshot, double completed_tokens) const {
  double load = 0, residents = 0;
  for (const WorkerView& worker : snapshot.workers) {
    load += static_cast<double>(worker.load_tokens);
    residents += worker.active;
  }
  if (residents == 0 || recent_.empty()) return 0;
  const double prompt = recent_sum_ / static_cast<double>(recent_.size());
  // In a steady state the tokens that residents have generated are distributed as those that they will
  // generate. This estimate is too large where long prompts have long outputs, since residents' prompts are
  // then longer than the mean prompt, and where a few requests stay for long. The mean output is too large
  // where lengths hardly differ. So the smaller of the two is used.
  double to_come = load / residents - prompt;
  if (completed_tokens > 0) to_come = std::min(to_come, completed_tokens - prompt);
  if (to_come <= 0) return 0;
  return kMeanOfStay * to_come * to_come / (to_come + prompt);
}

bool Headroom::Place(const Snapshot& snapshot, double growth, const StopSignal& stop, FreeCapacity& free,
                     Decision& decision) {
  growth_ = growth;
  if (std::exchange(unsorted_, false)) {
    sorted_.assign(recent_.begin(), recent_.end());
    std::sort(sorted_.begin(), sorted_.end());
  }
  OrderLongestFirst(snapshot, snapshot.waiting.size(), order_);
  Prepare(free);
  for (size_t at = 0; at < order_.size(); ++at) {
    if (at % kHeadroomStopEvery == kHeadroomStopEvery - 1 && stop && stop()) {
      decision.stopped_early = true;
      return PlaceOnLeastLoaded(snapshot, absl::MakeConstSpan(order_).subspan(at), free,
                                decision.assignments);
    }
    const int32_t i = order_[at];
    const int64_t place = Choose(free, snapshot.waiting[i]);
    if (place < 0) return false;
    const WorkerIndex worker = workers_[static_cast<size_t>(place)].worker;
    free.Take(snapshot.waiting[i], worker);
    decision.assignments.push_back({i, worker});
    Sink(static_cast<size_t>(place), T(free[worker]));
  }
  return true;
}

void Headroom::Prepare(const FreeCapacity& free) {
  workers_.clear();
  largest_ = 0;
  double rates = 0;
  for (WorkerIndex g = 0; g < free.workers(); ++g) {
    const double time = T(free[g]);
    largest_ = std::max(largest_, time);
    rates += free[g].time_per_token;
    if (free[g].free_slots > 0) workers_.push_back({time, g});
  }
  rate_ = rates / static_cast<double>(free.workers());
  grows_ = growth_ * rate_;
  std::sort(workers_.begin(), workers_.end());
  low_ = std::max<size_t>(1, static_cast<size_t>(kLowShare * free.workers()));
  sums_.assign(sorted_.size() + 1, 0);
  for (size_t i = sorted_.size(); i-- > 0;) sums_[i] = sums_[i + 1] + sorted_[i];
}

double Headroom::Cost(double largest, double smallest) const {
  if (sorted_.empty()) return largest;
  const double gap = largest - smallest - grows_;
  const size_t above =
      static_cast<size_t>(std::upper_bound(sorted_.begin(), sorted_.end(), gap / rate_) - sorted_.begin());
  const double excess = rate_ * sums_[above] - static_cast<double>(sorted_.size() - above) * gap;
  return largest + kAhead * (largest + excess / static_cast<double>(sorted_.size()));
}

int64_t Headroom::Choose(const FreeCapacity& free, const WaitingView& request) {
  // The lowest worker that the request fits, the next one, and the lowest one above the low workers.
  size_t lowest = 0, next = 0, above = 0, fitting = 0;
  for (size_t place = 0; place < workers_.size() && fitting <= low_; ++place) {
    if (!free.Fits(request, workers_[place].worker)) continue;
    if (fitting == 0) lowest = place;
    if (fitting == 1) next = place;
    above = place;
    ++fitting;
  }
  if (fitting == 0) return -1;
  if (fitting == 1) return static_cast<int64_t>(lowest);
  const auto with = [&](size_t place) { return With(free[workers_[place].worker], request); };
  const double on_lowest =
      Cost(std::max(largest_, with(lowest)), std::min(with(lowest), workers_[next].time));
  const double on_above = Cost(std::max(largest_, with(above)), workers_[lowest].time);
  return static_cast<int64_t>(on_above < on_lowest ? above : lowest);
}

void Headroom::Sink(size_t place, double time) {
  Placed moved = workers_[place];
  moved.time = time;
  largest_ = std::max(largest_, time);
  const auto from = workers_.begin() + static_cast<int64_t>(place);
  const auto to = std::lower_bound(from + 1, workers_.end(), moved);
  std::move(from + 1, to, from);
  *(to - 1) = moved;
}

}  // namespace bfio::core
