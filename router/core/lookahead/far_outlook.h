// Fills Snapshot::far: expected loads `kKnots` steps ahead, 0 and then growing by one factor up to `kReach`
// mean stays, where a worker's load is the sum over its residents of p (s + age + h), with p the lookahead's
// probability that the resident is still active. The variance of the load has two parts: departures, p (1 -
// p) (s + age + h)^2 of each resident, and arrivals, for which the residents that arrived within the last h
// steps count (s + age)^2 (Campbell's theorem). Their sum of s + age is what the next h steps bring. A
// worker's row is summed again when its residents have changed, or after kRefreshSteps steps. Spans of View
// are valid until the next Begin. Threads: one. Cost: O(residents of changed workers * kKnots) per plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {

class FarOutlookBuilder {
 public:
  static constexpr size_t kKnots = 16;
  // Last knot, in mean stays. All steps beyond it have exp(-3), about a twentieth, of the total weight
  // (policy/bf_io_auto/horizon.h).
  static constexpr double kReach = 3;
  // Steps after which a row is summed again, because survival probabilities change with age.
  static constexpr int64_t kRefreshSteps = 8;

  struct Worker {
    absl::Span<const Resident> residents;
    PlanTime time;
    // Changes whenever the residents change.
    int64_t version = 0;
    // Ratio of the worker's load to the sum over its residents.
    double scale = 1;
  };

  // Begins a plan for this many workers. Call AddWorker for each of them next, in order.
  void Begin(int32_t workers);
  void AddWorker(const Lookahead& lookahead, const Worker& worker);
  void AddWaiting(Lookahead& lookahead, absl::Span<const WaitingView> waiting);
  // REQUIRES: AddWorker was called for every worker.
  FarOutlook View();

 private:
  struct Row {
    int64_t version = 0;
    // The step that the row was summed for; absent when it must be summed.
    std::optional<int64_t> step;
    double ages = 0;
    double residents = 0;
    double load[kKnots];
    // Expected number of active residents.
    double active[kKnots];
    double variance[kKnots];
    double arrived[kKnots];
  };

  void SetKnots();
  void Sum(const Lookahead& lookahead, const Worker& worker, Row& row);

  double mean_stay_ = 0;
  std::vector<int64_t> steps_;
  std::vector<Row> rows_;
  size_t next_ = 0;
  std::vector<double> load_;
  std::vector<double> variance_;
  std::vector<double> arriving_;
  std::vector<int32_t> curve_of_;
  std::vector<double> curves_;
  absl::flat_hash_map<uint64_t, int32_t> row_of_key_;
};

}  // namespace bfio::core
