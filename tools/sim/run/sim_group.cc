#include "tools/sim/run/sim_group.h"

#include <algorithm>

namespace bfio::sim {

SimGroup::SimGroup(int32_t workers, int64_t longest_output, Drift drift)
    : drift_(std::move(drift)), workers_(workers), loads_(workers), ring_(longest_output) {}

void SimGroup::Admit(const SimRequest& request, core::WorkerIndex worker, int64_t step, double now_s) {
  ++workers_[worker].active;
  workers_[worker].base += request.prefill_tokens - drift_.GrowthThrough(step - 1);
  ++active_;
  const int64_t last_step = drift_.LastStep(step, request.output_tokens);
  Ending(last_step).push_back({request, worker, step, now_s});
  auto& order = workers_[worker].order;
  // Keeps the list short: requests that have ended are removed when they are the majority.
  if (order.size() > 2 * static_cast<size_t>(workers_[worker].active) + 64) {
    order.erase(
        std::remove_if(order.begin(), order.end(), [&](const auto& entry) { return entry.second < step; }),
        order.end());
  }
  order.emplace_back(request.id, last_step);
}

Resident SimGroup::PreemptYoungest(core::WorkerIndex worker, int64_t step) {
  Worker& of = workers_[worker];
  while (of.order.back().second < step) of.order.pop_back();
  const auto [id, last_step] = of.order.back();
  of.order.pop_back();
  std::vector<Resident>& ending = Ending(last_step);
  const auto it = std::find_if(ending.begin(), ending.end(),
                               [id = id](const Resident& resident) { return resident.request.id == id; });
  Resident resident = *it;
  ending.erase(it);
  --of.active;
  --active_;
  of.base -= resident.request.prefill_tokens - drift_.GrowthThrough(resident.first_step - 1);
  const int64_t made = drift_.TokensThrough(step - 1) - drift_.TokensThrough(resident.first_step - 1);
  resident.request.prefill_tokens += made;
  resident.request.output_tokens -= made;
  resident.request.made += made;
  return resident;
}

const std::vector<int64_t>& SimGroup::Loads(int64_t step) {
  const int64_t grown = drift_.GrowthThrough(step - 1);
  for (size_t g = 0; g < workers_.size(); ++g) loads_[g] = workers_[g].base + workers_[g].active * grown;
  return loads_;
}

int64_t SimGroup::Tokens(int64_t step) {
  const int64_t each = drift_.TokensThrough(step) - drift_.TokensThrough(step - 1);
  int64_t tokens = active_ * each;
  if (each == 1) return tokens;
  for (const Resident& resident : Ending(step)) {
    const int64_t made = drift_.TokensThrough(step) - drift_.TokensThrough(resident.first_step - 1);
    tokens -= made - resident.request.output_tokens;
  }
  return tokens;
}

const std::vector<Resident>& SimGroup::Finish(int64_t step) {
  finished_.clear();
  // Swapping the buffers avoids an allocation.
  finished_.swap(Ending(step));
  for (const Resident& resident : finished_) {
    --workers_[resident.worker].active;
    workers_[resident.worker].base -=
        resident.request.prefill_tokens - drift_.GrowthThrough(resident.first_step - 1);
  }
  active_ -= static_cast<int64_t>(finished_.size());
  return finished_;
}

void SimGroup::ForEachResident(int64_t step, const std::function<void(const Resident&, int64_t)>& visit) {
  for (const std::vector<Resident>& ending : ring_) {
    for (const Resident& resident : ending) {
      const int64_t made = drift_.TokensThrough(step) - drift_.TokensThrough(resident.first_step - 1);
      visit(resident, resident.request.output_tokens - made);
    }
  }
}

}  // namespace bfio::sim
