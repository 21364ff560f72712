// Checks that harmless faults do not affect the group.
//
// Purpose: finds the intervals of a run in which only harmless faults (IsHarmless) are under way and the
// group has recovered from earlier faults. It compares the group at the beginning of an interval with its
// later states: its epoch, its ranks, its router, and the router's memory. Pure.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/chaos/schedule.h"

namespace bfio::chaos {

// The group as the router reports it.
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
    // Time for recovery after the end of a harmful fault; nothing is checked meanwhile.
    absl::Duration settle;
    // Factor of the bounds of the router's memory (MemoryBoundKib): sanitizers need more.
    int64_t memory_factor = 1;
    // Zero of the times in violations.
    absl::Time start = absl::UnixEpoch();
  };
  explicit HarmlessWatch(const Options& options) : options_(options) {}

  // A fault begins, or ends.
  void Begin(FaultKind kind, absl::Time now);
  void End(FaultKind kind, absl::Time now);
  // Called every second or so, and before each Begin and End. Empty: the router does not respond.
  void Observe(const std::optional<GroupView>& view, absl::Time now);

  // Descriptions of the violations.
  const std::vector<std::string>& violations() const { return violations_; }
  // By kind: number of intervals in which it was under way.
  const std::map<FaultKind, int>& watched() const { return watched_; }

 private:
  std::string WhatIsWrong(const std::optional<GroupView>& view) const;

  const Options options_;
  int harmful_ = 0;
  absl::Time harmful_end_ = absl::InfinitePast();
  // Kinds under way, and how many of each.
  std::map<FaultKind, int> harmless_;
  // The group at the beginning of the interval.
  std::optional<GroupView> before_;
  absl::Time since_;
  std::map<FaultKind, int> watched_;
  std::vector<std::string> violations_;
};

}  // namespace bfio::chaos
