// The device-specific half of a decode engine: runs a step on the CPU, on the GPU, or as a sleep
// (worker/engine/sim). Separates what a step computes (decode_engine.h: host code, the same for all devices)
// from how a device computes it. Threads: used by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/engine/sampling/sampler.h"
#include "worker/scheduler/step_plan.h"

namespace bfio::worker {

// The model's parameters that a decode engine needs.
struct ModelFacts {
  int64_t vocab = 0;
  // Upper bound of a request's prompt + output, in tokens.
  int64_t max_positions = 0;
  std::vector<uint32_t> eos_token_ids;
  // False: a token depends only on the request and the token's index. The engine then keeps no token ids:
  // plans have no rows, a replay of synthetic load continues at once, and there are no log probabilities.
  bool has_model = true;
  // False: Drawn::end_probability is not set.
  bool gives_hints = true;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "sim", "cpu" or "cuda".
  virtual absl::string_view name() const = 0;
  virtual const ModelFacts& facts() const = 0;

  // Called when a request is admitted. Until it ends, its draws name this index. Used by backends without a
  // model.
  virtual void Begin(SequenceIndex /*sequence*/, const SequenceRequest& /*request*/) {}

  // Computes the rows of `plan`, writes their keys and values to the pages named there, and draws the token
  // that follows each of its logit_rows. A row's result depends only on its sequence's tokens: not on the
  // other rows, nor on how the sequence was divided into steps. A plan without rows is legal. REQUIRES: draws
  // and drawn have plan.draws() elements each; without a model, equally many. An error means that the backend
  // is permanently broken; a row with non-finite logits is not an error (Drawn::finite).
  virtual absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) = 0;

  // Plans that may be under way at the same time. 1: plans are run one after another, by Run. More: by Start
  // and Collect, which together do what Run does. A sequence may be released while its rows are under way:
  // plans take effect in the order of their starts, so its pages may be used by the next plan.
  virtual int32_t depth() const { return 1; }
  // Begins a plan with at least one row. REQUIRES: fewer than depth() plans are under way.
  virtual absl::Status Start(const StepPlan& /*plan*/) {
    return absl::UnimplementedError("this backend runs one plan at a time");
  }
  // Waits for the oldest plan under way and draws the token that follows each of its logit_rows. REQUIRES:
  // draws and drawn have as many elements as that plan has draws.
  virtual absl::Status Collect(absl::Span<const Draw> /*draws*/, absl::Span<Drawn> /*drawn*/) {
    return absl::UnimplementedError("this backend runs one plan at a time");
  }
};

}  // namespace bfio::worker
