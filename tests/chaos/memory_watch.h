// Resident memory of processes over time.
//
// Purpose: shows that memory is bounded: a CSV row per sample, and whether the last third of the run uses
// more than the first. Threads: one.
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

// Resident memory of a process; 0 when it is gone.
int64_t ResidentKib(pid_t pid);

class MemoryWatch {
 public:
  // Processes that are gone count 0; a restarted process is given with its new id.
  void Sample(absl::Duration at, pid_t router, const std::vector<pid_t>& workers);

  // seconds,router_kib,workers_kib,largest_worker_kib
  std::string Csv() const;

  // Largest sample, KiB.
  int64_t router_peak() const { return Peak(&Row::router); }
  int64_t worker_peak() const { return Peak(&Row::largest); }
  // Median of the last third of the samples minus that of the first third, for the router and for the largest
  // worker, in KiB.
  int64_t router_growth() const { return Growth(&Row::router); }
  int64_t worker_growth() const { return Growth(&Row::largest); }

 private:
  struct Row {
    double seconds = 0;
    int64_t router = 0, workers = 0, largest = 0;
  };
  int64_t Peak(int64_t Row::*field) const;
  int64_t Growth(int64_t Row::*field) const;

  std::vector<Row> rows_;
};

// Checks that harmless faults do not affect the group.
//
// Purpose: finds the intervals of a run in which only harmless faults (IsHarmless) are under way and the
// group has recovered from earlier faults. It compares the group at the beginning of an interval with its
// later states: its epoch, its ranks, its router, and the router's memory. Pure.

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
