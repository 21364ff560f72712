#include "worker/scheduler/batch_scheduler.h"

#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace bfio::worker {
namespace {

void Sarathi(BatchBuilder& batch) {
  batch.AddDecodes();
  batch.AddPrefillChunks();
}

void Orca(BatchBuilder& batch) {
  batch.AddPrefillChunks();
  batch.AddDecodes();
}

void VllmV0(BatchBuilder& batch) {
  // A prompt that slots or KV keep out does not block decodes: they must run to free slots and KV.
  if (!batch.AddWholePrompts()) batch.AddDecodes();
}

void FasterTransformer(BatchBuilder& batch) {
  if (batch.AnyDecoding()) {
    batch.AddDecodes();
  } else {
    batch.AddWholePrompts();
  }
}

}  // namespace

const BatchScheduler::Rule BatchScheduler::kRules[4] = {
    {"sarathi", Sarathi, true, false},
    {"orca", Orca, true, false},
    {"vllm_v0", VllmV0, false, true},
    {"faster_transformer", FasterTransformer, false, true},
};

absl::StatusOr<BatchScheduler> BatchScheduler::Create(absl::string_view name, BatchOrder order) {
  for (const Rule& rule : kRules) {
    if (rule.name == name) return BatchScheduler(rule, order);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown scheduler '", name, "'; must be one of ", absl::StrJoin(SchedulerNames(), ", ")));
}

void BatchScheduler::Form(absl::Span<const BatchRequest> requests, const BatchCapacity& capacity,
                          std::vector<Chunk>& batch) {
  batch.clear();
  SortRequests(requests, order_, sorted_);
  BatchBuilder builder(requests, sorted_, capacity, batch);
  rule_->choose(builder);
}

std::vector<std::string> SchedulerNames() {
  std::vector<std::string> names;
  for (const BatchScheduler::Rule& rule : BatchScheduler::kRules) names.emplace_back(rule.name);
  return names;
}

absl::StatusOr<BatchOrder> ParseBatchOrder(absl::string_view name) {
  if (name == "fcfs") return BatchOrder::kFcfs;
  if (name == "shortest") return BatchOrder::kShortest;
  if (name == "priority") return BatchOrder::kPriority;
  if (name == "urgency") return BatchOrder::kUrgency;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown order '", name, "'; must be fcfs, shortest, priority or urgency"));
}

void SortRequests(absl::Span<const BatchRequest> requests, BatchOrder order, std::vector<int32_t>& sorted) {
  sorted.clear();
  if (order == BatchOrder::kFcfs) return;
  sorted.resize(requests.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  const auto key = [&](int32_t i) {
    const BatchRequest& request = requests[i];
    using Key = std::tuple<bool, int64_t, int64_t>;
    if (request.resident && request.passed_over >= kPatienceBatches) return Key(false, 0, 0);
    if (order == BatchOrder::kShortest) return Key(true, request.prefill_left + request.decode_left, 0);
    return Key(true, ~request.priority, order == BatchOrder::kUrgency ? request.senior_step : 0);
  };
  std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
}

bool BatchBuilder::AnyDecoding() const {
  return std::any_of(requests_.begin(), requests_.end(),
                     [](const BatchRequest& request) { return request.decoding(); });
}

void BatchBuilder::AddDecodes() {
  for (size_t i = 0; i < requests_.size() && capacity_.token_budget > 0; ++i) {
    if (requests_[At(i)].decoding()) Add(At(i), 1);
  }
}

void BatchBuilder::AddPrefillChunks() {
  bool held_back = false;
  for (size_t i = 0; i < requests_.size() && PrefillCapacity() > 0; ++i) {
    const BatchRequest& request = requests_[At(i)];
    if (request.prefill_left == 0) continue;
    held_back = held_back || !HasCapacityFor(request);
    if (held_back && !request.resident) continue;
    Add(At(i), std::min(request.prefill_left, PrefillCapacity()));
  }
}

bool BatchBuilder::AddWholePrompts() {
  bool waits = false, held_back = false;
  for (size_t i = 0; i < requests_.size() && PrefillCapacity() > 0; ++i) {
    const BatchRequest& request = requests_[At(i)];
    if (request.prefill_left == 0) continue;
    held_back = held_back || !HasCapacityFor(request);
    if (held_back && !request.resident) continue;
    waits = true;
    if (request.prefill_left > PrefillCapacity()) break;
    Add(At(i), request.prefill_left);
  }
  return waits;
}

bool BatchBuilder::HasCapacityFor(const BatchRequest& request) const {
  return request.resident || (capacity_.free_slots > 0 && request.kv_tokens <= capacity_.free_kv_tokens);
}

void BatchBuilder::Add(int32_t which, int64_t rows) {
  const BatchRequest& request = requests_[which];
  batch_.push_back({which, static_cast<int32_t>(rows)});
  capacity_.token_budget -= rows;
  if (request.prefill_left > 0 && capacity_.prefill_tokens != BatchCapacity::kUnbounded)
    capacity_.prefill_tokens -= rows;
  if (request.resident) return;
  if (capacity_.free_slots != BatchCapacity::kUnbounded) --capacity_.free_slots;
  if (capacity_.free_kv_tokens != BatchCapacity::kUnbounded) capacity_.free_kv_tokens -= request.kv_tokens;
}

}  // namespace bfio::worker
