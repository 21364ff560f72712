#include "router/core/policy/bf_io_auto/oversized_requests.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {
namespace {

// Weight of one completion in the mean gap. The mean covers about 100 completions, so its standard error is a
// tenth of the deviation of one.
constexpr double kGapGain = 0.01;
// A worker is reserved for a request that exceeds the mean gap by this many deviations of the pool's prompts.
// Smaller requests fit the gaps that ordinary requests leave.
constexpr double kOversizedDeviations = 2;
// Assumed share of steps in which a reserved worker's load falls; in the others the worker may admit an
// ordinary request. Found by trial; 0.9 differs by less than the noise of a run.
constexpr double kSinkShare = 0.6;
// Share of the workers that may be reserved at a time, at least one: two of 16. Found by trial; 0.2 and 0.3
// differ by less than the noise of a run. In a group of fewer than kLeastGroup workers a reservation costs
// the others too much capacity.
constexpr double kShareOfWorkers = 0.13;
constexpr size_t kLeastGroup = 4;

}  // namespace

void OversizedRequests::Observe(const Snapshot& snapshot) {
  const int64_t steps = snapshot.step - after_step_;
  if (after_.size() != snapshot.workers.size() || steps < 1) {
    after_.clear();
    return;
  }
  double lost = 0, completions = 0;
  for (size_t g = 0; g < after_.size(); ++g) {
    completions += static_cast<double>(after_[g].active - snapshot.workers[g].active);
    lost += static_cast<double>(after_[g].load + after_[g].active * steps - snapshot.workers[g].load_tokens);
  }
  after_.clear();
  if (completions < 1 || lost <= 0) return;
  const double mean = lost / completions;
  gap_ = gap_ == 0 ? mean : gap_ + (mean - gap_) * (1 - std::pow(1 - kGapGain, completions));
}

void OversizedRequests::Remember(const Snapshot& snapshot, absl::Span<const Assignment> plan) {
  after_.clear();
  for (const WorkerView& worker : snapshot.workers) after_.push_back({worker.load_tokens, worker.active});
  for (const Assignment& assignment : plan) {
    After& after = after_[static_cast<size_t>(assignment.worker)];
    after.load += snapshot.waiting[static_cast<size_t>(assignment.waiting_index)].prefill_tokens;
    ++after.active;
  }
  after_step_ = snapshot.step;
}

void OversizedRequests::Apply(const Snapshot& snapshot, absl::Span<const double> slacks,
                              const PoolScale& scale, double admissions, absl::Span<const WorkerIndex> level,
                              Instance& instance) {
  if (gap_ == 0 || level.size() < kLeastGroup) return;
  const size_t items = instance.items.size();
  sizes_.clear();
  for (const SolverItem& item : instance.items) sizes_.push_back(item.load);
  const auto quarter = sizes_.begin() + static_cast<int64_t>(items / 4);
  std::nth_element(sizes_.begin(), quarter, sizes_.end());
  // Tokens by which a worker's load falls in a step when every gap is filled by a small request.
  const double sink = admissions / static_cast<double>(snapshot.workers.size()) *
                      std::max(gap_ - static_cast<double>(*quarter), 0.3 * gap_);
  candidates_.clear();
  for (size_t i = 0; i < items; ++i) {
    // A lower class gets no slot now, even with a reserved worker.
    if (snapshot.waiting[i].priority < snapshot.waiting[0].priority) break;
    const double excess = static_cast<double>(instance.items[i].load) - gap_;
    if (excess < kOversizedDeviations * scale.deviation || excess <= 0) continue;
    const double sinking = kSinkShare * excess / sink;
    if (slacks[i] < sinking) {
      candidates_.push_back({excess * std::min(1.0, 1 - slacks[i] / sinking), static_cast<int32_t>(i)});
    }
  }
  // The largest request gets the least loaded worker, so that this worker stays reserved for the same
  // request.
  std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.precounted_tokens > b.precounted_tokens;
  });
  const size_t most =
      std::max<size_t>(1, static_cast<size_t>(kShareOfWorkers * static_cast<double>(level.size())));
  if (candidates_.size() > most) candidates_.resize(most);
  lowest_.assign(level.begin(), level.end());
  std::stable_sort(lowest_.begin(), lowest_.end(), [&](WorkerIndex a, WorkerIndex b) {
    return instance.workers[a].load_tokens < instance.workers[b].load_tokens;
  });
  for (size_t k = 0; k < candidates_.size(); ++k) {
    SolverItem& candidate = instance.items[candidates_[k].item];
    candidate.reserved_worker = lowest_[k];
    candidate.precounted_tokens = std::llround(candidates_[k].precounted_tokens);
    instance.workers[candidate.reserved_worker].Precount(candidate.precounted_tokens);
  }
}

}  // namespace bfio::core
