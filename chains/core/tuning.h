// Chooses c, the cache to reserve per block, and makes a whole plan for a demand. A small c gives short
// chains and few concurrent jobs, a large c the opposite. For every c up to 512, and a sample of larger ones,
// this computes the placement (GBP-CR), the chains (GCA), the surrogate c K(c) of equation (14) and the
// bounds of the mean response of Theorem 3.7, and selects the best by one of them ("Serving Chain-structured
// Jobs with Large Memory Footprints", sections 3.1.3 and 3.2.3). Pure functions. Threads: any, no state.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/composition.h"
#include "chains/core/occupancy.h"
#include "chains/core/pool_plan.h"
#include "chains/core/server_pool.h"

namespace bfio::core {

// A composition: the placement of blocks, and the chains with their capacities.
struct ChainPlan {
  BlockPlacement placement;
  std::vector<ServerChain> chains;  // fastest first
  double rate = 0;                  // nu, jobs per second
};

// GBP-CR for c, then GCA. REQUIRES: as GreedyPlacement.
ChainPlan PlanWithReserve(absl::Span<const ChainServer> servers, const ChainService& service, int64_t c,
                          const Demand& demand);

// The result of one c for a demand.
struct ReserveCandidate {
  int64_t c = 0;
  int64_t disjoint_chains = 0;  // K(c)
  // Whether GBP-CR's own disjoint chains carry the demand at the target load: then c is feasible for the
  // surrogate.
  bool disjoint_meets = false;
  int64_t chains = 0;  // number of chains of GCA
  int64_t capacity = 0;
  double rate = 0;  // nu
  // Whether nu carries the demand at the target load.
  bool meets = false;
  // Bounds of the mean response time in seconds; infinity if nu does not exceed the demand.
  double lower = 0, upper = 0;

  double surrogate() const { return static_cast<double>(c) * static_cast<double>(disjoint_chains); }
};

// The largest c for which some server can host a block.
int64_t LargestReserve(absl::Span<const ChainServer> servers, const ChainService& service);

// Candidates in ascending order of c: every c up to 512, then in steps of 1/64, as long as some chain covers
// all blocks, and as long as `go_on`, called before each, returns true (empty: always). REQUIRES: CheckPool
// is OK, demand.rate > 0, 0 < target_load <= 1.
std::vector<ReserveCandidate> SweepReserve(absl::Span<const ChainServer> servers, const ChainService& service,
                                           const Demand& demand, const std::function<bool()>& go_on = {});

// The same for several demand rates, by rate: blocks are placed and chains composed once for all of them.
// REQUIRES: as SweepReserve, for every rate; demand.use_all, unless the only rate is demand.rate, so that all
// rates have the same placement.
std::vector<std::vector<ReserveCandidate>> SweepReserves(absl::Span<const ChainServer> servers,
                                                         const ChainService& service, const Demand& demand,
                                                         absl::Span<const double> rates,
                                                         const std::function<bool()>& go_on = {});

// The candidate with the least lower bound, the smallest c among equals: of those that meet the demand at the
// target load or, if there are none, of those that are stable; null if none is.
const ReserveCandidate* BestReserve(absl::Span<const ReserveCandidate> candidates);

// Why no composition serves the demand, with the missing amount: FAILED_PRECONDITION, one line. `candidates`
// are those of SweepReserve. REQUIRES: BestReserve found none.
absl::Status WhyImpossible(absl::Span<const ChainServer> servers, const ChainService& service,
                           const Demand& demand, absl::Span<const ReserveCandidate> candidates);

// Decides when serving chains no longer fit the demand. Chains are composed for one demand. When it drifts, a
// composition of all servers from scratch may carry more or respond faster. A change-over drains all chains,
// composes their servers anew and loads other blocks; requests that arrive meanwhile wait. Chains cannot be
// replaced one by one, because overlapping chains hold the memory that a new chain needs. The measured rate
// varies by chance, so a check looks at a band above it: there the other composition must not be worse, so
// that a change-over is not undone by chance. Deterministic, without I/O and clock; times in seconds.
// Threads: one. Cost of a check: two compositions at most, 0.04 s each for 200 servers.

// Share by which the mean response must fall, or the rate must rise.
inline constexpr double kRetuneGain = 0.1;
// Lower bound of RateBand.
inline constexpr double kRetuneBand = 1.25;

// When chains do not carry the upper end of the band, servers are composed for the measured demand times this
// factor, up to 90 % of the largest rate. A demand that has risen may rise further, and another change-over
// at a higher demand costs more: more requests wait, and those that have waited take longer to catch up.
inline constexpr double kRetuneMargin = 2;

// The factor by which the demand may exceed a rate that was measured with an exponential memory: two standard
// deviations, which are 1 / sqrt(2 rate memory) each, and at least kRetuneBand.
double RateBand(double rate, double memory_s);

struct Retuning {
  // The demand for which the servers are composed.
  double demand = 0;
  // At the measured demand: the response of the present chains, and of the other composition.
  Response now, then;
  // The present chains do not carry the upper end of the band; they do not carry the measured demand.
  bool near_overload = false, overload = false;
};

// The composition of all servers from scratch, if it is better by kRetuneGain. Either its rate is larger and
// the present chains overload: at `demand`, or at the upper end of the band, which it carries. Or it responds
// faster at `demand` and not slower at the upper end. `band`: see RateBand. REQUIRES: CheckPool is OK, demand
// > 0, band >= 1, each chain of `standing` has a rate.
std::optional<Retuning> BetterComposition(absl::Span<const PoolServer> servers, const BlockSizes& sizes,
                                          int64_t max_slots, double demand, double band,
                                          absl::Span<const ExistingChain> standing);

struct RetuneTimes {
  // How long an overload must last; any other gain must last five times as long. If this is the time constant
  // of the measured rate, the rate is measured anew meanwhile.
  double after_s = 60;
  // The expected time without service of a change-over.
  double pause_s = 60;
};

// Whether a better composition has been better for long enough. Requests that arrive in a pause of P seconds
// wait for P / 2 on average: a cost of P^2 / 2 for one request per second. Without the change-over the same
// request rate loses the difference of the responses in every second. The change-over is made when the sum of
// these losses reaches the cost. The total is then at most twice that of the better choice, however long the
// demand stays (the rent-or-buy rule).
class RetunePatience {
 public:
  // Call after every check, with its result. True: change over now.
  bool Check(double now_s, const std::optional<Retuning>& better, const RetuneTimes& times);
  // Resets the patience. Call when earlier checks do not refer to the present chains.
  void Forget() { since_.reset(); }

 private:
  // Since when every check has found a better composition, and an overload.
  std::optional<double> since_, overload_since_;
  double checked_ = 0, lost_ = 0;
};

}  // namespace bfio::core
