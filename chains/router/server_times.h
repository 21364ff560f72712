// What servers of a pool have measured, as times of a mean request.
//
// Purpose: the composer's figures (core::ChainServer) from measurement in place of settings: what a block
// takes, from each server's trial of its own blocks, and what a hop takes, from round trips between servers.
// Trials are noisy, and placements should not depend on noise: times within kAlike of the median are the
// median. Threads: pure.
#ifndef BFIO_CHAINS_ROUTER_SERVER_TIMES_H_
#define BFIO_CHAINS_ROUTER_SERVER_TIMES_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "chains/core/job_times.h"

namespace bfio::router {

struct ServerFigures {
  // Seconds of a step of one row in one block, and of every further row; 0: not measured.
  double block_step_s = 0, block_row_s = 0;
  // To servers that are known, seconds.
  std::vector<double> round_trips_s;
};

// Of a mean request, all its tokens, seconds (core::ChainServer).
struct ServerTimes {
  double compute = 1;
  double communication = 1;
};

// Times this close to the median count as the median.
inline constexpr double kAlike = 0.25;

// A step's tokens go once through every block and once over every hop: prompts add their rows. A server's
// share of a hop is half its mean round trip; one without connections has the mean of the others.
// One that has not measured its blocks has the median of the others; nothing when none has.
std::optional<std::vector<ServerTimes>> TimesOf(absl::Span<const ServerFigures> servers,
                                                const core::JobShape& job);

}  // namespace bfio::router

#endif  // BFIO_CHAINS_ROUTER_SERVER_TIMES_H_
