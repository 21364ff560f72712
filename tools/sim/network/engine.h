// One engine of a network: its queue, and the next batch.
//
// Purpose: calls sorted into lanes, the urgent lane first, by seniority within a lane; a batch is formed lane
// by lane by a scheduler of worker/scheduler, each lane with what the lanes before have left of the budget.
// With one lane that is the scheduler itself. worker/scheduler/engine_model.h has one lane in the order of
// arrival; here calls join in front of their juniors. Ownership: calls are the caller's and outlive their
// stay. Threads: belongs to its caller. Cost: a batch is a pass over the lanes, joining and leaving a binary
// search or none, and a move.
#ifndef BFIO_TOOLS_SIM_NETWORK_ENGINE_H_
#define BFIO_TOOLS_SIM_NETWORK_ENGINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "worker/scheduler/batch.h"
#include "worker/scheduler/batch_scheduler.h"

namespace bfio::sim {

struct Agent;

// A call while it is at an engine.
struct Call {
  Agent* agent = nullptr;
  // Among its agent's calls.
  int32_t index = 0;
  int32_t engine = 0;
  int64_t prefill_tokens = 0, decode_tokens = 0;
  // Smaller goes first, in this order.
  int32_t lane = 0;
  int64_t senior_step = 0;
  uint64_t joined = 0;

  std::pair<int64_t, uint64_t> key() const { return {senior_step, joined}; }
};

// What one lane gives to a batch that is about to start: `chunks` of its `requests`, formed for `room`. Those
// not resident yet begin with it. Borrowed for the call that shows it.
struct LaneBatch {
  // By the same index, never empty.
  absl::Span<Call* const> calls;
  absl::Span<const worker::BatchRequest> requests;
  worker::BatchRoom room;
  absl::Span<const worker::Chunk> chunks;
};

class Engine {
 public:
  // `slots`: calls that are worked on at any time; 0: any number. `watch`, which may be empty, sees every
  // batch lane by lane.
  Engine(const worker::BatchScheduler& scheduler, int64_t token_budget, int64_t slots,
         std::function<void(const LaneBatch&)> watch = nullptr);

  void Join(Call* call);
  // Takes the next batch on; false: there is nothing to do. REQUIRES: !busy().
  bool Start();
  // The batch has been computed. Calls that have ended are gone from here and appended to `ended`.
  void Finish(std::vector<Call*>& ended);

  bool busy() const { return batch_tokens_ > 0; }
  int64_t batch_tokens() const { return batch_tokens_; }
  // Tokens of all calls here that are in no finished batch.
  int64_t tokens_left() const { return tokens_left_; }
  // The same by adding up what is left of every call: what tokens_left must be. Cost: linear in the calls.
  int64_t CountTokensLeft() const;
  int64_t calls() const { return calls_; }
  // Batches that were neither full nor all there was to compute; none with a work-conserving scheduler and
  // slots for all.
  int64_t short_batches() const { return short_batches_; }

 private:
  struct Lane {
    std::vector<Call*> calls;
    // By the same index.
    std::vector<worker::BatchRequest> requests;

    size_t Find(const Call* call) const;
  };

  // Tokens of a batch: the next `rows` of the call at a place of a lane, which moves when others join.
  struct Part {
    Lane* lane;
    size_t at;
    int64_t rows;
  };

  int64_t Available() const;

  worker::BatchScheduler scheduler_;
  std::function<void(const LaneBatch&)> watch_;
  int64_t token_budget_, free_slots_;
  std::map<int32_t, Lane> lanes_;
  // Of the batch that runs; of those, the ended ones: kept to save allocations.
  std::vector<Part> batch_, gone_;
  std::vector<worker::Chunk> chunks_;
  int64_t batch_tokens_ = 0, tokens_left_ = 0, calls_ = 0, short_batches_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_ENGINE_H_
