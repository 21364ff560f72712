// Whether faults that promise to harm nobody keep that promise.
//
// Purpose: finds the stretches of a run in which nothing but such faults (IsHarmless) is under way and
// everybody has recovered from what was before, and compares the group at their beginning with what it is
// later: its epoch, its ranks, its router, and the memory that this may take. Pure.
#ifndef BFIO_TESTS_CHAOS_HARMLESS_WATCH_H_
#define BFIO_TESTS_CHAOS_HARMLESS_WATCH_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/chaos/schedule.h"

namespace bfio::chaos {

// The group as the router tells.
struct GroupView {
  uint64_t epoch = 0;
  // Ranks of that epoch that serve.
  int serving = 0;
  pid_t router = 0;
  int64_t router_kib = 0;
};

class HarmlessWatch {
 public:
  struct Options {
    int workers = 8;
    // After a harmful fault's end nothing is expected for so long.
    absl::Duration settle;
    // The router's memory may grow by so much while unauthenticated callers flood it.
    int64_t flood_kib = 64 << 10;
    // What violations count their times from.
    absl::Time start = absl::UnixEpoch();
  };
  explicit HarmlessWatch(const Options& options) : options_(options) {}

  // A fault begins, ends.
  void Begin(FaultKind kind, absl::Time now);
  void End(FaultKind kind, absl::Time now);
  // Every second or so, and before each Begin and End. Nothing: the router does not answer.
  void Look(const std::optional<GroupView>& view, absl::Time now);

  // What was not kept.
  const std::vector<std::string>& violations() const { return violations_; }
  // In how many stretches a kind was under way.
  const std::map<FaultKind, int>& watched() const { return watched_; }

 private:
  std::string WhatIsWrong(const std::optional<GroupView>& view) const;

  const Options options_;
  int harmful_ = 0;
  absl::Time harmful_end_ = absl::InfinitePast();
  // Under way, and how many of each kind.
  std::map<FaultKind, int> harmless_;
  // The group at the stretch's beginning.
  std::optional<GroupView> before_;
  absl::Time since_;
  std::map<FaultKind, int> watched_;
  std::vector<std::string> violations_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_HARMLESS_WATCH_H_
