// One engine of a network: its queue, and the next batch.
//
// Purpose: calls are sorted into lanes, the urgent lane first, and by seniority within a lane. A scheduler of
// worker/scheduler forms a batch lane by lane; each lane gets what the lanes before it left of the token
// budget. With one lane this is the scheduler itself. worker/scheduler/engine_model.h has one lane in the
// order of arrival; here a call joins before less senior ones. Ownership: the caller owns the calls, which
// outlive their stay. Threads: used by the caller's thread only. Cost: a batch is a pass over the lanes;
// joining and leaving take a binary search at most, and a move of elements.
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
  // Index among its agent's calls.
  int32_t index = 0;
  int32_t engine = 0;
  int64_t prefill_tokens = 0, decode_tokens = 0;
  // Smaller values go first; compared in this order.
  int32_t lane = 0;
  int64_t senior_step = 0;
  uint64_t joined = 0;

  std::pair<int64_t, uint64_t> key() const { return {senior_step, joined}; }
};

// The part of a lane in a batch that is about to start: `chunks` of its `requests`, formed for `room`.
// Requests that are not yet resident start with it. Borrowed for the duration of the callback.
struct LaneBatch {
  // The same index in both; never empty.
  absl::Span<Call* const> calls;
  absl::Span<const worker::BatchRequest> requests;
  worker::BatchCapacity capacity;
  absl::Span<const worker::Chunk> chunks;
};

class Engine {
 public:
  // `slots`: maximum number of calls in progress; 0: no limit. `watch`, which may be empty, is called with
  // every batch lane by lane.
  Engine(const worker::BatchScheduler& scheduler, int64_t token_budget, int64_t slots,
         std::function<void(const LaneBatch&)> watch = nullptr);

  void Join(Call* call);
  // Starts the next batch; false: there is no work. REQUIRES: !busy().
  bool Start();
  // The batch has been computed. Calls that have ended are removed and appended to `ended`.
  void Finish(std::vector<Call*>& ended);

  bool busy() const { return batch_tokens_ > 0; }
  int64_t batch_tokens() const { return batch_tokens_; }
  // Tokens of all calls at this engine that are in no finished batch.
  int64_t tokens_left() const { return tokens_left_; }
  // The same as a sum over all calls, to check tokens_left. Cost: linear in the calls.
  int64_t CountTokensLeft() const;
  int64_t calls() const { return calls_; }
  // Number of batches that were not full although more tokens could have been computed; 0 with a
  // work-conserving scheduler and slots for all calls.
  int64_t short_batches() const { return short_batches_; }

 private:
  struct Lane {
    std::vector<Call*> calls;
    // The same index as `calls`.
    std::vector<worker::BatchRequest> requests;

    size_t Find(const Call* call) const;
  };

  // Tokens of a batch: the next `rows` tokens of a lane's call. The index changes when other calls join.
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
  // Parts of the running batch, and those of them that have ended; members to save allocations.
  std::vector<Part> batch_, gone_;
  std::vector<worker::Chunk> chunks_;
  int64_t batch_tokens_ = 0, tokens_left_ = 0, calls_ = 0, short_batches_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_ENGINE_H_
