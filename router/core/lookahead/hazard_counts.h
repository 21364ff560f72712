// How often requests ended at each age, out of how often they could have: the counts behind a Kaplan-Meier
// curve.
//
// Purpose: exposure (requests that could have ended with a token of the bin) and endings, per bin of an
// AgeLattice, decayed so that the last `memory` endings weigh most. Censoring needs no care: a request is
// exposed for the tokens it was seen to make, and no longer. Source: Kaplan and Meier 1958, in its
// occurrence/exposure form; the decay is forward decay (Cormode et al. 2009), so an observation costs O(bins
// it spans) and nothing is ever swept but for one rescaling in a long while. Threads: one.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_HAZARD_COUNTS_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_HAZARD_COUNTS_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "router/core/lookahead/age_lattice.h"

namespace bfio::core {

class HazardCounts {
 public:
  // REQUIRES: memory > 0, in endings; infinity never forgets.
  HazardCounts(const AgeLattice& lattice, double memory) : lattice_(lattice), growth_(std::exp(1 / memory)) {}

  // The request could have ended with tokens from + 1 .. to, and did with `to` if `finished`.
  // REQUIRES: 0 <= from <= to, from < to if finished.
  void Observe(int64_t from, int64_t to, bool finished);

  // In requests of today: what was seen last counts 1.
  double Exposed(int32_t bin) const { return exposed_[bin] / weight_; }
  double Ended(int32_t bin) const { return ended_[bin] / weight_; }
  double total_ended() const { return total_ended_ / weight_; }
  // Bins seen so far: 0 .. bins() - 1.
  int32_t bins() const { return static_cast<int32_t>(exposed_.size()); }
  const AgeLattice& lattice() const { return lattice_; }
  // Endings observed since the start, not decayed.
  int64_t observed() const { return observed_; }

 private:
  AgeLattice lattice_;
  double growth_;
  // What an observation counts now; grows by growth_ with every ending.
  double weight_ = 1;
  std::vector<double> exposed_;
  std::vector<double> ended_;
  double total_ended_ = 0;
  int64_t observed_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_HAZARD_COUNTS_H_
