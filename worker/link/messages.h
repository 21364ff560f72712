// The messages between a rank and the router, as plain structs: proto/bfio/v1/worker.proto without protobuf.
// The step loop is built and tested without gRPC; only convert.h uses protobuf. worker.proto describes the
// fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/cost/online_fit.h"
#include "worker/barrier/barrier.h"
#include "worker/energy/energy_monitor.h"
#include "worker/engine/engine.h"

namespace bfio::worker {

// --- from the router ---

enum class PlanMode { kPipelined, kLockstep };

struct Epoch {
  GroupSpec group;
  PlanMode plan_mode = PlanMode::kPipelined;
  absl::Duration form_timeout;
  absl::Duration step_timeout;
  std::vector<Handle> cancellations;
  uint64_t router_instance = 0;
  bool announce = false;
  absl::Duration retain;
  bool uncoupled = false;
  std::string group_name;
};

// The log-probabilities of consecutive tokens of one request; every token has equally many alternatives.
struct Logprobs {
  std::vector<float> tokens;
  std::vector<TopToken> top;
};

// The router's note on a request that may outlive it.
struct RequestNote {
  std::string origin;
  std::vector<uint32_t> earlier_tokens;
  Logprobs earlier_logprobs;
};

struct Plan {
  uint64_t epoch = 0;
  int64_t apply_step = 0;
  std::vector<SequenceRequest> assignments;
  std::vector<Handle> cancellations;
  // By assignment; empty when no assignment has one.
  std::vector<RequestNote> notes;
  std::optional<double> level_s;
};

struct Shutdown {
  std::string reason;
};

// A line for this worker's log.
struct Notice {
  std::string text;
};

// --- to the router ---

struct Hello {
  std::string worker_id;
  EngineLimits limits;
  std::string engine;
  std::string barrier;
  std::string communicator_offer;
  std::vector<ResidentSequence> active;
  std::string version;
  uint64_t router_instance = 0;
  double service_s = 0;
  std::string group;
  uint64_t worker_instance = 0;
  uint64_t stream = 0;
  std::string model;
  bool logprobs = false;
};

struct HeldRequest {
  SequenceRequest request;
  RequestNote note;
  std::vector<uint32_t> tokens;
  Logprobs logprobs;
  std::optional<FinishCause> ended;
};

struct Announcement {
  uint64_t epoch = 0;
  std::vector<HeldRequest> requests;
};

struct EpochReady {
  uint64_t epoch = 0;
  std::string error;
  std::string communicator_offer;
  std::vector<ResidentSequence> active;
  std::vector<int32_t> missing_ranks;
};

struct Rejection {
  Handle handle = 0;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
};

struct StepReport {
  uint64_t epoch = 0;
  int64_t step = 0;
  int64_t applied_plan = 0;
  StepOutput output;
  std::vector<Rejection> rejected;
  int32_t active_requests = 0;
  int32_t free_slots = 0;
  int64_t free_kv_tokens = 0;
  int64_t local_ns = 0;
  int64_t barrier_wait_ns = 0;
  std::optional<int64_t> gap_ns;
  GroupView group;
  bool group_idle = false;
  std::string barrier_error;
  std::vector<int32_t> missing_ranks;
  // Present only if changed since the last report.
  std::optional<StepCostEstimate> cost;
  std::optional<BatchCost> batch_cost;
  std::optional<EnergyReading> energy;
  // Set by engines that compute prompts in chunks.
  std::optional<PrefillState> prefill;
};

struct Leave {
  std::string reason;
};

using OutMessage = std::variant<Hello, EpochReady, StepReport, Leave, Announcement>;

}  // namespace bfio::worker
