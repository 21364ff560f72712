// Counts of requests that ended at each age, and of those that could have: the data of a Kaplan-Meier curve.
//
// Purpose: exposure (requests that could have ended with a token of the bin) and endings, per bin of an
// AgeLattice, decayed so that the last `memory` endings have the most weight. Censoring needs no special
// treatment: a request is exposed for the tokens that it was seen to generate, and no longer. Source: Kaplan
// and Meier 1958, in its occurrence/exposure form, with forward decay (Cormode et al. 2009): an observation
// costs O(bins it spans), and the counts are swept only for a rare rescaling. Threads: one.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_HAZARD_COUNTS_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_HAZARD_COUNTS_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "router/core/lookahead/age_lattice.h"

namespace bfio::core {

class HazardCounts {
 public:
  // REQUIRES: memory > 0, in endings; infinity: no decay.
  HazardCounts(const AgeLattice& lattice, double memory) : lattice_(lattice), growth_(std::exp(1 / memory)) {}

  // The request could have ended with tokens from + 1 .. to, and ended with `to` if `finished`. REQUIRES: 0
  // <= from <= to, from < to if finished.
  void Observe(int64_t from, int64_t to, bool finished);

  // Decayed counts; the newest observation has weight 1.
  double Exposed(int32_t bin) const { return exposed_[bin] / weight_; }
  double Ended(int32_t bin) const { return ended_[bin] / weight_; }
  double total_ended() const { return total_ended_ / weight_; }
  // Number of bins seen so far.
  int32_t bins() const { return static_cast<int32_t>(exposed_.size()); }
  const AgeLattice& lattice() const { return lattice_; }
  // Number of endings observed since the start, without decay.
  int64_t observed() const { return observed_; }

 private:
  AgeLattice lattice_;
  double growth_;
  // Weight of an observation now; grows by growth_ with every ending.
  double weight_ = 1;
  std::vector<double> exposed_;
  std::vector<double> ended_;
  double total_ended_ = 0;
  int64_t observed_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_HAZARD_COUNTS_H_
