// The head of a chain of several servers, as the backend of a decode engine: all other code treats the chain
// as one worker. (A chain of one server uses an ordinary backend.)
//
// Embeds a plan's rows, runs the head's own blocks, sends the rows around the chain, and draws tokens from
// the result. The head has embedding, final norm and lm_head, so only hidden rows travel between servers, and
// only those that a token is drawn from return. Several plans are under way at a time (Backend::depth), so
// that the servers work on different ones: the engine divides its steps into that many (decode_engine.h).
// Rows do not depend on each other, so dividing a step changes no bit. All servers process plans in the order
// of their starts. Threads: used by one thread (backend.h). Errors: a chain that fails or times out fails the
// step, which ends this engine permanently; the router replays its requests elsewhere.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "chains/pipeline/returns.h"
#include "chains/pipeline/stage.h"
#include "worker/engine/decode/part_backend.h"

namespace bfio::worker {

struct ChainBackendOptions {
  // Plans that may be under way at a time; 1..kMaxInFlight. Fewer if plans of max_rows rows are too large for
  // one message.
  int32_t micro_batches = 1;
  // Upper bound of a plan's rows.
  int64_t max_rows = 0;
  // Upper bound of the time that a plan's result may take around the chain.
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
  int32_t depth() const override { return depth_; }
  absl::Status Start(const StepPlan& plan) override;
  absl::Status Collect(absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override;

 private:
  struct UnderWay {
    // The draws of each of its messages.
    std::vector<size_t> draws;
    absl::Time deadline;
  };

  // Number of messages that a plan with `rows` rows takes.
  int64_t Messages(int64_t rows) const;
  absl::Status Send(const StepPlan& plan);
  absl::Status Receive(absl::Span<const Draw> draws, absl::Span<Drawn> drawn);
  absl::Status SendMessage(StepPlan piece, absl::Span<const float> hidden);
  // The other servers' caches contain tokens of plans under way, so none may follow one that failed.
  absl::Status EndIfFailed(const absl::Status& status);

  const ChainBackendOptions options_;
  const std::unique_ptr<PartBackend> head_;
  const std::unique_ptr<Outlet> outlet_;
  const std::shared_ptr<Returns> returns_;
  const int32_t depth_;
  // In the order of their starts, at most depth_.
  std::deque<UnderWay> under_way_;
};

}  // namespace bfio::worker
