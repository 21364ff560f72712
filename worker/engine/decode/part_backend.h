// A backend that may hold only a part of a model's blocks, on one server of a chain. The stages and heads of
// chains (chains/pipeline) run on it, on any device. Hidden rows travel between servers in fp32, the type in
// which all engines keep the residual stream, so splitting a model loses no precision. Where a row's products
// do not depend on its batch (CPU), a chain gives exactly the bits of one backend with all blocks; on GPUs
// results agree to bf16 rounding. Threads: as backend.h.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/engine/decode/backend.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/decode/model_part.h"

namespace bfio::worker {

// Only a backend with all blocks and the ends supports Run. After an error the part is permanently broken.
class PartBackend : public Backend {
 public:
  // Width of a hidden row.
  virtual int64_t hidden() const = 0;

  // Passes the plan's tokens through the embedding and the blocks here. The hidden rows, [rows, hidden], are
  // valid until the next call. REQUIRES: the blocks here begin with block 0; the ends are here; the plan has
  // rows.
  virtual absl::StatusOr<absl::Span<const float>> RunHead(const StepPlan& plan) = 0;
  // Passes hidden rows through the blocks here. The plan's token ids are not used. REQUIRES: the plan has
  // rows.
  virtual absl::StatusOr<absl::Span<const float>> RunBlocks(const StepPlan& plan,
                                                            absl::Span<const float> hidden) = 0;
  // Draws the token that follows each of these hidden rows, which have passed through all blocks. REQUIRES:
  // the ends are here; draws and drawn are as long as there are rows, at most the number of slots. A row
  // without finite logits is not an error (Drawn::finite).
  virtual absl::Status DrawFrom(absl::Span<const float> hidden, absl::Span<const Draw> draws,
                                absl::Span<Drawn> drawn) = 0;
};

// Makes the parts of the chains that one server belongs to. Parts that exist at the same time share the
// weights of the hosted blocks. Threads: used by one thread.
class PartSource {
 public:
  virtual ~PartSource() = default;

  virtual const ModelBytes& bytes() const = 0;
  // A part with `blocks` and a KV cache for `options`. INVALID_ARGUMENT: an option that the engine does not
  // support; RESOURCE_EXHAUSTED: not enough memory; UNAVAILABLE: no device. REQUIRES: `hosted` contains
  // `blocks`, and is the same for all parts that exist.
  virtual absl::StatusOr<std::unique_ptr<PartBackend>> Make(const DecodeOptions& options,
                                                            const ModelPart& hosted,
                                                            const BlockRange& blocks) = 0;
};

}  // namespace bfio::worker
