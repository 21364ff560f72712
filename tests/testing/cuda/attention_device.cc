#include "tests/testing/cuda/attention_device.h"

namespace bfio::testing {

using worker::gpu::AttentionArgs;
using worker::gpu::AttentionCombine;
using worker::gpu::AttentionCounts;
using worker::gpu::AttentionItem;
using worker::gpu::Bf16;

DeviceStep::DeviceStep(const worker::gpu::AttentionShape& shape, const worker::StepPlan& step,
                       int64_t kv_tokens, int32_t blocks, const std::vector<Bf16>& queries, int32_t q_stride)
    : shape_(shape), q_stride_(q_stride), plan_(shape, {step.rows(), step.runs(), kv_tokens, blocks}) {
  if (const absl::Status status = plan_.Build(step); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(1);
  }
  const AttentionCounts counts = plan_.counts();
  counts_ = std::make_unique<DeviceArray<AttentionCounts>>(absl::MakeConstSpan(&counts, 1));
  short_items_ = std::make_unique<DeviceArray<AttentionItem>>(plan_.short_items());
  long_items_ = std::make_unique<DeviceArray<AttentionItem>>(plan_.long_items());
  combines_ = std::make_unique<DeviceArray<AttentionCombine>>(plan_.combines());
  pages_ = std::make_unique<DeviceArray<int32_t>>(absl::MakeConstSpan(step.pages));
  queries_ = std::make_unique<DeviceArray<Bf16>>(absl::MakeConstSpan(queries));
  const int64_t row_size = shape.q_heads * shape.head_dim;
  out_ = std::make_unique<DeviceArray<Bf16>>(step.rows() * row_size);
  part_outputs_ = std::make_unique<DeviceArray<float>>(plan_.parts() * row_size);
  part_sums_ = std::make_unique<DeviceArray<float>>(plan_.parts() * shape.q_heads * 2);
  // Filled with NaN, so that elements that are not written are detected.
  out_->Fill(0xff);
  part_outputs_->Fill(0xff);
  part_sums_->Fill(0xff);
}

AttentionArgs DeviceStep::Args() const {
  AttentionArgs args;
  args.counts = counts_->data();
  args.short_items = short_items_->data();
  args.long_items = long_items_->data();
  args.combines = combines_->data();
  args.pages = pages_->data();
  args.queries = queries_->data();
  args.q_stride = q_stride_;
  args.q_heads = shape_.q_heads;
  args.kv = {shape_.kv_heads, shape_.page_tokens, shape_.head_dim};
  args.out = out_->data();
  args.part_outputs = part_outputs_->data();
  args.part_sums = part_sums_->data();
  return args;
}

std::string RunAttentionOnDevice(const AttentionCase& attention_case, std::vector<Bf16>* out) {
  const AttentionData data = MakeAttentionData(attention_case);
  int64_t kv_tokens = 0;
  for (const AttentionRun& run : attention_case.runs) kv_tokens += run.first + run.tokens;
  const DeviceStep step(attention_case.shape, data.step, kv_tokens, attention_case.blocks, data.queries,
                        data.q_stride);
  const DeviceArray<Bf16> keys(data.keys), values(data.values);
  AttentionArgs args = step.Args();
  args.keys = keys.data();
  args.values = values.data();
  args.scale = data.scale;
  worker::gpu::AttentionGrid grid = attention_case.grid, full;
  if (const char* error = worker::gpu::FullAttentionGrid(attention_case.shape.head_dim, &full)) return error;
  // Some devices do not support three stages.
  grid.stages = std::min(grid.stages, full.stages);
  if (const char* error = worker::gpu::LaunchAttention(args, grid, nullptr)) return error;
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess)
    return cudaGetErrorString(error);
  *out = step.out().Content();
  return "";
}

}  // namespace bfio::testing
