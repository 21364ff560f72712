// Finds the knee: the highest rate that the cluster held, and the lowest that it did not.
//
// Purpose: a verdict for each level of the sweep, and from these the knee. A level is *held* when
// - the share of requests within the goodput limits is at least kAttainment, if there are limits; and
// - throughput followed: the served share is at least kFollow.
// The served share: while a cluster keeps up, requests that are due later take no longer. If the time that a
// request of average length takes grows by g seconds per second of due time, requests leave 1 + g times more
// slowly than they come, and 1 / (1 + g) of them are served. g is the difference between the two halves of a
// level. It is computed from mean TTFT and mean time per token, so that different request lengths in the
// halves do not matter. Failed and unsent requests count as not served.
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/loadgen/results.h"

namespace bfio::loadgen {

// Chosen, not measured: leaves a margin for the noise of some hundred requests, and is well above 1 / (1 + g)
// of a clear overload.
inline constexpr double kFollow = 0.9;
// Levels in which fewer requests were due are not judged.
inline constexpr uint64_t kFewestRequests = 20;

// The share of requests within the goodput limits that a rate must reach to be held.
inline constexpr double kAttainment = 0.9;

struct Verdict {
  enum Kind { kNotJudged, kHeld, kMissedGoodput, kFellBehind } kind = kNotJudged;
  // Shares from 0 to 1 of the requests that were due. Empty when there were too few requests, or no goodput
  // limits.
  std::optional<double> good_share;
  std::optional<double> served_share;

  bool failed() const { return kind == kMissedGoodput || kind == kFellBehind; }
};

// `limits`: there are goodput limits. REQUIRES: the level's requests have ended.
Verdict Judge(const Level& level, bool limits);

struct Knee {
  // The highest rate, in requests per second as configured, held before two levels in a row failed; and the
  // lowest rate above it that failed.
  std::optional<double> held;
  std::optional<double> failed;
  // Why `failed` failed.
  Verdict reason;
};

// Empty when no level was judged.
std::optional<Knee> FindKnee(const std::vector<Level>& levels, bool limits);

// Whether a sweep may stop: the last two judged levels, `last` included, failed.
bool TwoFailed(const std::vector<Level>& levels, uint32_t last, bool limits);

// For example "40 requests/s held; 50 not held: 62.0 % of requests met the latency limits, at least 90.0 %
// required".
std::string KneeText(const Knee& knee);

// "held", "goodput", "fell behind", "too few requests".
const char* VerdictName(Verdict::Kind kind);

}  // namespace bfio::loadgen
