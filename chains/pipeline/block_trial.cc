#include "chains/pipeline/block_trial.h"

#include <algorithm>
#include <limits>
#include <vector>

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
