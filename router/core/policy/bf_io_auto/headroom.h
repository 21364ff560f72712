// Where requests go while there are slots for all: keep a worker low for the next large one.
//
// Purpose: below saturation all waiting requests enter, and only the worker is to be chosen. The barrier
// waits for the largest load alone, so a request on any worker that stays below the largest costs nothing
// now. The cost comes with the next large request: it will go to the lowest worker, and the step will be as
// long as that worker's load and the request together. So each request goes, largest first, to the lowest
// worker or leaves the k lowest alone and goes to the next one above, whichever makes
//
//     max_g T_g + kAhead * mean over recent requests X of max(max_g T_g, min_g T_g + r X)
//
// less, T_g being the workers' times in tokens and r what a token adds to the mean worker. Lists of the least
// loaded worker (LPT) keep all workers level; this keeps a few low and the rest a little higher, and large
// requests land on the low ones.
//
// Threads: one. Cost: O(G log G + waiting * G) moves at worst, mostly O(waiting * low workers).
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_HEADROOM_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_HEADROOM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

class Headroom {
 public:
  // Records the prompts of requests that are new since the last call. New is a larger id than any seen
  // before: an older request that is revealed later (a lower class, a window) is not learnt.
  void Observe(const Snapshot& snapshot);

  // Places all requests; false, with `plan` and `free` incomplete, when one fits nowhere. REQUIRES: plan is
  // empty.
  bool Place(const Snapshot& snapshot, FreeCapacity& free, std::vector<Assignment>& plan);

 private:
  // A worker with a free slot, and its time.
  struct Placed {
    double time;
    WorkerIndex worker;

    bool operator<(const Placed& other) const {
      return time < other.time || (time == other.time && worker < other.worker);
    }
  };

  void Learn(double tokens);
  // Sorts the workers and adds up the sizes.
  void Prepare(const FreeCapacity& free);
  // The cost of a largest and a smallest time.
  double Cost(double largest, double smallest) const;
  // Its place in `workers_`, or -1.
  int64_t Choose(const FreeCapacity& free, const WaitingView& request);
  // The worker at that place has become slower: moves it to where it belongs.
  void Sink(size_t place, double time);

  // Prompt lengths of recent requests, by age and by size.
  std::deque<double> recent_;
  std::vector<double> sorted_;
  RequestId last_id_ = 0;
  // [i]: sum of sorted_[i] and all larger.
  std::vector<double> sums_;
  // Workers with a free slot, lowest time first; the largest time of all workers.
  std::vector<Placed> workers_;
  double largest_ = 0;
  // r.
  double rate_ = 1;
  // How many low workers are left alone.
  size_t low_ = 1;
  // Scratch.
  std::vector<int32_t> order_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_HEADROOM_H_
