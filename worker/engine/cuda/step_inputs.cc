#include "worker/engine/cuda/step_inputs.h"

#include <algorithm>
#include <cstring>

namespace bfio::worker::gpu {
namespace {

constexpr int64_t kArrayAlignment = 16;
// A larger factor times the distance of two logits could overflow fp32.
constexpr double kColdest = 1e30;

template <typename T>
void Copy(absl::Span<const T> from, T* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size() * sizeof(T));
}

DrawParams ParamsOf(const Draw& draw) {
  DrawParams params;
  const Sampling& sampling = draw.sampling;
  if (sampling.temperature > 0) {
    // Clamped to stay above 0, which means greedy, even at extreme temperatures.
    params.inverse_temperature =
        static_cast<float>(std::clamp(1 / sampling.temperature, 1 / kColdest, kColdest));
    params.uniform = DrawUniform(sampling.seed, draw.index);
  }
  params.top_p = sampling.top_p;
  params.top_k = sampling.top_k.value_or(0);
  static_assert(kMaxTop == kMaxLogprobs);
  params.top = sampling.logprobs.value_or(0);
  return params;
}

// Appends the draw's end tokens to numbers[used..]: each once, only those in the vocabulary, up to the
// capacity. Returns the new `used`.
int64_t AddEnds(const Draw& draw, int64_t vocab, int64_t limit, int32_t* numbers, int64_t used) {
  const int64_t first = used;
  for (const uint32_t id : draw.ends) {
    if (used == limit) break;
    if (int64_t{id} >= vocab) continue;
    const auto number = static_cast<int32_t>(id);
    if (std::find(numbers + first, numbers + used, number) == numbers + used) numbers[used++] = number;
  }
  return used;
}

// Fills in the draws, and appends their end tokens after `used` numbers. Returns the new `used`.
int64_t FillDraws(absl::Span<const Draw> draws, int64_t vocab, const StepLayout& layout, const StepInputs& to,
                  int64_t used) {
  for (size_t i = 0; i < draws.size(); ++i) {
    DrawParams params = ParamsOf(draws[i]);
    params.first_end = static_cast<int32_t>(used);
    used = AddEnds(draws[i], vocab, layout.number_limit(), to.numbers, used);
    params.end_count = static_cast<int32_t>(used) - params.first_end;
    to.draws[i] = params;
  }
  return used;
}

constexpr int32_t kFirstHalfway = 64;

}  // namespace

StepLayout::StepLayout(const StepLimits& limits) {
  int64_t end = 0;
  const auto place = [&](int64_t count, size_t size) {
    const int64_t at = end;
    end =
        (end + count * static_cast<int64_t>(size) + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
    return at;
  };
  counts_ = place(1, sizeof(StepCounts));
  attention_counts_ = place(1, sizeof(AttentionCounts));
  token_ids_ = place(limits.rows, sizeof(uint32_t));
  positions_ = place(limits.rows, sizeof(int32_t));
  row_pages_ = place(limits.rows, sizeof(int32_t));
  logit_rows_ = place(limits.draws, sizeof(int32_t));
  draws_ = place(limits.draws, sizeof(DrawParams));
  combines_ = place(limits.attention.combines, sizeof(AttentionCombine));
  long_items_ = place(limits.attention.long_items, sizeof(AttentionItem));
  short_items_ = place(limits.attention.short_items, sizeof(AttentionItem));
  numbers_ = end;
  number_limit_ = limits.pages + kEndsPerDraw * limits.draws;
}

StepInputs StepLayout::At(void* block) const {
  const auto at = [&]<typename T>(int64_t offset, T*& pointer) {
    pointer = reinterpret_cast<T*>(static_cast<std::byte*>(block) + offset);
  };
  StepInputs inputs;
  at(counts_, inputs.counts);
  at(attention_counts_, inputs.attention_counts);
  at(token_ids_, inputs.token_ids);
  at(positions_, inputs.positions);
  at(row_pages_, inputs.row_pages);
  at(logit_rows_, inputs.logit_rows);
  at(draws_, inputs.draws);
  at(combines_, inputs.combines);
  at(long_items_, inputs.long_items);
  at(short_items_, inputs.short_items);
  at(numbers_, inputs.numbers);
  return inputs;
}

int64_t FillStepInputs(const StepPlan& plan, const AttentionPlan& attention, absl::Span<const Draw> draws,
                       int64_t vocab, int32_t page_tokens, const StepLayout& layout, void* block) {
  const StepInputs to = layout.At(block);
  *to.counts = {plan.rows(), plan.draws()};
  *to.attention_counts = attention.counts();
  Copy<uint32_t>(plan.token_ids, to.token_ids);
  Copy<int32_t>(plan.positions, to.positions);
  for (int32_t row = 0; row < plan.rows(); ++row) {
    to.row_pages[row] = plan.pages[plan.run_pages[plan.row_runs[row]] + plan.positions[row] / page_tokens];
  }
  Copy<int32_t>(plan.logit_rows, to.logit_rows);
  Copy(attention.combines(), to.combines);
  Copy(attention.long_items(), to.long_items);
  Copy(attention.short_items(), to.short_items);
  Copy<int32_t>(plan.pages, to.numbers);
  const auto used = static_cast<int64_t>(plan.pages.size());
  return layout.BytesWith(FillDraws(draws, vocab, layout, to, used));
}

int64_t FillDrawInputs(absl::Span<const Draw> draws, int64_t vocab, const StepLayout& layout, void* block) {
  const StepInputs to = layout.At(block);
  const auto rows = static_cast<int32_t>(draws.size());
  *to.counts = {rows, rows};
  *to.attention_counts = {};
  return layout.BytesWith(FillDraws(draws, vocab, layout, to, 0));
}

RowBuckets::RowBuckets(int32_t max_rows) {
  for (int64_t size = 1; size < max_rows; size *= 2) {
    sizes_.push_back(static_cast<int32_t>(size));
    if (size >= kFirstHalfway && size / 2 * 3 < max_rows)
      sizes_.push_back(static_cast<int32_t>(size / 2 * 3));
  }
  sizes_.push_back(max_rows);
}

int RowBuckets::Index(int32_t rows) const {
  return static_cast<int>(std::lower_bound(sizes_.begin(), sizes_.end(), rows) - sizes_.begin());
}

}  // namespace bfio::worker::gpu
