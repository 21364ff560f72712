// The rank on which a prompt costs a group least, with prefix caches. PlanPrefill and PlanRelease place a
// prompt where its cached part saves more than its decodes cost. A prompt with S seconds left on a rank takes
// that time of what G ranks can compute. Its request makes the decodes of the rank dE seconds longer for its
// o steps. The group waits for that with the probability w that the rank is the slowest:
//
//   S / G + o w dE
//
// Pure; any thread. Units: seconds, steps.
#ifndef BFIO_ROUTER_CORE_PREFILL_PROMPT_PLACEMENT_H_
#define BFIO_ROUTER_CORE_PREFILL_PROMPT_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace bfio::core {

// By rank: the probability that its decodes will take longest, from their expected times. `rows`: the
// requests of all ranks. The times vary by about the time of sqrt(n) requests, n being a rank's mean number.
// A rank that is faster than the slowest by that time is 1 / e as likely to be the slowest later.
std::vector<double> SlowestProbabilities(absl::Span<const double> expected_s, int64_t rows);

// `seconds` is S, `ranks` is G, `output` is o, `slowest` is w, `longer_s` is dE.
inline double PlacementCost(double seconds, int64_t ranks, double output, double slowest, double longer_s) {
  return seconds / static_cast<double>(ranks) + output * slowest * longer_s;
}

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFILL_PROMPT_PLACEMENT_H_
