// The horizon rule: placement by expected step times over a request's stay, while every request gets a slot.
//
// Purpose: the barrier waits for the largest load at every step, and a request adds to the load as long as it
// stays. So each request, largest first, is placed where it least raises
//
//     sum over h of d_h E max_g T_g(h)        E max_g T_g(h) ~ tau_h log sum_g exp(m_g(h) / tau_h)
//
//   m_g(h)   expected time of worker g's step h steps ahead, of its present requests (Snapshot::far)
//   tau_h    s_h / sqrt(2 log G), s_h^2 the variance of a worker's time then. For normal loads E max is at
//   most
//            tau log sum exp(m / tau) + s^2 / (2 tau), and at equal means this tau minimises the bound. tau
//            grows with h, so that for far steps only large differences matter.
//   d_h      exp(-h / r), where r is the mean number of steps that a resident still stays. A knot of the
//            outlook stands for the steps that are nearer to it than to other knots, by ratio.
//
// So long requests are spread by number rather than by tokens, and a worker whose residents will leave soon
// takes more. No constant is tuned.
//
// Threads: one. Cost per request: O(workers * knots) multiplications and few exponentials: a lower bound of
// the increase is piecewise linear in what the request adds, and only workers whose bound is below the best
// increase are computed exactly. At a deadline (StopSignal) the requests that are left go to the least loaded
// worker, O(log workers) each.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_HORIZON_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_HORIZON_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"
#include "router/core/model/stop_signal.h"

namespace bfio::core {

// The sum over h for a group, updated as requests are added.
class ExpectedSteps {
 public:
  // The load that a request adds at knot k: expected tokens, and prompt tokens that still cost compute
  // (WorkerView::prefill_weight).
  struct Request {
    std::vector<double> tokens;
    std::vector<double> prompt;
  };

  // REQUIRES: far has a row for each worker, and steps.
  void Reset(absl::Span<const WorkerView> workers, const FarOutlook& far);

  // The sum now, in the unit of WorkerView's times.
  double Value() const;

  // The request that the calls below concern. Borrowed until the next Open.
  void Open(const Request& request);
  // By how much the request on worker g raises the sum; and a lower bound of that.
  double Raise(WorkerIndex g);
  double LeastRaise(WorkerIndex g);
  void Add(WorkerIndex g);

 private:
  struct Rate {
    double token;
    double prompt;
    bool operator==(const Rate& other) const { return token == other.token && prompt == other.prompt; }
  };

  size_t At(WorkerIndex g, size_t k) const { return static_cast<size_t>(g) * knots_ + k; }
  // Prepares the open request for workers of that rate.
  void TakeRate(const Rate& rate);
  void Exponentials();
  // log sum exp at knot k with the open request on worker g, less without. REQUIRES: TakeRate, Exponentials.
  double RaiseAt(size_t k, WorkerIndex g) const;
  // Enters less_ of knot k in all gaps and slopes, before exponentials overflow.
  void Settle(size_t k);

  size_t knots_ = 0;
  std::vector<Rate> rates_;
  std::vector<double> weight_;
  std::vector<double> tau_;
  // tau log sum_g exp(m_g / tau), by knot.
  std::vector<double> largest_;
  // As of the last Settle, by worker and knot: (m_g - largest) / tau, and its exponential, the slope of
  // `largest` in m_g. `largest` has risen since by less_ in units of tau, which shrinks all slopes by
  // shrink_.
  std::vector<double> gap_;
  std::vector<double> slope_;
  std::vector<double> less_;
  std::vector<double> shrink_;
  // weight * tau.
  std::vector<double> scale_;

  // The open request; the rate it is prepared for, and whether its exponentials are.
  const Request* request_ = nullptr;
  Rate rate_{0, 0};
  bool prepared_ = false;
  bool exponentials_ = false;
  // By knot, x being what it adds to a worker's time: x / tau; exp(x / tau) - 1 where that is moderate.
  std::vector<double> by_;
  std::vector<double> grown_;
  // The bound at a knot is the larger of steep * slope and scale * gap + flat.
  std::vector<double> steep_;
  std::vector<double> flat_;
};

class Horizon {
 public:
  // Places all requests; false, with `decision` and `free` incomplete, when one fits nowhere. When `stop`
  // ends it, the decision says so, and the rest goes to the least loaded worker (PlaceOnLeastLoaded).
  // REQUIRES: `decision` is empty; snapshot.far is there.
  bool Place(const Snapshot& snapshot, const StopSignal& stop, FreeCapacity& free, Decision& decision);

 private:
  WorkerIndex Choose(const FreeCapacity& free, const WaitingView& request);

  ExpectedSteps steps_;
  ExpectedSteps::Request request_;
  // Scratch.
  std::vector<int32_t> order_;
  struct Bound {
    double raise;
    WorkerIndex worker;
  };
  std::vector<Bound> bounds_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_HORIZON_H_
