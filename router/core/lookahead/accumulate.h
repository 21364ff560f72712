// The inner loop of a projection by probabilities.
//
// Purpose: adds residents to one worker's rows of expected load and quiet probability. A resident is active h
// steps on with alive[h] * scale and has grown by h by then. The loops have no dependency from one h to the
// next, so they vectorise; every h is summed in the residents' order, whatever the vector width, so results
// do not depend on the machine. Lives for one projection.
#ifndef BFIO_ROUTER_CORE_LOOKAHEAD_ACCUMULATE_H_
#define BFIO_ROUTER_CORE_LOOKAHEAD_ACCUMULATE_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

class Accumulator {
 public:
  Accumulator(absl::Span<double> load, absl::Span<double> quiet)
      : load_(load), quiet_(quiet), cut_(static_cast<int64_t>(load.size())) {
    std::fill(load.begin(), load.end(), 0.0);
    std::fill(quiet.begin(), quiet.end(), 1.0);
  }

  // How many of the entries the resident may contribute to; it surely ends before the others.
  int64_t Room(const Resident& resident, const Standing& standing) {
    const int64_t room =
        resident.dropped ? 0 : std::clamp<int64_t>(standing.room, 0, static_cast<int64_t>(load_.size()));
    cut_ = std::min(cut_, room);
    return room;
  }

  // REQUIRES: alive has `room` entries.
  void Add(const Standing& standing, int64_t room, const double* __restrict alive, double scale) {
    double* const __restrict load = load_.data();
    double* const __restrict quiet = quiet_.data();
    const double tokens = static_cast<double>(standing.tokens);
    for (int32_t h = 0; h < static_cast<int32_t>(room); ++h) {
      const double p = alive[h] * scale;
      load[h] += (tokens + static_cast<double>(h)) * p;
      quiet[h] *= p;
    }
  }

  void Finish() { std::fill(quiet_.begin() + cut_, quiet_.end(), 0.0); }

 private:
  absl::Span<double> load_;
  absl::Span<double> quiet_;
  // From here on somebody has surely ended.
  int64_t cut_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_LOOKAHEAD_ACCUMULATE_H_
