// bfio_sim replay: checks that the core, given the recorded events, makes the decisions that the router
// recorded.
//
// Threads: call from main after the flags are parsed.
#ifndef BFIO_TOOLS_SIM_REPLAY_REPLAY_COMMAND_H_
#define BFIO_TOOLS_SIM_REPLAY_REPLAY_COMMAND_H_

#include "absl/status/status.h"

namespace bfio::sim {

// Replays the session of --log, with the policy of --what_if if it is set, and prints the results. NOT_FOUND
// or INVALID_ARGUMENT when the file does not exist or is not a decision log, DATA_LOSS when it is damaged,
// FAILED_PRECONDITION when a decision differs from the recorded one.
absl::Status RunReplayCommand();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_REPLAY_REPLAY_COMMAND_H_
