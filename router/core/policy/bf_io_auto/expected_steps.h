// The expected step times of a group as far ahead as requests stay, updated as requests are placed.
//
// Purpose: the sum that the horizon rule minimises (horizon.h has the formula), and the search for the worker
// where a request raises this sum least. Workers are grouped into blocks of similar ones. A bound of the
// raise, in single precision and without logarithms, excludes most blocks, then most workers. The raise of
// the others, mostly one, is computed exactly, so the choice does not depend on the bounds.
//
// Threads: one. Cost: O(workers * knots) exponentials for Reset; O(knots) multiplications of vectors for a
// block that is not excluded and for every 64 workers, and O(knots) logarithms for Raise and Add.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_EXPECTED_STEPS_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_EXPECTED_STEPS_H_

#include <array>
#include <cstddef>
#include <utility>
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
  // Increase of the sum if the request is placed on worker g.
  double Raise(WorkerIndex g);
  // The worker with the least raise among those that the request fits (ties: lowest index), or kNoWorker.
  WorkerIndex Least(const FreeCapacity& free, const WaitingView& request);
  void Add(WorkerIndex g);

 private:
  struct Rate {
    double token;
    double prompt;
    bool operator==(const Rate& other) const { return token == other.token && prompt == other.prompt; }
  };

  // Lanes of a 128-bit vector, which every x86-64 has; the compiler vectorises a loop over them.
  static constexpr size_t kVector = 4;
  using Vector = std::array<float, kVector>;
  // Workers whose bounds are computed together.
  static constexpr size_t kLanes = 8;
  using Lanes = std::array<float, kLanes>;
  // gap_ and slope_ at one knot, of a block's workers or the least of each block. In single precision,
  // because they only exclude workers.
  struct Tile {
    Lanes gap, slope;
  };
  // One knot of the open request, for bounds: weight * tau, x / tau - less_, (exp(x / tau) - 1) * shrink_.
  // Each in all lanes.
  struct Term {
    Vector scale, more, grown;
  };

  size_t At(WorkerIndex g, size_t k) const { return static_cast<size_t>(g) * knots_ + k; }
  // Groups the workers into blocks of kLanes; those that add most to the sum come last.
  void SetBlocks();
  void SetTiles();
  // Updates worker g in the tiles of its block, then the least values of the block.
  void SetLane(WorkerIndex g);
  void SetLeast(size_t block);
  // Lower bounds of the raises, from a tile for each knot. REQUIRES: TakeRate of at most their rates.
  Lanes Bounds(const Tile* tiles) const;
  // Prepares the open request for workers of this rate.
  void TakeRate(const Rate& rate);
  // log sum exp at knot k with the open request on worker g, less without. REQUIRES: TakeRate.
  double RaiseAt(size_t k, WorkerIndex g) const;
  // Applies less_ of knot k to all gaps and slopes, before exponentials overflow.
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

  // The open request, and the rate for which it is prepared.
  const Request* request_ = nullptr;
  Rate rate_{0, 0};
  bool prepared_ = false;
  // By knot, x being what it adds to a worker's time: x / tau; exp(x / tau) - 1 where that is moderate, else
  // 0.
  std::vector<double> by_;
  std::vector<double> grown_;
  std::vector<Term> terms_;

  // By block and lane; unused lanes of the last block have kNoWorker. By worker: its index in lanes_.
  std::vector<WorkerIndex> lanes_;
  std::vector<size_t> place_;
  // By block and knot; by kLanes blocks and knot.
  std::vector<Tile> tiles_, least_tiles_;
  // Least rates, by block; and over all workers.
  std::vector<Rate> least_rates_;
  Rate least_rate_{0, 0};
  // Scratch: bounds of blocks, and of workers that they do not exclude.
  std::vector<std::pair<float, size_t>> blocks_;
  std::vector<std::pair<float, WorkerIndex>> candidates_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_AUTO_EXPECTED_STEPS_H_
