// bfio_sim replay: was what the router decided what the core decides?
//
// Threads: call from main after the flags are parsed.
#ifndef BFIO_TOOLS_SIM_REPLAY_REPLAY_COMMAND_H_
#define BFIO_TOOLS_SIM_REPLAY_REPLAY_COMMAND_H_

#include "absl/status/status.h"

namespace bfio::sim {

// Replays the session of --log, asking the policy of --what_if instead if there is one, and prints what it
// found. NOT_FOUND or INVALID_ARGUMENT when there is no such log or it is none, DATA_LOSS when it is damaged,
// FAILED_PRECONDITION when the core decides otherwise than was recorded.
absl::Status RunReplayCommand();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_REPLAY_REPLAY_COMMAND_H_
