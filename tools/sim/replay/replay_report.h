// The results of a replay, as text and as JSON. Pure.
#ifndef BFIO_TOOLS_SIM_REPLAY_REPLAY_REPORT_H_
#define BFIO_TOOLS_SIM_REPLAY_REPLAY_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "tools/sim/replay/session_replay.h"

namespace bfio::sim {

// Data about the log besides its records.
struct ReplayedLog {
  std::string path;
  size_t segments = 0;
  int64_t earlier_sessions = 0;
  int64_t bytes = 0;
  // "closed", "overflow", "too_large", "no_end", "truncated", "damaged", "interrupted"
  std::string ending;
  // Name of the other policy, if there is one.
  std::string what_if;
};

nlohmann::ordered_json ReplayJson(const ReplayedLog& log, const SessionReplay& replay);
std::string ReplayText(const ReplayedLog& log, const SessionReplay& replay);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_REPLAY_REPLAY_REPORT_H_
