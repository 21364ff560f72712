#include "tools/sim/run/sim_group.h"

#include <utility>

namespace bfio::sim {

SimGroup::SimGroup(int32_t workers, int64_t longest_output, Drift drift)
    : drift_(std::move(drift)), workers_(workers), loads_(workers), ring_(longest_output) {}

void SimGroup::Admit(const SimRequest& request, core::WorkerIndex worker, int64_t step, double now_s) {
  ++workers_[worker].active;
  workers_[worker].base += request.prefill_tokens - drift_.GrowthThrough(step - 1);
  ++active_;
  Ending(drift_.LastStep(step, request.output_tokens)).push_back({request, worker, step, now_s});
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
  // The two buffers change places, so that neither allocates again.
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
