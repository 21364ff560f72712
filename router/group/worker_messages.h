// The messages between workers and the router about a group, independent of the protocol. The domain types of
// the second edge. router/worker_link checks what arrives and makes these; router/group reads them and
// answers with commands (commands.h). Plain data. Tokens, steps; durations carry their unit. Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/cost/group_time.h"
#include "common/cost/online_fit.h"
#include "router/core/scheduler/events.h"
#include "router/requests/hand_off.h"
#include "router/requests/request.h"

namespace bfio::router {

// One connection of one worker, numbered by the edge; never reused while the router runs.
using MemberId = uint64_t;

// A worker attaches. Checked by the edge: the id is not empty, sizes are in range.
struct WorkerHello {
  std::string worker_id;
  // The requested group; empty: the router assigns one.
  std::string group;
  // Digest of what it computes, in 64 hexadecimal digits; empty: unknown.
  std::string model;
  int32_t slots = 0;
  int64_t kv_tokens = 0;
  // Longest prompt + output that it accepts.
  int64_t max_sequence_tokens = 0;
  // The model's token ids are below it; 0: unknown.
  uint32_t vocabulary = 0;
  std::string engine;
  std::string barrier;
  std::string communicator_offer;
  std::string version;
  std::vector<HeldActive> active;
  // The router that it followed last (common/base/router_instance.h); 0: none.
  uint64_t router_instance = 0;
  // Mean time of a request from first step to last, in seconds, for chains of servers; 0: unknown.
  double service_s = 0;
  // Whether it can step independently, without a barrier.
  bool steps_alone = false;
  // Its engine computes log-probabilities.
  bool logprobs = false;
  // It is an engine: it accepts requests in the form in which clients sent them (Passing), and has none left
  // when its connection has ended.
  bool passes = false;
  // It keeps the KV of prompts for later ones that begin alike.
  bool prefix_cache = false;
  // It computes prompts for others, and hands their KV over (RequestHandOff).
  bool hands_over = false;
  // It computes a prompt while another rank waits for it, or it is one of those; which computes none itself.
  bool in_parallel = false, computes_none = false;
  // The engine's own name for hand-offs; empty: not reported.
  std::string kv_engine_id;
  // A random number that identifies this run of the worker; 0: not sent. `stream` is the number of this
  // connection in that run, which grows.
  uint64_t worker_instance = 0;
  uint64_t stream = 0;
};

// Requests of an earlier router; sent before EpochReady, in one or more parts.
struct Announcement {
  uint64_t epoch = 0;
  std::vector<HeldRequest> requests;
  // Size in the wire message, by request.
  std::vector<int64_t> bytes;
};

// Answer to an EpochOffer.
struct EpochReady {
  uint64_t epoch = 0;
  // Empty: the barrier is formed.
  std::string error;
  std::string communicator_offer;
  std::vector<HeldActive> active;
  // Ranks that it could not reach.
  std::vector<uint32_t> missing_ranks;
};

// The number of tokens of one request in a step. The tokens themselves follow one another in
// StepReport::token_ids.
struct RequestTokens {
  core::RequestId id = 0;
  uint32_t count = 0;
};

struct FinishedRequest {
  core::RequestId id = 0;
  FinishReason reason = FinishReason::kLength;
  // How many tokens it has generated, where nobody here has seen them.
  std::optional<uint32_t> generated;
};

struct RejectedRequest {
  core::RequestId id = 0;
  // RESOURCE_EXHAUSTED: no KV memory now; the request is placed again. Any other status ends the request.
  absl::Status status;
};

// Energy, time and power of a worker's device since the worker started.
struct EnergyReading {
  std::string device;
  double busy_j = 0, barrier_j = 0, parked_j = 0;
  double busy_s = 0, barrier_s = 0, parked_s = 0;
  double watts = 0;
  std::optional<double> idle_watts;
};

// An engine's report of one of its ranks, requested from time to time.
struct EngineLoad {
  // In slots and waiting, of all its clients.
  int64_t requests = 0;
  // In its KV cache; engines that count whole blocks report more.
  int64_t tokens = 0;
  // Tokens generated since the engine's start.
  std::optional<int64_t> generated;
  // core::StepReport::cache_lost_ppm, cache_changes; since the last report.
  int64_t cache_lost_ppm = 0;
  std::vector<core::PrefixChange> cache_changes = {};

