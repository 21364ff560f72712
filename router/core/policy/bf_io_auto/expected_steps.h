// The expected step times of a group as far ahead as requests stay, updated as requests are placed.
//
// Purpose: the sum that the horizon rule minimises (horizon.h has the formula), and the search for the worker
// where a request raises this sum least. Threads: one. Cost: O(workers * knots) exponentials for Reset,
// O(knots) logarithms for Raise, and at most as many per worker for Least.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_EXPECTED_STEPS_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_EXPECTED_STEPS_H_

#include <cstddef>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/snapshot.h"

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

  // Sets the request that the calls below refer to. Borrowed until the next Open.
  void Open(const Request& request);
  // Increase of the sum if the request is placed on worker g. When it exceeds `most`, any value above `most`.
  double Raise(WorkerIndex g, double most = std::numeric_limits<double>::infinity());
  // The worker with the least raise among those that the request fits (ties: lowest index), or kNoWorker.
  WorkerIndex Least(const FreeCapacity& free, const WaitingView& request);
  void Add(WorkerIndex g);

 private:
  struct Rate {
    double token;
    double prompt;
    bool operator==(const Rate& other) const { return token == other.token && prompt == other.prompt; }
  };

  size_t At(WorkerIndex g, size_t k) const { return static_cast<size_t>(g) * knots_ + k; }
  // Prepares the open request for workers of this rate.
  void TakeRate(const Rate& rate);
  // Computes the exponentials of knot k from the times.
  void SetKnot(size_t k);
  // log sum exp at knot k with the open request on worker g, less without. REQUIRES: TakeRate.
  double RaiseAt(size_t k, WorkerIndex g) const;

  size_t knots_ = 0;
  std::vector<Rate> rates_;
  // By knot: the weight d_h of the steps for which it stands, and tau.
  std::vector<double> weight_;
  std::vector<double> tau_;
  // By worker and knot: the time m_g, and exp((m_g - origin_) / tau).
  std::vector<double> time_;
  std::vector<double> exp_;
  // By knot: a time near the largest; the sum of exp_.
  std::vector<double> origin_;
  std::vector<double> sum_;

  // The open request, and the rate for which it is prepared.
  const Request* request_ = nullptr;
  Rate rate_{0, 0};
  bool prepared_ = false;
  // By knot, x being what it adds to a worker's time: x / tau, and exp(x / tau) - 1 where that is moderate.
  std::vector<double> by_;
  std::vector<double> grown_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_EXPECTED_STEPS_H_
