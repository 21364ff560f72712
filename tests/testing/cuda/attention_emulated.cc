#include "tests/testing/cuda/attention_emulated.h"

#include <algorithm>

#include "absl/status/status.h"
#include "simt/memory.h"
#include "worker/engine/cuda/attention_plan.h"
#include "worker/engine/cuda/kernels/attention_launch.cuh"

namespace bfio::worker::gpu {

const char* LaunchAttention(const AttentionArgs& args, const AttentionGrid& grid, Stream stream) {
  return LaunchAttentionKernels(args, grid, stream);
}

}  // namespace bfio::worker::gpu

namespace bfio::testing {
namespace {

template <class T>
simt::DeviceBuffer<T> Upload(const char* name, absl::Span<const T> content) {
  return simt::DeviceBuffer<T>(name, std::vector<T>(content.begin(), content.end()));
}

}  // namespace

std::string EmulateAttention(const AttentionCase& attention_case, std::vector<worker::gpu::Bf16>* out) {
  using worker::gpu::Bf16;
  const auto& shape = attention_case.shape;
  const AttentionData data = MakeAttentionData(attention_case);
  int64_t kv_tokens = 0;
  for (const AttentionRun& run : attention_case.runs) kv_tokens += run.first + run.tokens;
  worker::gpu::AttentionPlan plan(shape,
                                  {data.step.rows(), data.step.runs(), kv_tokens, attention_case.blocks});
  if (const absl::Status status = plan.Build(data.step); !status.ok()) return status.ToString();

  const simt::DeviceBuffer<worker::gpu::AttentionCounts> counts("counts", {plan.counts()});
  const auto short_items = Upload("short_items", plan.short_items());
  const auto long_items = Upload("long_items", plan.long_items());
  const auto combines = Upload("combines", plan.combines());
  const simt::DeviceBuffer<int32_t> pages("pages", data.step.pages);
  const simt::DeviceBuffer<Bf16> queries("queries", data.queries), keys("keys", data.keys),
      values("values", data.values);
  const int64_t row_size = shape.q_heads * shape.head_dim;
  const simt::DeviceBuffer<Bf16> result("out", data.step.rows() * row_size);
  const simt::DeviceBuffer<float> part_outputs("part_outputs", plan.parts() * row_size);
  const simt::DeviceBuffer<float> part_sums("part_sums", plan.parts() * shape.q_heads * 2);

  worker::gpu::AttentionArgs args;
  args.counts = counts.data();
  args.short_items = short_items.data();
  args.long_items = long_items.data();
  args.combines = combines.data();
  args.pages = pages.data();
  args.queries = queries.data();
  args.q_stride = data.q_stride;
  args.q_heads = shape.q_heads;
  args.keys = keys.data();
  args.values = values.data();
  args.kv = {shape.kv_heads, shape.page_tokens, shape.head_dim};
  args.scale = data.scale;
  args.out = result.data();
  args.part_outputs = part_outputs.data();
  args.part_sums = part_sums.data();
  const char* error = worker::gpu::LaunchAttention(args, attention_case.grid, nullptr);
  if (error != nullptr) return error;
  *out = result.Content();
  return "";
}

}  // namespace bfio::testing
