// The sim engine: a DecodeEngine over a backend without a model, which sleeps instead of computing.
//
// Purpose: runs the real router, barrier and links on machines without GPUs. A step sleeps for the time that
// the cost model gives for its load, so many workers fit on few cores. Token streams are deterministic
// (sim_tokens.h). Prompts are computed whole in their first step; with `plan`, in chunks as in the other
// engines. Threads: as in engine.h.
#ifndef BFIO_WORKER_ENGINE_SIM_SIM_ENGINE_H_
#define BFIO_WORKER_ENGINE_SIM_SIM_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cost/step_time.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/sim/sim_tokens.h"
#include "worker/engine/sim/step_timer.h"
#include "worker/scheduler/batch_planner.h"

namespace bfio::worker {

struct SimOptions {
  EngineLimits limits;
  StepCost cost;
  // Probability that a token is the end-of-sequence token, in [0, 1). It is part of the model's identity
  // (SimModelName): workers that differ in it are placed in different groups.
  double eos_probability = 0;
  // The sampling seed of a request determines its number of tokens, unless the request ignores ends: only the
  // client has the length in advance. Also part of the model's identity.
  bool ends_by_seed = false;
  // Token ids are below it. Also part of the model's identity.
  int32_t vocabulary = kSimVocabulary;
  // What a step contains; absent: all decodes, and every prompt whole in its first step.
  // max_sequence_tokens is taken from the limits.
  std::optional<BatchPlannerOptions> plan;
};

// INVALID_ARGUMENT when an option is out of range. A null `timer` means real time.
absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeSimEngine(const SimOptions& options,
                                                            std::unique_ptr<StepTimer> timer = nullptr);

// Identifies everything that tokens depend on besides the request: a worker with another name would continue
// a request with other tokens. Does not contain speed and capacity.
std::string SimModelName(const SimOptions& options);

class SimBackend final : public Backend {
 public:
  // REQUIRES: options are in range; timer is not null.
  SimBackend(const SimOptions& options, std::unique_ptr<StepTimer> timer);

  absl::string_view name() const override { return "sim"; }
  const ModelFacts& facts() const override { return facts_; }
  void Begin(SequenceIndex sequence, const SequenceRequest& request) override;
  absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override;

 private:
  int64_t DurationNs(const StepPlan& plan);

  const SimOptions options_;
  const ModelFacts facts_;
  const std::unique_ptr<StepTimer> timer_;
  // By index in the page table.
  struct Stream {
    uint64_t key = 0;
    bool finite = true;
    // Index of its end-of-sequence token; -1: by eos_probability.
    int64_t end = -1;
  };
  std::vector<Stream> streams_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_SIM_SIM_ENGINE_H_
