#include "router/core/policy/balance_route/balance_route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace bfio::core {
namespace {

constexpr int64_t kSecondStageSlots = 7;
constexpr size_t kMostCandidates = 1024;

constexpr int64_t kBits = 64;
constexpr int64_t kMostSums = 65536;

}  // namespace

void BalanceRoutePolicy::Decide(const Snapshot& snapshot, Decision& decision) {
  Start(snapshot);
  while (OpenSlots() > kSecondStageSlots) {
    const WorkerIndex worker = MostFree();
    if (!FindCandidates(snapshot, worker)) continue;
    score_.Reset(Loads(worker), envelope_);
    Give(snapshot, BestCandidate(), worker, decision.assignments);
  }
  while (OpenSlots() > 0) {
    const WorkerIndex worker = LeastLoadedAtTheEnd();
    if (!FindCandidates(snapshot, worker)) continue;
    score_.Reset(Loads(worker), envelope_);
    BestSubset(worker, subset_);
    for (int32_t candidate : subset_) {
      // Slots and the KV need of each request were checked, but not the sum of the KV needs.
      if (free_.Fits(snapshot.waiting[candidates_[candidate]], worker))
        Give(snapshot, candidate, worker, decision.assignments);
    }
  }
}

void BalanceRoutePolicy::Start(const Snapshot& snapshot) {
  free_.Reset(snapshot);
  placed_.assign(snapshot.waiting.size(), 0);
  const size_t workers = static_cast<size_t>(free_.workers());
  const int32_t ahead = std::min(horizon_, snapshot.outlook.horizon);
  const size_t row = static_cast<size_t>(snapshot.outlook.horizon) + 1;
  steps_ = static_cast<size_t>(ahead) + 1;
  loads_.resize(workers * steps_);
  envelope_.assign(steps_, 0);
  for (size_t g = 0; g < workers; ++g) {
    for (size_t h = 0; h < steps_; ++h) {
      double& load = loads_[g * steps_ + h];
      load = h == 0 ? static_cast<double>(free_[static_cast<WorkerIndex>(g)].load_tokens)
                    : snapshot.outlook.load[g * row + h];
      envelope_[h] = std::max(envelope_[h], load);
    }
  }
  score_.SetOverflowWeight(static_cast<double>(workers));
  closed_.assign(workers, 0);
  first_left_ = 0;
}

absl::Span<double> BalanceRoutePolicy::Loads(WorkerIndex worker) {
  return absl::MakeSpan(loads_).subspan(static_cast<size_t>(worker) * steps_, steps_);
}

int64_t BalanceRoutePolicy::OpenSlots() const {
  int64_t slots = 0;
  for (WorkerIndex g = 0; g < free_.workers(); ++g) slots += closed_[g] ? 0 : free_[g].free_slots;
  return slots;
}

bool BalanceRoutePolicy::FindCandidates(const Snapshot& snapshot, WorkerIndex worker) {
  candidates_.clear();
  sizes_.clear();
  const int32_t waiting = static_cast<int32_t>(snapshot.waiting.size());
  while (first_left_ < waiting && placed_[first_left_]) ++first_left_;
  for (int32_t i = first_left_; i < waiting && candidates_.size() < kMostCandidates; ++i) {
    const WaitingView& request = snapshot.waiting[i];
    if (placed_[i] || !free_.Fits(request, worker)) continue;
    if (!candidates_.empty() && request.priority != snapshot.waiting[candidates_[0]].priority) break;
    candidates_.push_back(i);
    sizes_.push_back(request.prefill_tokens);
  }
  closed_[worker] = candidates_.empty();
  return !candidates_.empty();
}

void BalanceRoutePolicy::Give(const Snapshot& snapshot, int32_t candidate, WorkerIndex worker,
                              std::vector<Assignment>& plan) {
  const int32_t i = candidates_[candidate];
  free_.Take(snapshot.waiting[i], worker);
  plan.push_back({i, worker});
  placed_[i] = 1;
  const absl::Span<double> loads = Loads(worker);
  for (size_t h = 0; h < steps_; ++h) {
    loads[h] += static_cast<double>(sizes_[candidate]);
    envelope_[h] = std::max(envelope_[h], loads[h]);
  }
}

