#include "chains/pipeline/stage.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::worker {

Stage::Stage(std::unique_ptr<PartBackend> part, const BatchBounds& bounds, bool last,
             std::unique_ptr<Outlet> outlet, std::function<void(const absl::Status&)> on_broken)
    : part_(std::move(part)),
      bounds_(bounds),
      last_(last),
      outlet_(std::move(outlet)),
      on_broken_(std::move(on_broken)),
      thread_([this] { Run(); }) {}

Stage::~Stage() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Status Stage::Take(MicroBatch batch) {
  absl::Status status = CheckMicroBatch(batch, bounds_);
  if (status.ok()) {
    MutexLock lock(&mutex_);
    if (broken_) return absl::UnavailableError("the chain is broken");
    if (batch.number != number_ + 1) {
      status = absl::InvalidArgumentError(
          absl::StrCat("micro-batch ", batch.number, " followed micro-batch ", number_));
    } else if (waiting_.size() >= static_cast<size_t>(kMaxInFlight)) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("more than ", kMaxInFlight, " micro-batches are in flight"));
    } else {
      number_ = batch.number;
      waiting_.push_back(std::move(batch));
      return absl::OkStatus();
    }
  }
  Break(status);
  return status;
}

void Stage::Break(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    if (broken_ || stopping_) return;
    broken_ = true;
    waiting_.clear();
  }
  on_broken_(why);
}

bool Stage::Next(MicroBatch& batch) {
  MutexLock lock(&mutex_);
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); };
  mutex_.Await(absl::Condition(&ready));
  if (stopping_) return false;
  batch = std::move(waiting_.front());
  waiting_.pop_front();
  return true;
}

void Stage::Run() {
  MicroBatch batch;
  while (Next(batch)) {
    if (absl::Status status = Compute(std::move(batch)); !status.ok()) Break(status);
  }
}

absl::Status Stage::Compute(MicroBatch batch) {
  const auto hidden = part_->RunBlocks(batch.plan, batch.hidden);
  if (!hidden.ok()) return hidden.status();
  if (last_) {
    batch.hidden = WantedRows(batch.plan, *hidden);
    batch.plan.Clear();
  } else {
    batch.hidden.assign(hidden->begin(), hidden->end());
  }
  {
    MutexLock lock(&mutex_);
    if (broken_ || stopping_) return absl::OkStatus();
  }
  return outlet_->Send(std::move(batch));
}

}  // namespace bfio::worker
