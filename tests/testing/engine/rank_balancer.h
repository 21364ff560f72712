// Which rank of an engine gets a request: the choice that vLLM makes inside an engine with several ranks.
//
// Source: vLLM 0.32, DPLBAsyncMPClient.get_core_engine_for_request (vllm/v1/engine/core_client.py) and
// DPCoordinatorProc (vllm/v1/engine/coordinator.py), with one client and ranks that step together.
//   score = max(requests in flight here, waiting + running) + 6 * waiting * max(0, kv - 0.5)
// The rank with the least score is chosen; the search begins one rank further each time. Requests in flight
// are counted at once. Waiting, running and kv are published at most every 100 ms, as of the last step that
// all ranks have reported; between two publications a choice adds to the rank's waiting.
//
// Purpose: bfio_test_engine balances like vLLM. Pure. Threads: one. Times only grow.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace bfio::testing {

class RankBalancer {
 public:
  // A rank's report.
  struct Counts {
    int64_t waiting = 0;
    int64_t running = 0;
    // Used share of its KV memory.
    double kv = 0;
  };

  RankBalancer(int ranks, absl::Time now);

  // The rank for the next request, which is in flight there from now on.
  int Choose(absl::Time now);
  // Counts a request that named its rank.
  void Pin(int rank) { ++in_flight_[static_cast<size_t>(rank)]; }
  // Records that a request of that rank has ended.
  void End(int rank) { --in_flight_[static_cast<size_t>(rank)]; }

  // Records a rank's state after a step, including the requests that have arrived since.
  void Report(int rank, int64_t step, const Counts& counts, absl::Time now);

 private:
  // Publishes the state that was due before `now`.
  void PublishDue(absl::Time now);

  std::vector<int64_t> in_flight_;
  int start_ = 0;
  // The state as published to clients.
  std::vector<Counts> published_;

  // The coordinator's state: the ranks' reports, and whether they have changed.
  std::vector<Counts> counts_;
  bool changed_ = false;
  int64_t step_ = -1;
  // The reports of all ranks before the step that they report now.
  std::optional<std::vector<Counts>> whole_step_;
  absl::Time published_at_, waits_since_;
};

}  // namespace bfio::testing
