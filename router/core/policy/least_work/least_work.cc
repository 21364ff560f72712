#include "router/core/policy/least_work/least_work.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "router/core/policy/fair_order.h"

namespace bfio::core {
namespace {

// Where capacity is short, as many of the oldest requests are compared as this number of look-ups permits,
// and at least as many as these: about a millisecond.
constexpr int32_t kMostFinds = 1 << 12, kLeastLook = 16;
// Tokens that an engine computes in the time in which it reads its weights, which is the least time of a
// decode step: operations per second over bytes per second, 150 on an A100, 300 on an H100.
constexpr double kStepTokens = 256;
// Tokens that it computes in the time in which it reads all of its KV memory, which is about as large as the
// weights, and half of it: the requests on a worker are on average half done.
constexpr double kMemoryTokens = kStepTokens / 2;
// Requests whose prefix is looked up on all workers between two checks of the deadline: about 0.5 ms with 256
// workers.
constexpr int32_t kStopEvery = 8;

double StepsOf(int64_t tokens) {
  return static_cast<double>(tokens) / kStepTokens;
}

// Whether the worker has memory for the request when it is empty.
bool CouldHold(const Snapshot& snapshot, const WorkerView& worker, const WaitingView& request) {
  const bool reserves = snapshot.kv.empty() || request.reserves_kv;
  return request.kv_reserve_tokens < worker.max_sequence_tokens &&
         worker.total_kv_tokens >= (reserves ? request.kv_reserve_tokens : request.prefill_tokens);
}

double AgeOf(const Snapshot& snapshot, const WaitingView& request) {
  return static_cast<double>(snapshot.step - request.senior_step());
}

// How long it lets others go first.
double LongestWait(const Snapshot& snapshot, const WaitingView& request) {
  return kLongestWait * static_cast<double>(snapshot.FirstCome(request.priority).p99);
}

}  // namespace

void LeastWorkPolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  free_.Reset(snapshot);
  refusals_.Reset(snapshot.kv);
  caches_ = snapshot.prefixes == nullptr ? nullptr : snapshot.prefixes->caches;
  pending_.assign(snapshot.workers.size(), 0);
  if (snapshot.prefixes != nullptr) pending_ = snapshot.prefixes->pending;
  placed_.assign(snapshot.waiting.size(), 0);
  const auto waiting = static_cast<int32_t>(snapshot.waiting.size());
  elsewhere_.assign(snapshot.waiting.size(), 0);
  looked_up_ = 0;
  planned_.clear();
  const int32_t looks = std::max(kLeastLook, kMostFinds / std::max(1, free_.workers()));
  // A lower class of priority gets the capacity that a higher one leaves.
  for (int32_t first = 0, end = 0; first < waiting && free_.free_slots() > 0; first = end) {
    while (end < waiting && snapshot.waiting[end].priority == snapshot.waiting[first].priority) ++end;
    Order(snapshot, first, std::min(end, first + looks), decision);
    for (const auto& [left, i] : order_) {
      if (free_.free_slots() <= 0) break;
      if (Refused(snapshot.waiting[i])) continue;
      ReadDeadline(decision);
      elsewhere_[i] = MoreElsewhere(snapshot, snapshot.waiting[i]);
      if (!LetsOthersGoFirst(snapshot, i)) Place(snapshot, i, decision);
    }
    // Only the last class may leave capacity unused, because no other class follows.
    const bool may_wait = end == waiting;
    for (int32_t i = first; i < end && free_.free_slots() > 0; ++i) {
      if (!may_wait || !WaitsForPrefix(snapshot, i)) Place(snapshot, i, decision);
    }
  }
}

void LeastWorkPolicy::Order(const Snapshot& snapshot, int32_t first, int32_t end, Decision& decision) {
  order_.clear();
  const absl::Span<const WaitingView> waiting = snapshot.waiting;
  // Tenants come in fair order.
  const bool chooses = free_.free_slots() < std::ssize(waiting) - first &&
                       std::all_of(waiting.begin() + first, waiting.begin() + end,
                                   [&](const WaitingView& of) { return of.tenant == waiting[first].tenant; });
  for (int32_t i = first; i < end; ++i) {
    double left = 0;
    if (chooses && AgeOf(snapshot, waiting[i]) > LongestWait(snapshot, waiting[i])) {
      left = -std::numeric_limits<double>::infinity();
    } else if (chooses && !Refused(waiting[i]) && !free_.FitsSomewhere(waiting[i])) {
      refusals_.Note(waiting[i].kv_need, waiting[i].kv_reserve_tokens);
    } else if (chooses && !Refused(waiting[i])) {
      if (!waiting[i].prefix.empty()) ReadDeadline(decision);
      const int64_t prompt = waiting[i].prefill_tokens - waiting[i].computed_tokens;
      // A token that is found is one less to compute, and one that would be evicted meanwhile.
      left = static_cast<double>(prompt - 2 * MostCached(waiting[i]));
    }
    order_.emplace_back(left, i);
  }
  std::ranges::stable_sort(order_, {}, &std::pair<double, int32_t>::first);
}

void LeastWorkPolicy::ReadDeadline(Decision& decision) {
  if (!stop_ || caches_ == nullptr || ++looked_up_ % kStopEvery != 0 || !stop_()) return;
  caches_ = nullptr;
  decision.stopped_early = true;
}

