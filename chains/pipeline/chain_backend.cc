#include "chains/pipeline/chain_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace bfio::worker {

ChainBackend::ChainBackend(const ChainBackendOptions& options, std::unique_ptr<PartBackend> head,
                           std::unique_ptr<Outlet> outlet, std::shared_ptr<Returns> returns)
    : options_(options), head_(std::move(head)), outlet_(std::move(outlet)), returns_(std::move(returns)) {}

absl::StatusOr<int64_t> ChainBackend::Pieces(int64_t rows) const {
  const int64_t row_bytes = head_->hidden() * static_cast<int64_t>(sizeof(float));
  const int64_t most_rows = std::max<int64_t>(1, kMaxHiddenBytes / row_bytes);
  const int64_t least = (rows + most_rows - 1) / most_rows;
  if (least > kMaxInFlight) {
    return absl::FailedPreconditionError(absl::StrCat("a step of ", rows,
                                                      " rows is more than a chain takes, ",
                                                      most_rows * kMaxInFlight, ": lower the token budget"));
  }
  return std::clamp<int64_t>(options_.micro_batches, least, kMaxInFlight);
}

absl::Status ChainBackend::Send(StepPlan piece, absl::Span<const float> hidden) {
  const auto width = static_cast<size_t>(head_->hidden());
  MicroBatch batch;
  batch.number = returns_->Expect(static_cast<size_t>(piece.draws()) * width);
  batch.plan = std::move(piece);
  batch.hidden.assign(hidden.begin(), hidden.end());
  return outlet_->Send(std::move(batch));
}

absl::Status ChainBackend::Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) {
  if (plan.rows() == 0) return absl::OkStatus();
  absl::Status status = RunThroughChain(plan, draws, drawn);
  // The other servers' caches contain tokens of this step, so no other step may follow it.
  if (!status.ok()) returns_->OnLost(status);
  return status;
}

absl::Status ChainBackend::RunThroughChain(const StepPlan& plan, absl::Span<const Draw> draws,
                                           absl::Span<Drawn> drawn) {
  const absl::StatusOr<int64_t> cuts = Pieces(plan.rows());
  if (!cuts.ok()) return cuts.status();
  std::vector<size_t> pieces;
  for (StepPlan& piece : CutPlan(plan, *cuts)) {
    pieces.push_back(static_cast<size_t>(piece.draws()));
    const auto hidden = head_->RunHead(piece);
    if (!hidden.ok()) return hidden.status();
    if (absl::Status status = Send(std::move(piece), *hidden); !status.ok()) return status;
  }
  const absl::Time deadline = MonotonicNow() + options_.timeout;
  size_t first = 0;
  for (const size_t count : pieces) {
    const auto hidden = returns_->Await(deadline - MonotonicNow());
    if (!hidden.ok()) return hidden.status();
    absl::Status status = head_->DrawFrom(*hidden, draws.subspan(first, count), drawn.subspan(first, count));
    if (!status.ok()) return status;
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace bfio::worker
