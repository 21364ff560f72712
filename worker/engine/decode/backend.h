// What runs a step: the CPU's or the GPU's half of a decode engine, or a sleep (worker/engine/sim).
//
// Purpose: the line between "what is to be done" (decode_engine.h: host only, the same for all devices) and
// "doing it". Threads: used by one thread.
#ifndef BFIO_WORKER_ENGINE_DECODE_BACKEND_H_
#define BFIO_WORKER_ENGINE_DECODE_BACKEND_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/engine/sampling/sampler.h"
#include "worker/scheduler/step_plan.h"

namespace bfio::worker {

class StepPeers;

// The model's parameters that a decode engine needs.
struct ModelFacts {
  int64_t vocab = 0;
  // Prompt + output of one request at most.
  int64_t max_positions = 0;
  std::vector<uint32_t> eos_token_ids;
  // False: tokens depend on the request and their index alone. The engine then keeps no token ids: plans have
  // no rows, a replay of synthetic load continues at once, and there are no log probabilities.
  bool has_model = true;
  // False: Drawn::end_probability says nothing.
  bool gives_hints = true;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "sim", "cpu" or "cuda".
  virtual absl::string_view name() const = 0;
  virtual const ModelFacts& facts() const = 0;

  // A request was admitted: draws for it name this index until it ends. For backends without a model.
  virtual void Begin(SequenceIndex /*sequence*/, const SequenceRequest& /*request*/) {}

  // Computes the rows of `plan`, leaves their keys and values in the pages named there, and draws the token
  // after each of its logit_rows. A row's result depends on its sequence's tokens alone: not on the other
  // rows, nor on how its sequence was cut into steps. A plan without rows is legal. REQUIRES: draws and drawn
  // have plan.draws() elements, or without a model as many as each other. An error means that the backend is
  // broken permanently; a row whose logits are not finite is none (Drawn::finite).
  virtual absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) = 0;

  // A backend that shares the MLP out over the group (--mlp=tp) has a signature of what all ranks must have
  // in common, and runs its plans by RunTogether: the same tokens, and errors of the peers besides, after
  // which the plan may be run again.
  virtual std::optional<uint64_t> signature() const { return std::nullopt; }
  // As Engine's.
  virtual absl::Status EnterGroup(const StepPeers& /*peers*/) { return absl::OkStatus(); }
  virtual absl::Status RunTogether(const StepPlan& plan, absl::Span<const Draw> draws,
                                   absl::Span<Drawn> drawn, StepPeers& peers) {
    return absl::UnimplementedError("this backend runs by itself");
  }
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_DECODE_BACKEND_H_
