// Iteration-level schedulers: which prompt tokens and decodes share a batch.
//
// Purpose: one interface to the four schedulers of "Throughput-Optimal Scheduling Algorithms for LLM
// Inference and AI Agents", for real engines and simulators:
//   sarathi             a decode of every decoding request first, the rest of the budget to prompts, cut
//                       where it ends (chunked prefill); the default
//   orca                prompts first, cut where the budget ends, then decodes
//   vllm_v0             prompts alone while any waits, whole; otherwise decodes alone
//   faster_transformer  decodes alone until every request of the batch has ended; then prompts, whole
// Requests within a class are ordered by BatchOrder. sarathi and orca are work conserving: while enough
// tokens are available the batch contains min(budget, available), which makes them throughput-optimal. The
// other two are not, and a prompt longer than the budget blocks them forever (BatchPlanner::Create rejects
// such a budget).
//
// Ownership: a BatchScheduler has only scratch buffers; a batch depends only on the arguments of Form.
// Threads: belongs to its caller. Pure. Cost: one pass over the requests, which ends early when the budget is
// used up; orders other than fcfs sort them first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/scheduler/batch.h"

namespace bfio::worker {

// A batch while it is formed: the operations that schedulers consist of. Each scheduler is a short sequence
// of these operations (batch_scheduler.cc), which handle what schedulers have in common: order, budget,
// slots, KV, no request twice. Threads: belongs to its caller. Pure.
class BatchBuilder {
 public:
  // `order`: indices of the requests in the order of service; empty: as given. The arguments must outlive
  // this. Chunks are appended to `batch`.
  BatchBuilder(absl::Span<const BatchRequest> requests, absl::Span<const int32_t> order,
               const BatchCapacity& capacity, std::vector<Chunk>& batch)
      : requests_(requests), order_(order), capacity_(capacity), batch_(batch) {}

  bool AnyDecoding() const;
  bool empty() const { return batch_.empty(); }

  // Adds one token of each decoding request, while the budget lasts.
  void AddDecodes();
  // Adds prompt tokens of one request after the other; the last chunk ends where the budget does. A request
  // for which there is no slot or KV blocks all later requests that have not started.
  void AddPrefillChunks();
  // Adds whole prompts, and stops at the first that exceeds the budget. True when there is a prompt for which
  // slots and KV suffice, whether it is in the batch or only the budget keeps it out.
  bool AddWholePrompts();

 private:
  int32_t At(size_t place) const { return order_.empty() ? static_cast<int32_t>(place) : order_[place]; }
  bool HasCapacityFor(const BatchRequest& request) const;
  int64_t PrefillCapacity() const { return std::min(capacity_.token_budget, capacity_.prefill_tokens); }
  void Add(int32_t which, int64_t rows);

  absl::Span<const BatchRequest> requests_;
  absl::Span<const int32_t> order_;
  BatchCapacity capacity_;
  std::vector<Chunk>& batch_;
};

class BatchBuilder;

// The order within a class (prompts, decodes); ties are in the requests' given order. Residents that were
// passed over kPatienceBatches times go before all others, in the given order.
enum class BatchOrder {
  // As given, which is the order of arrival.
  kFcfs,
  // Least prefill_left + decode_left first.
  kShortest,
  // Largest priority first.
  kPriority,
  // The order of the router's pool: largest priority first, then least senior_step, so the calls of an agent
  // go by the agent's age (router/core/agents/parents.h).
  kUrgency,
};

class BatchScheduler {
 public:
  // INVALID_ARGUMENT, listing the known names, for an unknown one.
  static absl::StatusOr<BatchScheduler> Create(absl::string_view name, BatchOrder order = BatchOrder::kFcfs);

  absl::string_view name() const { return rule_->name; }
  BatchOrder order() const { return order_; }
  bool work_conserving() const { return rule_->work_conserving; }
  // Whether every prompt is computed whole in one batch.
  bool whole_prompts() const { return rule_->whole_prompts; }

  // Clears and fills `batch`. `requests` are in the order of arrival; those with no tokens left are skipped.
  // If the batch is empty although tokens are available, the scheduler is blocked by a prompt longer than the
  // budget. REQUIRES: capacity.token_budget is at least 1; it or every prompt's remaining tokens are at most
  // 2^31
  // - 1.
  void Form(absl::Span<const BatchRequest> requests, const BatchCapacity& capacity,
            std::vector<Chunk>& batch);

 private:
  friend std::vector<std::string> SchedulerNames();

  struct Rule {
    absl::string_view name;
    void (*choose)(BatchBuilder& batch);
    bool work_conserving;
    bool whole_prompts;
  };
  static const Rule kRules[4];

  BatchScheduler(const Rule& rule, BatchOrder order) : rule_(&rule), order_(order) {}

  // Statically allocated.
  const Rule* rule_;
  BatchOrder order_;
  std::vector<int32_t> sorted_;
};

// The names of all schedulers, the default first.
std::vector<std::string> SchedulerNames();

// "fcfs", "shortest", "priority" or "urgency". INVALID_ARGUMENT otherwise.
absl::StatusOr<BatchOrder> ParseBatchOrder(absl::string_view name);

// The indices of `requests` in the order of service; empty for kFcfs, which means as given.
void SortRequests(absl::Span<const BatchRequest> requests, BatchOrder order, std::vector<int32_t>& sorted);

// Updates passed_over of `requests` after a batch.
template <class Request>
void CountPassedOver(absl::Span<const Chunk> batch, std::vector<Request>& requests) {
  for (Request& request : requests) ++request.passed_over;
  for (const Chunk& chunk : batch) requests[chunk.which].passed_over = 0;
}

}  // namespace bfio::worker
