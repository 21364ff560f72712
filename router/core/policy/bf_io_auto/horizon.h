// The horizon rule: placement by expected step times over a request's stay, while every request gets a slot.
// The barrier waits for the largest load at every step, and a request adds to the load as long as it stays.
// So each request, largest first, is placed where it least raises
//
//     sum over h of d_h E max_g T_g(h)        E max_g T_g(h) ~ tau_h log sum_g exp(m_g(h) / tau_h)
//
//   m_g(h)   expected time of worker g's step h steps ahead, of its present requests (Snapshot::far)
//   tau_h    s_h / sqrt(2 log G); s_h^2 is the variance of a worker's time h steps ahead. For normal loads
//            E max <= tau log sum exp(m / tau) + s^2 / (2 tau), and at equal means this tau minimises the
//            bound. tau grows with h, so that for far steps only large differences matter.
//   d_h      exp(-h / r), where r is the mean number of steps that a resident still stays. A knot of the
//            outlook stands for the steps whose ratio to it is closer to 1 than to other knots.
//
// So long requests are spread by number rather than by tokens, and a worker whose residents leave soon takes
// more. The refill rule adds G exp(l(h) / tau_h) to the sum: l is the mean of m_g(h) and of what arrives
// until then (FarOutlook::arriving). Later requests fill the workers below that mean, so far differences
// below it cost nothing. It relies less on predictions; without the term, cohorts of long requests are kept
// apart better. No constant is tuned. Threads: one. Cost: that of ExpectedSteps. At a deadline (StopSignal)
// the requests that are left go to the least loaded worker, O(log workers) each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"
#include "router/core/model/stop_signal.h"

namespace bfio::core {

// The sum that the rule minimises, for a group, updated as requests are added. Cost: O(workers * knots)
// exponentials for Reset, O(knots) logarithms for Raise, at most as many per worker for Least. Threads: one.
class ExpectedSteps {
 public:
  // The expected tokens that a request adds at each knot.
  using Request = std::vector<double>;

  // `refill`: with the term for arrivals. REQUIRES: far has a row for each worker, and steps.
  void Reset(absl::Span<const WorkerView> workers, const FarOutlook& far, bool refill);

  // The sum now, in the unit of WorkerView's times.
  double Value() const;

  // Sets the request that the calls below refer to. Borrowed until the next Open.
  void Open(const Request& request);
  // Increase of the sum if the request is placed on worker g. When it exceeds `most`, any value above `most`.
  double Raise(WorkerIndex g, double most = std::numeric_limits<double>::infinity());
  // The worker with the least raise among those that the request fits (ties: lowest index), or kNoWorker.
  WorkerIndex Least(const FreeCapacity& free, const WaitingView& request);
  void Add(WorkerIndex g);

 private:
  size_t At(WorkerIndex g, size_t k) const { return static_cast<size_t>(g) * knots_ + k; }
  // Prepares the open request for workers of this rate.
  void TakeRate(double rate);
  // Computes the exponentials of knot k from the times.
  void SetKnot(size_t k);
  // log sum exp at knot k with the open request on worker g, less without. REQUIRES: TakeRate.
  double RaiseAt(size_t k, WorkerIndex g) const;

  size_t knots_ = 0;
  std::vector<double> rates_;
  // By knot: the weight d_h of the steps for which it stands, and tau.
  std::vector<double> weight_;
  std::vector<double> tau_;
  // By worker and knot: the time m_g, and exp((m_g - origin_) / tau).
  std::vector<double> time_;
  std::vector<double> exp_;
  // By knot: a time near the largest; the sum of exp_ and of the term for arrivals; l, if `refill`.
  std::vector<double> origin_;
  std::vector<double> sum_;
  std::vector<double> level_;

  // The open request, and the rate for which it is prepared.
  const Request* request_ = nullptr;
  double rate_ = 0;
  bool prepared_ = false;
  // By knot, x being what it adds to a worker's time: x / tau, and exp(x / tau) - 1 where that is moderate.
  std::vector<double> by_;
  std::vector<double> grown_;
};

class Horizon {
 public:
  // Places all requests; false, with `decision` and `free` incomplete, when one fits nowhere. When `stop`
  // ends it, the decision says so, and the rest goes to the least loaded worker (PlaceOnLeastLoaded).
  // REQUIRES: `decision` is empty; snapshot.far is set.
  bool Place(const Snapshot& snapshot, const StopSignal& stop, FreeCapacity& free, Decision& decision);

 private:
  ExpectedSteps steps_;
  ExpectedSteps::Request request_;
  // Scratch.
  std::vector<int32_t> order_;
};

}  // namespace bfio::core
