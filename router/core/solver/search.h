// Local search: exchanges until none improves or the run is over.
//
// Purpose: three neighbourhoods, each kept feasible by Allocation:
//   swap      an admitted item with a waiting one of the same priority
//   trade     two admitted items on different workers change places
//   move      an admitted item to a free slot of another worker
// For every admitted item the best partner is taken if it improves. The number of admitted items never
// changes. A template over any pricing with these members (paper_pricing.h, square_pricing.h):
//   Reset, Value, Put, Settle        maintain the state
//   Open(g, out), Lowest(c), Gain    price items for a slot; convex in the load for each curve
//   Pair, Move                       price an exchange between workers
//   AdmitCost, HasAdmitCosts         the cost of admitting an item apart from its load
//   MayTrade(g), epoch(g)            let the search skip exchanges that cannot improve
//
// An item is considered again only when its worker or, for the paper's J, a maximum that concerns it has
// changed. At the end all items are considered again, if they are few. Cost of one round over U admitted
// items: U C (H + log |waiting|) for the swaps, C being the number of curves in the pool, and at most U
// min(U, 64) H for the trades, with 16 partners each when U > 64. Threads: one.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/solver/instance.h"
#include "router/core/solver/paper_pricing.h"
#include "router/core/solver/pool_index.h"
#include "router/core/solver/run.h"
#include "router/core/solver/square_pricing.h"

namespace bfio::core {

template <class Pricing>
class Search {
 public:
  // Improves `allocation` in place. `index` holds the items that wait under it, `pricing` has been reset to
  // it. Borrows all four for the call. True at a local optimum, false when the run was over before.
  bool Descend(Pricing& pricing, Allocation& allocation, PoolIndex& index, Run& run);

  // Iterated local search, after Descend and with its arguments: `kicks` times it forces a few random
  // exchanges, descends again, and keeps the plan if it is better; otherwise it restores the previous one.
  // Does nothing with many admitted items, where a kick has little effect. Deterministic.
  void Escape(int32_t kicks);

 private:
  struct Best {
    double gain;
    int32_t partner = kUnassigned;
    void Offer(double offered, int32_t item) {
      if (offered < gain || (offered == gain && partner != kUnassigned && item < partner)) {
        gain = offered;
        partner = item;
      }
    }
  };

  bool Round();
  void Exhaust() {
    while (Round()) {
    }
  }
  bool Kick(Rng& rng);
  void Remember();
  void Restore();
  double Value() const;
  void Exchange(int32_t& admitted, int32_t waiting);
  void MarkSettled(int32_t item);
  // Whether nothing relevant has changed since the item was last considered without improvement.
  bool Settled(int32_t item) const;
  void Changed(int32_t worker) { changed_[worker] = ++clock_; }
  bool Swap(int32_t& admitted);
  void SearchBucket(const PoolIndex::Bucket& bucket, int32_t admitted, double cost_out, Best& best);
  bool Trade(int32_t admitted);
  bool Move(int32_t admitted);
  void Put(int32_t item, int32_t worker);
  void Take(int32_t item);
  // Work of a test whether memory suffices, in evaluations.
  int64_t KvWork() const { return 1 + static_cast<int64_t>(allocation_->instance().kv.row()); }
  double AdmitCost(int32_t item) const { return pricing_->AdmitCost(allocation_->item(item)); }

  Pricing* pricing_ = nullptr;
  Allocation* allocation_ = nullptr;
  PoolIndex* index_ = nullptr;
  Run* run_ = nullptr;
  std::vector<int32_t> admitted_;
  // When each worker last changed; when, and at which epoch, each item was last considered without
  // improvement.
  int64_t clock_ = 0;
  std::vector<int64_t> changed_, looked_, looked_epoch_;
  bool thorough_ = false;
  // False with many admitted items and at least as many waiting: trades then rarely justify their time, since
  // swaps find the same improvements.
  bool trades_ = true;
  // The best plan so far: the admitted items and their workers.
  std::vector<std::pair<int32_t, int32_t>> best_plan_;
  std::vector<char> in_best_;
};

extern template class Search<PaperPricing>;
extern template class Search<SquarePricing>;

}  // namespace bfio::core
