// The parts of admission that only mc_sf has: capacities from the books, and the choice of requests that
// begin.
#include <algorithm>
#include <numeric>

#include "router/core/admission/kv_admission.h"

namespace bfio::core {
namespace {

// Width of intervals as a share of their distance, near and far. The memory of residents is known in every
// step, so only the needs of the plan's own requests are rounded up.
constexpr int64_t kKnownNearShare = 8, kKnownFarShare = 4;

}  // namespace

void KvAdmission::ReadBooks(Lookahead& lookahead, absl::Span<const Worker> workers,
                            absl::Span<WaitingView> waiting, StepsOfPrompt steps_of_prompt) {
  if (books_.workers() != workers.size()) books_.Reset(workers.size());
  int64_t longest = 1;
  for (size_t g = 0; g < workers.size(); ++g) {
    const Worker& worker = workers[g];
    const auto index = static_cast<WorkerIndex>(g);
    books_.Update(index, lookahead, worker.residents, worker.time, *worker.changes);
    const int64_t last = books_.memory(index).LastEnd().value_or(worker.time.plan_step);
    longest = std::max(longest, last + 1 - worker.time.plan_step);
  }
  lengths_.clear();
  stays_.clear();
  for (WaitingView& request : waiting) {
    request.kv_need = static_cast<int32_t>(lengths_.size());
    const int64_t most = books_.Most(lookahead.Lifetime(request, {}, {}), request.generated_tokens);
    stays_.push_back({std::min(most, std::max<int64_t>(1, request.max_new_tokens)),
                      KvBooks::kLateSteps + steps_of_prompt(request.prefill_tokens)});
    longest = std::max(longest, stays_.back().first + stays_.back().second);
    lengths_.push_back(static_cast<double>(stays_.back().first));
  }
  Divide(longest, kKnownNearShare, kKnownFarShare);
  capacity_.assign(workers.size() * intervals_.size(), kClosed);
  for (size_t g = 0; g < workers.size(); ++g) {
    if (!workers[g].open) continue;
    const McSf& memory = books_.memory(static_cast<WorkerIndex>(g));
    const int64_t size = workers[g].kv_tokens - std::max<int64_t>(0, workers[g].drift);
    const absl::Span<int64_t> row(&capacity_[g * intervals_.size()], intervals_.size());
    memory.Peaks(starts_, row);
    for (int64_t& capacity : row) capacity = size - capacity;
  }
  need_.assign(waiting.size() * intervals_.size(), 0);
  for (size_t i = 0; i < waiting.size(); ++i) {
    const WaitingView& request = waiting[i];
    const auto [stay, late] = stays_[i];
    int64_t* const need = &need_[i * intervals_.size()];
    for (size_t k = 0; k < intervals_.size() && intervals_[k].from < stay + late; ++k) {
      need[k] = request.reserves_kv ? request.kv_reserve_tokens
                                    : request.prefill_tokens + std::min(intervals_[k].to, stay - 1);
    }
  }
}

double KvAdmission::Expected(int64_t stay) const {
  double steps = 0;
  for (size_t k = 0; k < intervals_.size() && intervals_[k].from < stay; ++k) {
    const int64_t width = std::min(stay, intervals_[k].to + 1) - intervals_[k].from;
    steps += std::min(1.0, alive_[k]) * static_cast<double>(width);
  }
  return steps;
}

bool KvAdmission::Before(const WaitingView& a, const WaitingView& b, int64_t step) const {
  if (a.priority != b.priority) return a.priority > b.priority;
  const bool overdue = Overdue(a, step);
  if (overdue != Overdue(b, step)) return overdue;
  const double left = lengths_[static_cast<size_t>(a.kv_need)],
               right = lengths_[static_cast<size_t>(b.kv_need)];
  if (!overdue && left != right) return left < right;
  if (a.senior_step() != b.senior_step()) return a.senior_step() < b.senior_step();
  return a.id < b.id;
}

void KvAdmission::Choose(int64_t step, const FreeCapacity& free, absl::Span<const WaitingView> waiting,
                         std::vector<int32_t>& chosen) {
  chosen.clear();
  free_ = free;
  heap_.resize(waiting.size());
  std::iota(heap_.begin(), heap_.end(), 0);
  const auto later = [&](int32_t a, int32_t b) {
    return Before(waiting[static_cast<size_t>(b)], waiting[static_cast<size_t>(a)], step);
  };
  std::make_heap(heap_.begin(), heap_.end(), later);
  bool only_overdue = false;
  while (!heap_.empty() && free_.free_slots() > 0) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const int32_t next = heap_.back();
    heap_.pop_back();
    const WaitingView& request = waiting[static_cast<size_t>(next)];
    const bool overdue = Overdue(request, step);
    if (only_overdue && !overdue) break;
    const WorkerIndex worker = LeastKey(free_, request, [](const WorkerView& view) { return view.Time(); });
    if (worker != kNoWorker) {
      free_.Take(request, worker);
      chosen.push_back(next);
      only_overdue = only_overdue || overdue;
    } else if (!overdue) {
      break;
    }
    // An overdue request that fits nowhere delays others only on the worker that may be reserved for it.
  }
  std::sort(chosen.begin(), chosen.end());
}

}  // namespace bfio::core
