// The head of a chain of several servers, as the backend of a decode engine: all other code sees the chain as
// one worker. (A chain of one server uses an ordinary backend.)
//
// Purpose: embeds a step's rows, runs the head's own blocks, sends the rows around the chain in several
// micro-batches, and draws tokens from the result. The head has embedding, final norm and lm_head, so only
// hidden rows travel between servers, and only those that a token is drawn from return. Rows do not depend on
// each other, so dividing a step changes no bit. Threads: used by one thread (backend.h).
//
// Errors: a chain that fails or times out fails the step, which ends this engine permanently; the router
// replays its requests elsewhere.
#ifndef BFIO_CHAINS_PIPELINE_CHAIN_BACKEND_H_
#define BFIO_CHAINS_PIPELINE_CHAIN_BACKEND_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "chains/pipeline/neighbours.h"
#include "chains/pipeline/returns.h"
#include "worker/engine/decode/part_backend.h"

namespace bfio::worker {

struct ChainBackendOptions {
  // Number of micro-batches of a step, or its rows if it has fewer; 1..kMaxInFlight.
  int32_t micro_batches = 1;
  // Upper bound of the time that a step's result may take around the chain.
  absl::Duration timeout = absl::Seconds(10);
};

class ChainBackend final : public Backend {
 public:
  // Results arrive at `returns`. REQUIRES: `head` has the ends and the chain's first blocks.
  ChainBackend(const ChainBackendOptions& options, std::unique_ptr<PartBackend> head,
               std::unique_ptr<Outlet> outlet, std::shared_ptr<Returns> returns);

  absl::string_view name() const override { return head_->name(); }
  const ModelFacts& facts() const override { return head_->facts(); }
  absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override;

 private:
  // Number of micro-batches of a step with `rows` rows.
  absl::StatusOr<int64_t> Pieces(int64_t rows) const;
  absl::Status RunThroughChain(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn);
  absl::Status Send(StepPlan piece, absl::Span<const float> hidden);

  const ChainBackendOptions options_;
  const std::unique_ptr<PartBackend> head_;
  const std::unique_ptr<Outlet> outlet_;
  const std::shared_ptr<Returns> returns_;
};

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_PIPELINE_CHAIN_BACKEND_H_
