#include "router/core/scheduler/residents.h"

#include <algorithm>

namespace bfio::core {

int32_t Residents::Add(WorkerIndex worker, const RequestSpec& spec, int64_t first_step, bool inflight,
                       int64_t age) {
  Resident resident;
  resident.id = spec.id;
  resident.first_step = first_step;
  resident.prefill_tokens = spec.prefill_tokens;
  resident.generated_tokens = spec.generated_tokens;
  resident.max_new_tokens = spec.max_new_tokens;
  resident.expected_tokens = spec.predicted_output_tokens.value_or(spec.max_new_tokens);
  resident.tenant = spec.tenant;
  resident.group = lookahead_->GroupOf(spec.tenant, spec.prefill_tokens - spec.generated_tokens);
  resident.reserves_kv = spec.reserves_kv();
  resident.inflight = inflight;
  Worker& to = workers_[worker];
  to.residents.push_back(resident);
  to.notes.push_back({age, {}});
  Change(worker, spec.id);
  return static_cast<int32_t>(to.residents.size()) - 1;
}

void Residents::Start(WorkerIndex worker, int32_t index, int64_t first_step) {
  Resident& resident = workers_[worker].residents[index];
  resident.first_step = first_step;
  resident.inflight = false;
  Change(worker, resident.id);
}

int64_t Residents::AgeAfter(const Resident& resident, int64_t step) {
  // Never more than it may generate: steps of a rank without a barrier are what it states.
  const int64_t run = resident.inflight ? 0 : step + 1 - resident.first_step;
  return resident.generated_tokens +
         std::clamp<int64_t>(run, 0, std::max<int64_t>(0, resident.max_new_tokens));
}

void Residents::Hint(WorkerIndex worker, int32_t index, int64_t step, double probability) {
  Worker& w = workers_[worker];
  Resident& resident = w.residents[index];
  if (!resident.dropped) {
    lookahead_->Hint(resident, w.notes[index].trail, AgeAfter(resident, step), probability);
  }
}

void Residents::Settle(WorkerIndex worker, int32_t index, int64_t step, bool ended) {
  const Resident& resident = workers_[worker].residents[index];
  Note& note = workers_[worker].notes[index];
  const int64_t age = AgeAfter(resident, step);
  if (age <= note.age) return;
  // If max_new_tokens ends a request, its length is only known to be at least that.
  const bool by_itself = ended && age < resident.generated_tokens + resident.max_new_tokens;
  lookahead_->Observe(resident, note.trail, note.age, ended && !by_itself ? age - 1 : age, by_itself);
  service_->ChargeOutput(resident.tenant, age - note.age);
  note.age = age;
}

void Residents::SettleAll(WorkerIndex worker, int64_t step) {
  const int32_t count = static_cast<int32_t>(workers_[worker].residents.size());
  for (int32_t index = 0; index < count; ++index) Settle(worker, index, step);
}

std::optional<RequestId> Residents::Remove(WorkerIndex worker, int32_t index) {
  Worker& w = workers_[worker];
  Change(worker, w.residents[index].id);
  const bool last = static_cast<size_t>(index) + 1 == w.residents.size();
  if (!last) {
    w.residents[index] = w.residents.back();
    w.notes[index] = w.notes.back();
  }
  w.residents.pop_back();
  w.notes.pop_back();
  return last ? std::nullopt : std::optional<RequestId>(w.residents[index].id);
}

}  // namespace bfio::core
