#include "chains/pipeline/stage.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace bfio::worker {
namespace {

// The first run is slower, because memory is touched for the first time.
constexpr int kLeastRuns = 3;

absl::StatusOr<double> LeastSeconds(PartBackend& part, int32_t rows, int64_t pages, absl::Duration budget) {
  StepPlan plan;
  plan.Clear();
  std::vector<PageId> all(static_cast<size_t>(pages));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<PageId>(i);
  plan.AddRun(0, 0, std::vector<uint32_t>(static_cast<size_t>(rows)), all, true);
  const std::vector<float> state(static_cast<size_t>(rows * part.hidden()), 0.5F);
  double least = std::numeric_limits<double>::infinity();
  const absl::Time end = MonotonicNow() + budget;
  for (int run = 0; run < kLeastRuns || MonotonicNow() < end; ++run) {
    const absl::Time before = MonotonicNow();
    if (auto hidden = part.RunBlocks(plan, state); !hidden.ok()) return hidden.status();
    least = std::min(least, absl::ToDoubleSeconds(MonotonicNow() - before));
  }
  return std::max(least, 1e-9);
}

}  // namespace

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

absl::StatusOr<BlockTime> MeasureBlock(PartSource& source, DecodeOptions options, absl::Duration budget) {
  options.limits.slots = 1;
  options.limits.kv_tokens = options.limits.max_sequence_tokens = kTrialRows;
  options.step_tokens = kTrialRows;
  options.token_budget = 0;
  const auto part = source.Make(options, {{0, 1}, false}, {0, 1});
  if (!part.ok()) return part.status();
  const int64_t pages = (kTrialRows + options.page_tokens - 1) / options.page_tokens;
  const auto one = LeastSeconds(**part, 1, pages, budget / 2);
  if (!one.ok()) return one.status();
  const auto rows = LeastSeconds(**part, kTrialRows, pages, budget / 2);
  if (!rows.ok()) return rows.status();
  return BlockTime{*one, std::max(0.0, (*rows - *one) / (kTrialRows - 1))};
}

}  // namespace bfio::worker
