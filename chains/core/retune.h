// Decides when serving chains no longer fit the demand. Chains are composed for one demand. When it drifts, a
// composition of all servers from scratch may carry more or respond faster. A change-over drains all chains,
// composes their servers anew and loads other blocks; requests that arrive meanwhile wait. Chains cannot be
// replaced one by one, because overlapping chains hold the memory that a new chain needs. The measured rate
// varies by chance, so a check looks at a band above it: there the other composition must not be worse, so
// that a change-over is not undone by chance. Deterministic, without I/O and clock; times in seconds.
// Threads: one. Cost of a check: two compositions at most, 0.04 s each for 200 servers.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "chains/core/pool_plan.h"

namespace bfio::core {

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
