#include "worker/pipeline/block_trial.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "common/base/clock.h"
#include "worker/engine/cpu/forward.h"
#include "worker/engine/cpu/part_memory.h"

namespace bfio::worker {
namespace {

// The first is slower: memory is touched for the first time.
constexpr int kLeastRuns = 3;

double LeastSeconds(cpu::Forward& forward, int32_t rows, int64_t hidden, absl::Duration budget) {
  StepPlan plan;
  plan.Clear();
  std::vector<PageId> pages(static_cast<size_t>(forward.cache().shape().pages));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<PageId>(i);
  plan.AddRun(0, 0, std::vector<uint32_t>(static_cast<size_t>(rows)), pages, true);
  const std::vector<float> state(static_cast<size_t>(rows * hidden), 0.5F);
  double least = std::numeric_limits<double>::infinity();
  const absl::Time end = MonotonicNow() + budget;
  for (int run = 0; run < kLeastRuns || MonotonicNow() < end; ++run) {
    const absl::Time before = MonotonicNow();
    forward.RunBlocks(plan, state);
    least = std::min(least, absl::ToDoubleSeconds(MonotonicNow() - before));
  }
  return std::max(least, 1e-9);
}

}  // namespace

absl::StatusOr<BlockTime> MeasureBlock(std::shared_ptr<const Model> model, cpu::Storage weights,
                                       const CpuOptions& options, absl::Duration budget) {
  const int32_t page = options.decode.page_tokens;
  const auto shape = cpu::PartShape(model->config(), 1, page, (kTrialRows + page - 1) / page, options.kv);
  auto cache = cpu::KvCache::Create(shape);
  if (!cache.ok()) return cache.status();
  const int64_t hidden = model->config().hidden;
  cpu::Forward forward(cpu::Weights::Make(std::move(model), weights, ModelPart{{0, 1}, false}),
                       BlockRange{0, 1}, *std::move(cache), cpu::BestKernels(), options.threads, kTrialRows,
                       1);
  BlockTime time;
  time.step_s = LeastSeconds(forward, 1, hidden, budget / 2);
  const double rows = LeastSeconds(forward, kTrialRows, hidden, budget / 2);
  time.row_s = std::max(0.0, (rows - time.step_s) / (kTrialRows - 1));
  return time;
}

}  // namespace bfio::worker
