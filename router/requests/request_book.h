// The interface by which a group reaches requests: recovery when an epoch opens, and lost workers. A group
// refers to requests by id only. Implemented by RequestLifecycle. Threads: the decision thread's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/core/model/request.h"
#include "router/core/scheduler/events.h"
#include "router/requests/request.h"

namespace bfio::router {

// What a group of workers can run. Every value is the group's own: a request is refused only if no group can
// run it, and waits for those that can.
struct GroupCapacity {
  // Number of its model; 0: unknown.
  uint32_t model = 0;
  int64_t kv_tokens = 0;
  // By rank: the longest prompt + output that it accepts.
  std::vector<int64_t> sequence_tokens;
  // The model's token ids are below it; 0: unknown.
  uint32_t vocabulary = 0;
  // The engines of all its ranks compute log-probabilities; requests can pass to all of them.
  bool logprobs = false;
  bool passes = false;

  int64_t max_sequence_tokens() const {
    return sequence_tokens.empty() ? 0 : *std::max_element(sequence_tokens.begin(), sequence_tokens.end());
  }
};

class RequestBook {
 public:
  virtual ~RequestBook() = default;
  // A member that holds requests from an earlier router.
  struct Holder {
    absl::string_view worker_id;
    int64_t kv_tokens = 0;
    // What runs there.
    absl::Span<const HeldActive> active;
  };
  // Recovers those requests, in time linear in the lists. Returns the recovered ones that still run there, in
  // the scheduler's form. They are charged at most the member's KV tokens.
  virtual std::vector<core::RequestSpec> Recover(const Holder& holder, std::vector<HeldRequest> held) = 0;
  // Tokens received from the request's present placement; empty for an orphaned request.
  virtual std::optional<uint32_t> ReceivedSincePlaced(core::RequestId id) const = 0;
  // The worker is lost without having drained or requested to leave. Called while the scheduler still has the
  // requests placed there; they are displaced afterwards.
  virtual void OnWorkerDied(core::GroupIndex group, core::WorkerIndex worker) = 0;
  // Counts the difference between a worker's count of generated tokens and the received ones.
  virtual void CountTokens(uint32_t generated, uint32_t received) = 0;
};

}  // namespace bfio::router
