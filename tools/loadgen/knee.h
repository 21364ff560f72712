// Which of the rates that were tried the cluster held, and where it no longer did.
//
// Purpose: from levels to a verdict each, and to the knee. A level *held* when
//   - the share of requests within the goodput limits is at least `attainment`, if there are limits; and
//   - throughput followed: the share served is at least kFollow.
// The share served: while a cluster keeps up, requests that are due later take no longer. If the time a
// request of average length takes grows by g seconds per second of due time, requests leave 1 + g times more
// slowly than they come, and 1 / (1 + g) of them are served. g is taken between the two halves of a level,
// from mean TTFT and mean time per token, so that the mix of lengths in either half does not matter. Failed
// and unsent requests are not served at all.
// Pure functions.
#ifndef BFIO_TOOLS_LOADGEN_KNEE_H_
#define BFIO_TOOLS_LOADGEN_KNEE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/loadgen/levels.h"

namespace bfio::loadgen {

// Chosen, not measured: a margin for the noise of some hundred requests, well below 1 / (1 + g) of an
// overload beyond doubt.
inline constexpr double kFollow = 0.9;
// Levels with fewer requests completed say nothing.
inline constexpr uint64_t kFewestRequests = 20;

struct KneeCriteria {
  // Nothing: no goodput limits.
  std::optional<double> attainment;
};

struct Verdict {
  enum Kind { kNotJudged, kHeld, kMissedGoodput, kFellBehind } kind = kNotJudged;
  // 0 to 1, of requests due. Nothing when there were too few, or no goodput limits.
  std::optional<double> good_share;
  std::optional<double> served_share;

  bool failed() const { return kind == kMissedGoodput || kind == kFellBehind; }
};

// REQUIRES: the level's requests have ended.
Verdict Judge(const Level& level, const KneeCriteria& criteria);

struct Knee {
  // The highest rate held before two failed in a row (requests per second asked for), and the lowest above it
  // that failed.
  std::optional<double> held;
  std::optional<double> failed;
  // Why that one failed.
  Verdict reason;
};

// Nothing when no level was judged, or when rates go down: what a high one leaves behind burdens the next.
std::optional<Knee> FindKnee(const std::vector<Level>& levels, const KneeCriteria& criteria);

// Whether a sweep may stop: the two last levels judged, `last` included, failed.
bool TwoFailed(const std::vector<Level>& levels, uint32_t last, const KneeCriteria& criteria);

// "40 requests/s held; 50 did not: 62.0 % within the limits, at least 90.0 % wanted".
std::string KneeText(const Knee& knee, const KneeCriteria& criteria);

// "held", "goodput", "fell behind", "too few requests".
const char* VerdictName(Verdict::Kind kind);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_KNEE_H_
