#include "tests/testing/cuda/attention_run.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#ifndef BFIO_KERNELS_ON_GPU
#include "worker/engine/cuda/kernels/attention_launch.cuh"

namespace bfio::worker::gpu {

const char* LaunchAttention(const AttentionArgs& args, const AttentionGrid& grid, Stream stream) {
  return LaunchAttentionKernels(args, grid, stream);
}

}  // namespace bfio::worker::gpu
#endif

namespace bfio::testing {
namespace {

using worker::gpu::AttentionPlan;
using worker::gpu::Bf16;

AttentionPlan PlanOf(const worker::gpu::AttentionShape& shape, const worker::StepPlan& step,
                     int64_t kv_tokens, int32_t blocks) {
  AttentionPlan plan(shape, {step.rows(), step.runs(), kv_tokens, blocks});
  if (const absl::Status status = plan.Build(step); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(1);
  }
  return plan;
}

template <class T>
std::vector<T> Copied(absl::Span<const T> content) {
  return {content.begin(), content.end()};
}

}  // namespace

DeviceStep::DeviceStep(const worker::gpu::AttentionShape& shape, const worker::StepPlan& step,
                       int64_t kv_tokens, int32_t blocks, const std::vector<Bf16>& queries, int32_t q_stride)
    : shape_(shape),
      q_stride_(q_stride),
      plan_(PlanOf(shape, step, kv_tokens, blocks)),
      counts_("counts", std::vector{plan_.counts()}),
      short_items_("short_items", Copied(plan_.short_items())),
      long_items_("long_items", Copied(plan_.long_items())),
      combines_("combines", Copied(plan_.combines())),
      pages_("pages", step.pages),
      queries_("queries", queries),
      out_("out", static_cast<size_t>(step.rows()) * shape.q_heads * shape.head_dim),
      part_outputs_("part_outputs", static_cast<size_t>(plan_.parts()) * shape.q_heads * shape.head_dim),
      part_sums_("part_sums", static_cast<size_t>(plan_.parts()) * shape.q_heads * 2) {}

worker::gpu::AttentionArgs DeviceStep::Args() const {
  return {.counts = counts_.data(),
          .short_items = short_items_.data(),
          .long_items = long_items_.data(),
          .combines = combines_.data(),
          .pages = pages_.data(),
          .queries = queries_.data(),
          .q_stride = q_stride_,
          .q_heads = shape_.q_heads,
          .kv = {shape_.kv_heads, shape_.page_tokens, shape_.head_dim},
          .out = out_.data(),
          .part_outputs = part_outputs_.data(),
          .part_sums = part_sums_.data()};
}

std::string RunAttention(const AttentionCase& attention_case, std::vector<Bf16>* out) {
  const AttentionData data = MakeAttentionData(attention_case);
  int64_t kv_tokens = 0;
  for (const AttentionRun& run : attention_case.runs) kv_tokens += run.first + run.tokens;
  const DeviceStep step(attention_case.shape, data.step, kv_tokens, attention_case.blocks, data.queries,
                        data.q_stride);
  const DeviceBuffer<Bf16> keys("keys", data.keys), values("values", data.values);
  worker::gpu::AttentionArgs args = step.Args();
  args.keys = keys.data();
  args.values = values.data();
  args.scale = data.scale;
  worker::gpu::AttentionGrid grid = attention_case.grid;
#ifdef BFIO_KERNELS_ON_GPU
  worker::gpu::AttentionGrid full;
  if (const char* error = worker::gpu::FullAttentionGrid(attention_case.shape.head_dim, &full)) return error;
  // Some devices do not support three stages.
  grid.stages = std::min(grid.stages, full.stages);
#endif
  if (const char* error = Finished(worker::gpu::LaunchAttention(args, grid, nullptr))) return error;
  *out = step.out().Content();
  return "";
}

}  // namespace bfio::testing