int64_t LeastWorkPolicy::FindOn(const WaitingView& request, WorkerIndex worker) const {
  const int64_t before = caches_->Find(worker, request.prefix, request.prefill_tokens);
  if (planned_.empty()) return before;
  const auto end = std::partition_point(request.prefix.begin() + before / kPrefixBlockTokens,
                                        request.prefix.end(), [&](uint64_t block) {
                                          return planned_.contains({worker, block});
                                        });
  return std::max(before,
                  std::min((end - request.prefix.begin()) * kPrefixBlockTokens, request.prefill_tokens - 1));
}

int64_t LeastWorkPolicy::CachedOn(const WaitingView& request, WorkerIndex worker) const {
  return caches_ == nullptr ? 0 : caches_->Trusted(worker, FindOn(request, worker));
}

void LeastWorkPolicy::Plan(const WaitingView& request, WorkerIndex worker) {
  if (caches_ == nullptr || !caches_->Follows(worker)) return;
  const auto before = static_cast<size_t>(FindOn(request, worker) / kPrefixBlockTokens);
  for (const uint64_t block : request.prefix.subspan(before)) planned_.insert({worker, block});
}

int64_t LeastWorkPolicy::MostCached(const WaitingView& request) const {
  int64_t most = 0;
  for (WorkerIndex g = 0; caches_ != nullptr && !request.prefix.empty() && g < free_.workers(); ++g) {
    if (free_.Fits(request, g)) most = std::max(most, CachedOn(request, g));
  }
  return most;
}

int64_t LeastWorkPolicy::MoreElsewhere(const Snapshot& snapshot, const WaitingView& request) const {
  if (caches_ == nullptr || request.prefix.empty()) return 0;
  const int64_t here = MostCached(request);
  // A worker that holds the next block holds more.
  const auto next = static_cast<size_t>(here / kPrefixBlockTokens);
  if (next >= request.prefix.size()) return 0;
  for (WorkerIndex g = 0; g < free_.workers(); ++g) {
    const uint64_t block = request.prefix[next];
    if (!free_[g].accepts_new || !(caches_->Has(g, block) || planned_.contains({g, block}))) continue;
    if (free_.Fits(request, g) || !CouldHold(snapshot, free_[g], request)) continue;
    if (const int64_t there = CachedOn(request, g); there >= here + kPrefixBlockTokens) return there - here;
  }
  return 0;
}

bool LeastWorkPolicy::LetsOthersGoFirst(const Snapshot& snapshot, int32_t index) const {
  const WaitingView& request = snapshot.waiting[index];
  return elsewhere_[index] > 0 &&
         AgeOf(snapshot, request) <= std::max(LongestWait(snapshot, request), StepsOf(elsewhere_[index]));
}

bool LeastWorkPolicy::WaitsForPrefix(const Snapshot& snapshot, int32_t index) const {
  const WaitingView& request = snapshot.waiting[index];
  // The wait lasts at least until the next step.
  if (AgeOf(snapshot, request) + 1 > StepsOf(elsewhere_[index])) return false;
  // An idle worker computes the prompt without delaying others. Where all workers are busy, every step brings
  // a new decision.
  for (WorkerIndex g = 0; g < free_.workers(); ++g) {
    if (free_[g].active == 0 && free_.Fits(request, g)) return false;
  }
  return true;
}

void LeastWorkPolicy::Place(const Snapshot& snapshot, int32_t index, Decision& decision) {
  const WaitingView& request = snapshot.waiting[index];
  if (placed_[index] || Refused(request)) return;
  ReadDeadline(decision);
  const WorkerIndex worker = Choose(snapshot, request);
  if (worker == kNoWorker) return refusals_.Note(request.kv_need, request.kv_reserve_tokens);
  free_.Take(request, worker);
  placed_[index] = 1;
  decision.assignments.push_back({index, worker});
  if (snapshot.waiting.size() > 1) Plan(request, worker);
}

WorkerIndex LeastWorkPolicy::Choose(const Snapshot& snapshot, const WaitingView& request) {
  const int64_t prompt = request.prefill_tokens - request.computed_tokens;
  const double output = snapshot.prefixes == nullptr ? 0 : snapshot.prefixes->output_tokens;
  const double hits = snapshot.prefixes == nullptr ? 0 : snapshot.prefixes->hit_share;
  WorkerIndex best = kNoWorker;
  double least = std::numeric_limits<double>::infinity();
  int64_t best_left = 0;
  for (WorkerIndex turn = 0; turn < free_.workers(); ++turn) {
    const WorkerIndex g = (next_ + turn) % free_.workers();
    if (!free_.Fits(request, g)) continue;
    const int64_t left = std::max<int64_t>(0, prompt - CachedOn(request, g));
    const double context = static_cast<double>(free_[g].load_tokens) +
                           static_cast<double>(free_[g].active) * static_cast<double>(request.prefill_tokens);
    const double work =
        static_cast<double>(pending_[g]) + (1 + hits + free_[g].active) * static_cast<double>(left) +
        output * kMemoryTokens * context / std::max(1.0, static_cast<double>(free_[g].total_kv_tokens));
    if (work > least || (work == least && free_[g].active >= free_[best].active)) continue;
    best = g;
    least = work;
    best_left = left;
  }
  if (best == kNoWorker) return best;
  pending_[best] += best_left;
  next_ = (best + 1) % free_.workers();
  return best;
}

}  // namespace bfio::core
