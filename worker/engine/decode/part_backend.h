// A backend that may have a part of a model's blocks, on a server of a chain.
//
// Purpose: what the stages and heads of chains (chains/pipeline) run, whatever the device. Hidden rows travel
// between servers in fp32, as all engines keep the residual, so nothing is lost by the cut: where a row's
// products do not depend on its batch (the CPU) a chain gives the bits of one backend with all blocks, on
// GPUs the same to bf16's rounding. Threads: as backend.h.
#ifndef BFIO_WORKER_ENGINE_DECODE_PART_BACKEND_H_
#define BFIO_WORKER_ENGINE_DECODE_PART_BACKEND_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/engine/decode/backend.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/decode/model_part.h"

namespace bfio::worker {

// Run, of a backend with all blocks and the ends alone. After an error a part is broken permanently.
class PartBackend : public Backend {
 public:
  // Width of a hidden row.
  virtual int64_t hidden() const = 0;

  // The plan's tokens through the embedding and the blocks here: hidden rows, [rows, hidden], good until the
  // next call. REQUIRES: the blocks here begin with block 0; the ends are here; the plan has rows.
  virtual absl::StatusOr<absl::Span<const float>> RunHead(const StepPlan& plan) = 0;
  // Hidden rows through the blocks here. The plan's token ids are not looked at. REQUIRES: the plan has rows.
  virtual absl::StatusOr<absl::Span<const float>> RunBlocks(const StepPlan& plan,
                                                            absl::Span<const float> hidden) = 0;
  // Draws a token after each of these hidden rows, which have been through all blocks. REQUIRES: as RunHead;
  // as many draws and drawn as rows, at most as many as slots. A row without finite logits is no error
  // (Drawn::finite).
  virtual absl::Status DrawFrom(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                                absl::Span<Drawn> drawn) = 0;
};

// Makes the parts of the chains that one server is in. Parts that are there at a time share the weights of
// what is hosted. Threads: one.
class PartSource {
 public:
  virtual ~PartSource() = default;

  virtual const ModelBytes& bytes() const = 0;
  // Of `blocks`, with a KV cache for `options`. INVALID_ARGUMENT: an option that the engine does not have;
  // RESOURCE_EXHAUSTED: no memory; UNAVAILABLE: no device. REQUIRES: `hosted` contains `blocks`, and is the
  // same for all parts that are there.
  virtual absl::StatusOr<std::unique_ptr<PartBackend>> Make(const DecodeOptions& options,
                                                            const ModelPart& hosted,
                                                            const BlockRange& blocks) = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_DECODE_PART_BACKEND_H_
