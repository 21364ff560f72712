#include "worker/scheduler/batch_scheduler.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/scheduler/batch_builder.h"

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

}  // namespace bfio::worker
