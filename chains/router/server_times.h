// Converts the measurements of a pool's servers to times of a mean request.
//
// Purpose: the composer's times (core::ChainServer) from measurements instead of settings: the time in a
// block from each server's trial of its own blocks, and the time of a hop from round trips between servers.
// Trials are noisy, and placements should not depend on noise: times within kSameWithin of the median count
// as the median. Threads: pure functions.
#pragma once

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/pool_plan.h"
#include "chains/core/server_pool.h"

namespace bfio::router {

struct ServerTelemetry {
  // Seconds of a step of one row in one block, and of every further row; 0: not measured.
  double block_step_s = 0, block_row_s = 0;
  // Round trips to servers with a known time, in seconds.
  std::vector<double> round_trips_s;
};

// Relative distance to the median within which a time counts as the median.
inline constexpr double kSameWithin = 0.25;

// A step's tokens go once through every block and once over every hop; prompts add their rows. A server's
// share of a hop is half its mean round trip; a server without measured round trips has the mean of the
// others. A server that has not measured its blocks has the median of the others; the result is absent if no
// server has.
std::optional<std::vector<core::ServerTimes>> TimesOf(absl::Span<const ServerTelemetry> servers,
                                                      const core::JobShape& job);

}  // namespace bfio::router
