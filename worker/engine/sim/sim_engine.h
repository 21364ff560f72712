// The sim engine: no model, but the time, the memory and the token stream of one.
//
// Purpose: to run the real router, barrier and links on machines without GPUs. A step really takes the time
// that the cost model gives for its load, by sleeping, so many workers fit on few cores. Token streams are
// deterministic (sim_tokens.h). Prompts are computed whole in their first step, unless there is a planner:
// then in pieces as the real engines take them. Threads: as engine.h says.
#ifndef BFIO_WORKER_ENGINE_SIM_SIM_ENGINE_H_
#define BFIO_WORKER_ENGINE_SIM_SIM_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/rng.h"
#include "common/cost/step_time.h"
#include "worker/engine/engine.h"
#include "worker/engine/sim/step_timer.h"
#include "worker/scheduler/batch_planner.h"

namespace bfio::worker {

struct SimOptions {
  EngineLimits limits;
  StepCost cost;
  // Standard deviation of a step's time, relative to it; draws beyond 3 deviations are cut. In [0, 0.3].
  double jitter = 0;
  // Probability that a token is the end-of-sequence token, in [0, 1). All workers of a group should agree, or
  // a replay may end elsewhere.
  double eos_probability = 0;
  // Of the jitter only.
  uint64_t seed = 0;
  // What a step contains; none: every prompt whole in its first step, beside all decodes. slots and
  // max_sequence_tokens are the limits'.
  std::optional<BatchPlannerOptions> plan;
};

class SimEngine final : public Engine {
 public:
  // INVALID_ARGUMENT when an option is out of range. `timer` may be null: real time.
  static absl::StatusOr<std::unique_ptr<SimEngine>> Create(const SimOptions& options,
                                                           std::unique_ptr<StepTimer> timer = nullptr);

  absl::string_view name() const override { return "sim"; }
  const EngineLimits& limits() const override { return options_.limits; }
  absl::Status Admit(const SequenceRequest& request) override;
  bool Cancel(Handle handle) override;
  absl::Status Step(StepOutput& out) override;
  int32_t active() const override { return static_cast<int32_t>(active_.size()); }
  int32_t free_slots() const override { return options_.limits.slots - active(); }
  int64_t free_kv_tokens() const override { return free_kv_tokens_; }
  std::vector<ResidentSequence> resident() const override;
  void SetPrefillPiece(std::optional<int64_t> tokens) override;
  std::optional<PrefillState> prefill_state() const override;

 private:
  struct Sequence {
    Handle handle;
    uint64_t stream_key;
    int64_t prompt_length;
    int64_t first_index;
    int64_t max_new_tokens;
    int64_t reserved_kv_tokens;
    bool kv_on_demand;
    int64_t generated;
    std::vector<uint32_t> stop_token_ids;
    bool ignore_eos;
    // Of the prompt, what is computed.
    int64_t prefilled;
    // Its name for the planner.
    int64_t number;
    int64_t passed_over;
    int64_t priority;
    // In the present step.
    bool makes_token;

    BatchRequest Left() const {
      return {.prefill_left = prompt_length - prefilled,
              .decode_left = max_new_tokens - generated,
              .priority = priority,
              .passed_over = passed_over};
    }
  };

  SimEngine(const SimOptions& options, std::unique_ptr<StepTimer> timer, std::optional<BatchPlanner> planner);

  // Says of every sequence what the step does for it.
  void ChooseWork(StepOutput& out);

  // Reserves what the step needs; takes out who has to go for it.
  void ReserveStep(StepOutput& out);
  // Makes one token, if it is due; true when it is the last.
  bool Advance(Sequence& sequence, StepOutput& out);
  int64_t DurationNs(const StepOutput& out);

  const SimOptions options_;
  const std::unique_ptr<StepTimer> timer_;
  Rng jitter_;
  // In the order of admission.
  std::vector<Sequence> active_;
  int64_t free_kv_tokens_;
  std::optional<BatchPlanner> planner_;
  int64_t admitted_ = 0;
  // Scratch.
  std::vector<BatchRequest> left_;
  std::vector<Chunk> chunks_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_SIM_SIM_ENGINE_H_
