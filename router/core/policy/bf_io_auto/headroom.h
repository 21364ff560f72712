// Placement while there are slots for all requests: a worker is kept low for the next large one. Below
// saturation all waiting requests enter, and only their workers have to be chosen. The barrier waits for the
// largest load alone, so a request on any worker that stays below the largest costs nothing now. The cost
// arises with the next large request: it goes to the lowest worker, and the step then lasts as long as that
// worker's load and the request require together. So each request, largest first, goes to the lowest worker
// or to the lowest one above the k lowest, whichever makes
//
//     max_g T_g + kAhead * mean over recent requests X of max(max_g T_g, min_g T_g + x(X))
//
// less. Placement on the least loaded worker (LPT) keeps all workers level. This rule keeps a few low and the
// rest slightly higher, and large requests are placed on the low ones. T_g is not the worker's present time
// but the time towards which its residents grow: every resident and every placed request counts with `growth`
// more tokens (ExpectedGrowth). Otherwise a worker with many young residents has a low load, gets more
// requests, and has the largest load a thousand steps later. x(X) is what a request adds: its prompt and its
// growth, at the mean worker.
//
// Threads: one. Cost: O(G log G + waiting * G) moves at worst, mostly O(waiting * low workers). At a deadline
// (StopSignal) the requests that are left go to the least loaded worker, O(log G) each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"
#include "router/core/model/stop_signal.h"

namespace bfio::core {

class Headroom {
 public:
  // Records the prompts of requests that are new since the last call. New is a larger id than any seen
  // before: an older request that appears in a snapshot later (lower class, limited window) is not recorded.
  void Observe(const Snapshot& snapshot);

  // Tokens that a resident is expected to add on average while the requests placed now stay: half of the
  // tokens still to be generated, times the generated share of a request's tokens. Where prompts are most of
  // the tokens, arrivals compensate for growth. `completed_tokens`: mean size of a completed request, 0 when
  // none is known yet. REQUIRES: Observe.
  double ExpectedGrowth(const Snapshot& snapshot, double completed_tokens) const;

  // Places all requests; false, with `decision` and `free` incomplete, when one fits nowhere. When `stop`
  // ends it, the decision says so, and the rest goes to the least loaded worker (PlaceOnLeastLoaded).
  // REQUIRES: `decision` is empty.
  bool Place(const Snapshot& snapshot, double growth, const StopSignal& stop, FreeCapacity& free,
             Decision& decision);

 private:
  // A worker with a free slot, and its T.
  struct Placed {
    double time;
    WorkerIndex worker;

    bool operator<(const Placed& other) const {
      return time < other.time || (time == other.time && worker < other.worker);
    }
  };

  void Learn(double tokens);
  double T(const WorkerView& worker) const {
    return worker.Time() + worker.time_per_token * growth_ * static_cast<double>(worker.active);
  }
  // T if the request is added.
  double With(const WorkerView& worker, const WaitingView& request) const {
    return T(worker) + worker.time_per_token * static_cast<double>(request.prefill_tokens) +
           worker.time_per_token * growth_;
  }
  // Sorts the workers and adds up the sizes.
  void Prepare(const FreeCapacity& free);
  // The cost (formula above) for these two values of max_g T_g and min_g T_g.
  double Cost(double largest, double smallest) const;
  // Index in `workers_` of the worker for the request, or -1.
  int64_t Choose(const FreeCapacity& free, const WaitingView& request);
  // The worker at this index has become slower: restores the order of `workers_`.
  void Sink(size_t place, double time);

  // Prompt lengths of recent requests: by age, and, unless unsorted_, by size; their sum.
  std::deque<double> recent_;
  std::vector<double> sorted_;
  bool unsorted_ = false;
  double recent_sum_ = 0;
  RequestId last_id_ = 0;
  // [i]: sum of sorted_[i] and all larger.
  std::vector<double> sums_;
  // Workers with a free slot, lowest time first; the largest time of all workers.
  std::vector<Placed> workers_;
  double largest_ = 0;
  double growth_ = 0;
  // x(X) = rate_ * prompt + grows_.
  double rate_ = 1;
  double grows_ = 0;
  // Number of workers that are kept low (k above).
  size_t low_ = 1;
  // Scratch.
  std::vector<double> new_;
  std::vector<int32_t> order_;
};

}  // namespace bfio::core
