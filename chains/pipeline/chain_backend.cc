#include "chains/pipeline/chain_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace bfio::worker {

ChainBackend::ChainBackend(const ChainBackendOptions& options, std::unique_ptr<PartBackend> head,
                           std::unique_ptr<Outlet> outlet, std::shared_ptr<Returns> returns)
    : options_(options),
      head_(std::move(head)),
      outlet_(std::move(outlet)),
      returns_(std::move(returns)),
      depth_(static_cast<int32_t>(std::clamp<int64_t>(
          options.micro_batches, 1,
          std::max<int64_t>(1, kMaxInFlight / std::max<int64_t>(1, Messages(options.max_rows)))))) {}

int64_t ChainBackend::Messages(int64_t rows) const {
  const int64_t row_bytes = head_->hidden() * static_cast<int64_t>(sizeof(float));
  const int64_t most_rows = std::max<int64_t>(1, kMaxHiddenBytes / row_bytes);
  return (rows + most_rows - 1) / most_rows;
}

absl::Status ChainBackend::EndIfFailed(const absl::Status& status) {
  if (!status.ok()) returns_->OnLost(status);
  return status;
}

absl::Status ChainBackend::Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) {
  if (plan.rows() == 0) return absl::OkStatus();
  if (absl::Status status = Start(plan); !status.ok()) return status;
  return Collect(draws, drawn);
}

absl::Status ChainBackend::Start(const StepPlan& plan) {
  return EndIfFailed(Send(plan));
}

absl::Status ChainBackend::Collect(absl::Span<const Draw> draws, absl::Span<Drawn> drawn) {
  return EndIfFailed(Receive(draws, drawn));
}

absl::Status ChainBackend::Send(const StepPlan& plan) {
  const int64_t messages = Messages(plan.rows());
  if (messages > kMaxInFlight) {
    return absl::FailedPreconditionError(absl::StrCat("a step of ", plan.rows(), " rows needs more than ",
                                                      kMaxInFlight,
                                                      " messages per chain; lower --token_budget"));
  }
  UnderWay& sent = under_way_.emplace_back();
  sent.deadline = MonotonicNow() + options_.timeout;
  for (StepPlan& piece : CutPlan(plan, messages)) {
    sent.draws.push_back(static_cast<size_t>(piece.draws()));
    const auto hidden = head_->RunHead(piece);
    if (!hidden.ok()) return hidden.status();
    if (absl::Status status = SendMessage(std::move(piece), *hidden); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ChainBackend::SendMessage(StepPlan piece, absl::Span<const float> hidden) {
  const auto width = static_cast<size_t>(head_->hidden());
  MicroBatch batch;
  batch.number = returns_->Expect(static_cast<size_t>(piece.draws()) * width);
  batch.plan = std::move(piece);
  batch.hidden.assign(hidden.begin(), hidden.end());
  return outlet_->Send(std::move(batch));
}

absl::Status ChainBackend::Receive(absl::Span<const Draw> draws, absl::Span<Drawn> drawn) {
  const UnderWay oldest = std::move(under_way_.front());
  under_way_.pop_front();
  size_t first = 0;
  for (const size_t count : oldest.draws) {
    const auto hidden = returns_->Await(oldest.deadline);
    if (!hidden.ok()) return hidden.status();
    absl::Status status = head_->DrawFrom(*hidden, draws.subspan(first, count), drawn.subspan(first, count));
    if (!status.ok()) return status;
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace bfio::worker
