// The attention kernels on the emulated GPU of tests/testing/simt, or with BFIO_KERNELS_ON_GPU on a real one.
//
// Threads: as simt/machine.h; on a GPU any, with the current device.
#pragma once

#include <string>
#include <vector>

#include "tests/testing/cuda/attention_case.h"
#include "tests/testing/cuda/kernel_memory.h"

namespace bfio::testing {

// The arrays of a step on the device, except the page pools, exactly as long as its plan requires. They are
// filled with NaN, so that elements that are not written are detected.
class DeviceStep {
 public:
  // `kv_tokens`: total of all runs; `blocks`: AttentionLimits.blocks. Ends the program when the plan is
  // refused.
  DeviceStep(const worker::gpu::AttentionShape& shape, const worker::StepPlan& step, int64_t kv_tokens,
             int32_t blocks, const std::vector<worker::gpu::Bf16>& queries, int32_t q_stride);

  // All arguments except keys, values and scale.
  worker::gpu::AttentionArgs Args() const;
  const worker::gpu::AttentionPlan& plan() const { return plan_; }
  const DeviceBuffer<worker::gpu::Bf16>& out() const { return out_; }

 private:
  const worker::gpu::AttentionShape shape_;
  const int32_t q_stride_;
  const worker::gpu::AttentionPlan plan_;
  const DeviceBuffer<worker::gpu::AttentionCounts> counts_;
  const DeviceBuffer<worker::gpu::AttentionItem> short_items_, long_items_;
  const DeviceBuffer<worker::gpu::AttentionCombine> combines_;
  const DeviceBuffer<int32_t> pages_;
  const DeviceBuffer<worker::gpu::Bf16> queries_, out_;
  const DeviceBuffer<float> part_outputs_, part_sums_;
};

// An AttentionRunner.
std::string RunAttention(const AttentionCase& attention_case, std::vector<worker::gpu::Bf16>* out);

}  // namespace bfio::testing
