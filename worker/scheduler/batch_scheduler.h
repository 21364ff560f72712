// Iteration-level schedulers: which prompt tokens and decodes share a batch.
//
// Purpose: one interface over the four schedulers of "Throughput-Optimal Scheduling Algorithms for LLM
// Inference and AI Agents", for real engines and simulators alike:
//   sarathi             a decode of every decoding request first, the rest of the budget to prompts, cut
//                       where it ends (chunked prefill); the default
//   orca                prompts first, cut where the budget ends, then decodes
//   vllm_v0             prompts alone while any waits, whole; otherwise decodes alone
//   faster_transformer  decodes alone until every request of the batch has ended; then prompts, whole
// within a class by one of the orders below. sarathi and orca are work conserving: while enough tokens are
// available the batch holds min(budget, available), which makes them throughput-optimal. The other two are
// not, and a prompt longer than the budget stops them for ever (BatchPlanner::Create refuses such a budget).
//
// Ownership: a BatchScheduler keeps scratch only: a batch depends on the arguments of Form alone. Threads:
// belongs to its caller. Pure. Cost: a pass over the requests, which ends early where the budget does; other
// orders than fcfs sort them first.
#ifndef BFIO_WORKER_SCHEDULER_BATCH_SCHEDULER_H_
#define BFIO_WORKER_SCHEDULER_BATCH_SCHEDULER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/scheduler/batch.h"

namespace bfio::worker {

class BatchBuilder;

// Within a class (prompts, decodes), ties by the requests' own order. Residents that an order has passed over
// kPatienceBatches times go before all others, as they stand.
enum class BatchOrder {
  // As the requests stand, which is the order of arrival.
  kFcfs,
  // Least prefill_left + decode_left first.
  kShortest,
  // Largest priority first.
  kPriority,
};

class BatchScheduler {
 public:
  // INVALID_ARGUMENT, with the names that there are, for an unknown one.
  static absl::StatusOr<BatchScheduler> Create(absl::string_view name, BatchOrder order = BatchOrder::kFcfs);

  absl::string_view name() const { return rule_->name; }
  BatchOrder order() const { return order_; }
  bool work_conserving() const { return rule_->work_conserving; }
  // Takes every prompt in one piece.
  bool whole_prompts() const { return rule_->whole_prompts; }

  // Fills `batch` (cleared first). `requests` in the order of arrival; those with nothing left are passed
  // over. An empty batch with tokens available means that the scheduler is stuck on a prompt longer than the
  // budget. REQUIRES: room.token_budget is at least 1, and it or what is left of each prompt at most
  // 2^31 - 1.
  void Form(absl::Span<const BatchRequest> requests, const BatchRoom& room, std::vector<Chunk>& batch);

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

// Of all schedulers, the default first.
std::vector<std::string> SchedulerNames();

// "fcfs", "shortest" or "priority". INVALID_ARGUMENT otherwise.
absl::StatusOr<BatchOrder> ParseBatchOrder(absl::string_view name);

// The indices of `requests` as `order` serves them; empty for kFcfs: as they stand.
void SortRequests(absl::Span<const BatchRequest> requests, BatchOrder order, std::vector<int32_t>& sorted);

// Takes note of a batch of `requests`: their passed_over.
template <class Request>
void CountPassedOver(absl::Span<const Chunk> batch, std::vector<Request>& requests) {
  for (Request& request : requests) ++request.passed_over;
  for (const Chunk& chunk : batch) requests[chunk.which].passed_over = 0;
}

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BATCH_SCHEDULER_H_
