// Replays of sessions that were recorded in memory.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "tests/testing/recorded_session.h"
#include "tools/sim/replay/session_replay.h"

namespace bfio::sim {

using ::bfio::testing::MemoryLog;

inline double NoClock() {
  return 0;
}

inline SessionReplay Replay(const MemoryLog::Segments& segments,
                            std::optional<core::PolicySetting> instead = std::nullopt) {
  SessionReplay replay(std::move(instead), NoClock);
  for (const std::vector<record::Record>& segment : segments) {
    for (const record::Record& record : segment) {
      const absl::Status status = replay.Take(record);
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) return replay;
    }
  }
  return replay;
}

inline void ExpectIdentical(const SessionReplay& replay) {
  EXPECT_FALSE(replay.Failed());
  EXPECT_EQ(replay.counts().identical, replay.counts().decisions) << replay.counts().first_difference;
  EXPECT_EQ(replay.counts().answers_identical, replay.counts().answers);
  EXPECT_EQ(replay.counts().first_difference, "");
  EXPECT_GT(replay.counts().decisions, 0);
}
inline void ExpectExact(const SessionReplay& replay) {
  ExpectIdentical(replay);
  EXPECT_TRUE(replay.exact());
}

// The segments with `change` applied to every event.
template <class Change>
MemoryLog::Segments Changed(MemoryLog::Segments segments, const Change& change) {
  for (auto& segment : segments) {
    for (record::Record& record : segment)
      if (auto* logged = std::get_if<record::LoggedEvent>(&record)) change(*logged);
  }
  return segments;
}

}  // namespace bfio::sim