  bool operator==(const EngineLoad&) const = default;
};

// One rank's step. Checked by the edge: fields are in range and do not contradict each other.
struct StepReport {
  uint64_t epoch = 0;
  int64_t step = 0;
  int64_t applied_plan = 0;
  int64_t load_tokens = 0;
  uint32_t active_requests = 0;

  std::vector<RequestTokens> tokens;
  std::vector<uint32_t> token_ids;
  std::vector<FinishedRequest> finished;
  std::vector<RejectedRequest> rejected;
  std::vector<core::RequestId> preempted;
  // By request of `preempted`, ascending by index: those whose prompts were computed for others.
  struct HandedOver {
    size_t index = 0;
    HandOffPtr hand_off;
  };
  std::vector<HandedOver> handed_over;
  std::vector<core::CompletionHint> hints;
  // Log-probabilities of one request: its index in `tokens`, ascending, and one entry for each of its tokens.
  struct RequestLogprobs {
    size_t index = 0;
    Logprobs logprobs;
  };
  std::vector<RequestLogprobs> logprobs;
  // For a request that passes: its messages, in the engine's order. It may have messages without tokens.
  struct RequestMessages {
    size_t index = 0;
    std::vector<PassedPtr> messages;
  };
  std::vector<RequestMessages> messages;

  absl::Duration local;
  absl::Duration barrier_wait;
  std::optional<absl::Duration> gap;
  // `local` of the slowest rank; zero: not sent.
  absl::Duration group_max_local;
  // No rank has an active request after this step.
  bool group_idle = false;
  // core::StepReport::extra_slots.
  int32_t extra_slots = 0;
  // core::StepReport::shared_kv_tokens, cache_lost_ppm.
  int64_t shared_kv_tokens = 0, cache_lost_ppm = 0;
  // Empty: the barrier was met.
  std::string barrier_error;
  std::vector<uint32_t> missing_ranks;

  // Prompt tokens computed in the step.
  int64_t prefill_tokens = 0;
  std::optional<StepCostEstimate> cost;
  // The terms are the default's where the rank does not see the others' batches.
  std::optional<GroupCost> batch_cost;
  // Predicted over measured time of recent steps, where the rank sees the others' batches.
  std::optional<double> predicted_ratio;
  // What it has computed; empty: not reported.
  std::optional<BatchLoad> batch;
  std::optional<EnergyReading> energy;
  std::optional<core::PrefillReport> prefill;
  // The latest; empty: not requested, or not reported.
  std::optional<EngineLoad> engine_load;
  // For requests whose first token is in this report, where the engine reports it.
  std::vector<core::CachedPrompt> cached;
  // core::StepReport::cache_changes.
  std::vector<core::PrefixChange> cache_changes;
  // Prompt tokens of the requests in `cached`.
  int64_t prefix_cache_queries = 0;
};

// The router's request to a worker to form an epoch.
struct EpochOffer {
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string communicator_id;
  core::PlanMode plan_mode = core::PlanMode::kPipelined;
  absl::Duration form_timeout;
  absl::Duration step_timeout;
  // Requests that the worker has to drop before it is ready.
  std::vector<core::RequestId> cancellations;
  uint64_t router_instance = 0;
  // The worker has to announce the requests that it holds of an earlier router.
  bool announce = false;
  // How long a worker without a router keeps its requests.
  absl::Duration retain;
  // The rank steps independently.
  bool independent = false;
  std::string group;
};

// One rank's part of a plan.
struct PlanPart {
  uint64_t epoch = 0;
  int64_t apply_step = 0;
  std::vector<core::Placement> placements;
  // The number of the model that continues the placed requests (core::OpenEpoch).
  uint32_t model = 0;
  std::vector<core::RequestId> cancellations;
  std::optional<double> level_s;
};

}  // namespace bfio::router
