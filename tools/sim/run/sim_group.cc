#include "tools/sim/run/sim_group.h"

namespace bfio::sim {

SimGroup::SimGroup(int32_t workers, int64_t longest_output) : workers_(workers), ring_(longest_output) {}

void SimGroup::Admit(const SimRequest& request, core::WorkerIndex worker, int64_t step, double now_s) {
  ++workers_[worker].active;
  workers_[worker].base += request.prefill_tokens - step;
  ++active_;
  const int64_t last_step = step + request.output_tokens - 1;
  ring_[last_step % static_cast<int64_t>(ring_.size())].push_back({request, worker, step, now_s});
}

const std::vector<int64_t>& SimGroup::Loads(int64_t step) {
  loads_.clear();
  for (const Worker& worker : workers_) loads_.push_back(worker.base + worker.active * step);
  return loads_;
}

const std::vector<Resident>& SimGroup::Finish(int64_t step) {
  finished_.clear();
  // The two buffers change places, so that neither allocates again.
  finished_.swap(ring_[step % static_cast<int64_t>(ring_.size())]);
  for (const Resident& resident : finished_) {
    --workers_[resident.worker].active;
    workers_[resident.worker].base -= resident.request.prefill_tokens - resident.first_step;
  }
  active_ -= static_cast<int64_t>(finished_.size());
  return finished_;
}

}  // namespace bfio::sim
