// Resident memory of processes over time.
//
// Purpose: shows that memory is bounded: a CSV row per sample, and whether the last third of the run uses
// more than the first. Threads: one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

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

}  // namespace bfio::chaos