void MarginScore::Reset(absl::Span<const double> loads, absl::Span<const double> envelope) {
  margins_.clear();
  double weight = 1;
  for (size_t h = 0; h < loads.size(); ++h, weight *= discount_)
    margins_.emplace_back(std::max(0.0, envelope[h] - loads[h]), weight);
  std::sort(margins_.begin(), margins_.end());
  weight_below_.assign(1, 0);
  weighted_margin_below_.assign(1, 0);
  for (const auto& [margin, step_weight] : margins_) {
    weight_below_.push_back(weight_below_.back() + step_weight);
    weighted_margin_below_.push_back(weighted_margin_below_.back() + step_weight * margin);
  }
  safe_ = static_cast<int64_t>(std::floor(margins_.front().first));
}

double MarginScore::operator()(int64_t tokens) const {
  const double s = static_cast<double>(tokens);
  const auto end = std::lower_bound(margins_.begin(), margins_.end(),
                                    std::make_pair(s, -std::numeric_limits<double>::infinity()));
  const size_t below = static_cast<size_t>(end - margins_.begin());
  return s * weight_below_.back() -
         overflow_weight_ * (s * weight_below_[below] - weighted_margin_below_[below]);
}

const std::vector<int32_t>& SubsetSum::Best(absl::Span<const int64_t> sizes, int32_t k, int64_t limit) {
  chosen_.clear();
  // No sum exceeds k times the largest item, so larger sums need no bits.
  const int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  limit_ = std::min(limit, largest * k);
  if (limit_ < 0) {
    TakeSmallest(sizes, k);
    return chosen_;
  }
  const int64_t unit = limit_ / kMostSums + 1;
  limit_ /= unit;
  units_.clear();
  for (const int64_t size : sizes) units_.push_back((size + unit - 1) / unit);
  const size_t words = static_cast<size_t>(limit_ / kBits + 1);
  reachable_.resize(std::max(reachable_.size(), static_cast<size_t>(k) + 1));
  opened_by_.resize(reachable_.size());
  for (int32_t count = 0; count <= k; ++count) {
    reachable_[count].assign(words, 0);
    opened_by_[count].resize(words * kBits);
  }
  reachable_[0][0] = 1;
  for (int32_t i = 0; i < static_cast<int32_t>(sizes.size()); ++i) {
    // In descending order, so that an item counts once.
    for (int32_t count = std::min(i + 1, k); count >= 1; --count) Open(count, i, units_[i]);
  }
  int64_t sum = limit_;
  while (sum >= 0 && !(reachable_[k][sum / kBits] >> (sum % kBits) & 1)) --sum;
  if (sum < 0) {
    TakeSmallest(sizes, k);
    return chosen_;
  }
  for (int32_t count = k; count >= 1; --count) {
    // The item that made the sum of `count` items reachable comes after the one that made the remaining sum
    // reachable with one item less.
    chosen_.push_back(opened_by_[count][sum]);
    sum -= units_[chosen_.back()];
  }
  std::reverse(chosen_.begin(), chosen_.end());
  return chosen_;
}

void SubsetSum::Open(int32_t count, int32_t index, int64_t size) {
  const Bits& from = reachable_[count - 1];
  Bits& to = reachable_[count];
  const int64_t words = static_cast<int64_t>(to.size()), skip = size / kBits, shift = size % kBits;
  for (int64_t w = skip; w < words; ++w) {
    uint64_t bits = from[w - skip] << shift;
    if (shift > 0 && w > skip) bits |= from[w - skip - 1] >> (kBits - shift);
    bits &= ~to[w];
    to[w] |= bits;
    for (; bits != 0; bits &= bits - 1)
      opened_by_[count][w * kBits + __builtin_ctzll(bits)] = static_cast<uint16_t>(index);
  }
}

void SubsetSum::TakeSmallest(absl::Span<const int64_t> sizes, int32_t k) {
  chosen_.resize(sizes.size());
  std::iota(chosen_.begin(), chosen_.end(), 0);
  std::stable_sort(chosen_.begin(), chosen_.end(), [&](int32_t a, int32_t b) { return sizes[a] < sizes[b]; });
  chosen_.resize(static_cast<size_t>(k));
  std::sort(chosen_.begin(), chosen_.end());
}

}  // namespace bfio::core
