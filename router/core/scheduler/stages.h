// The stages of a decision that place requests before the policy is called, in the order in which
// DecisionMaker::PlaceAhead lists them. A policy must not decide about these requests: its contract bounds no
// wait, and it may place a request on any worker. Each stage gets the requests and the capacity that those
// before it have left, and returns assignments. It takes them from `free`, and may close slots for all that
// follows. Threads: the scheduler's. Pure. Cost: O(waiting), times G where requests are kept out by KV
// memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

// Least steps that a request must have waited before it may hold a worker. In that time completions usually
// free memory anyway (mean output lengths of public traces are 60 to 250 tokens).
inline constexpr int64_t kHoldAfterSteps = 64;

struct StageInput {
  // The plan's step, on the pool's clock.
  int64_t step = 0;
  // The requests that wait for any worker, and those that each wait for one rank, in the order of the pool.
  absl::Span<const WaitingView> waiting, held;
  // Free slots in other groups.
  int64_t slots_elsewhere = 0;
  // At least 1.
  int64_t hold_after_steps = kHoldAfterSteps;
  // As Snapshot::first_come.
  absl::Span<const ClassWait> first_come;
};

// Appends to an empty list; indices are those of the list of requests that the stage places.
using Stage = std::function<void(const StageInput&, FreeCapacity& free, std::vector<Assignment>&)>;

// Places `held` (RequestSpec::held_to), as if the oldest of all requests went first: a request is placed if
// fewer of `waiting` are more urgent and fit a worker than there are free slots. One that is not placed
// delays only those behind it on its rank; if only memory is missing and it has waited long enough, it closes
// its rank, one rank at a time.
void PlaceHeld(const StageInput& input, FreeCapacity& free, std::vector<Assignment>& assignments);

// Places requests that run alone (RequestSpec::steps_alone), each on the worker with fewest requests that it
// fits, and closes these workers.
void PlaceAlone(const StageInput& input, FreeCapacity& free, std::vector<Assignment>& assignments);

// No request starves for lack of KV memory. One that fits nowhere is passed over, but the oldest that has
// waited long enough, and kLongestWait times as long as where the oldest go first, *holds* a worker: of those
// that have a free slot and whose total memory suffices, the one with most unreserved KV (ties: lowest index)
// is closed until the request fits some worker and is placed. One request holds at a time.
class KvHold {
 public:
  void Place(const StageInput& input, FreeCapacity& free, std::vector<Assignment>& assignments);
  std::optional<RequestId> holder() const { return holder_; }

 private:
  std::optional<RequestId> holder_;
};

}  // namespace bfio::core
