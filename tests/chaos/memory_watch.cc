#include "tests/chaos/memory_watch.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::chaos {

int64_t ResidentKib(pid_t pid) {
  if (pid <= 0) return 0;
  std::ifstream in(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; in >> word;) {
    if (word != "VmRSS:") continue;
    int64_t kib = 0;
    in >> kib;
    return kib;
  }
  return 0;
}

void MemoryWatch::Sample(absl::Duration at, pid_t router, const std::vector<pid_t>& workers) {
  Row row{absl::ToDoubleSeconds(at), ResidentKib(router), 0, 0};
  for (const pid_t worker : workers) {
    const int64_t kib = ResidentKib(worker);
    row.workers += kib;
    row.largest = std::max(row.largest, kib);
  }
  rows_.push_back(row);
}

std::string MemoryWatch::Csv() const {
  std::string csv = "seconds,router_kib,workers_kib,largest_worker_kib\n";
  for (const Row& row : rows_)
    absl::StrAppendFormat(&csv, "%.1f,%d,%d,%d\n", row.seconds, row.router, row.workers, row.largest);
  return csv;
}

int64_t MemoryWatch::Peak(int64_t Row::*field) const {
  int64_t peak = 0;
  for (const Row& row : rows_) peak = std::max(peak, row.*field);
  return peak;
}

int64_t MemoryWatch::Growth(int64_t Row::*field) const {
  const auto median = [&](size_t begin, size_t end) {
    std::vector<int64_t> values;
    for (size_t i = begin; i < end; ++i) {
      if (rows_[i].*field > 0) values.push_back(rows_[i].*field);
    }
    std::sort(values.begin(), values.end());
    return values.empty() ? int64_t{0} : values[values.size() / 2];
  };
  const size_t third = rows_.size() / 3;
  return median(rows_.size() - third, rows_.size()) - median(0, third);
}

}  // namespace bfio::chaos
