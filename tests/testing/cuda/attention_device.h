// Attention on a GPU, for programs that are started by hand on a machine with one.
//
// Threads: any; uses the current device.
#ifndef BFIO_TESTS_TESTING_CUDA_ATTENTION_DEVICE_H_
#define BFIO_TESTS_TESTING_CUDA_ATTENTION_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/testing/cuda/attention_case.h"
#include "tests/testing/cuda/device_array.h"

namespace bfio::testing {

// The arrays of a step on the device, except the page pools.
class DeviceStep {
 public:
  // `kv_tokens`: total of all runs; `blocks`: AttentionLimits.blocks. Ends the program when the plan is
  // refused.
  DeviceStep(const worker::gpu::AttentionShape& shape, const worker::StepPlan& step, int64_t kv_tokens,
             int32_t blocks, const std::vector<worker::gpu::Bf16>& queries, int32_t q_stride);

  // All arguments except keys, values and scale.
  worker::gpu::AttentionArgs Args() const;
  const worker::gpu::AttentionPlan& plan() const { return plan_; }
  const DeviceArray<worker::gpu::Bf16>& out() const { return *out_; }

 private:
  worker::gpu::AttentionShape shape_;
  int32_t q_stride_;
  worker::gpu::AttentionPlan plan_;
  std::unique_ptr<DeviceArray<worker::gpu::AttentionCounts>> counts_;
  std::unique_ptr<DeviceArray<worker::gpu::AttentionItem>> short_items_, long_items_;
  std::unique_ptr<DeviceArray<worker::gpu::AttentionCombine>> combines_;
  std::unique_ptr<DeviceArray<int32_t>> pages_;
  std::unique_ptr<DeviceArray<worker::gpu::Bf16>> queries_, out_;
  std::unique_ptr<DeviceArray<float>> part_outputs_, part_sums_;
};

// An AttentionRunner.
std::string RunAttentionOnDevice(const AttentionCase& attention_case, std::vector<worker::gpu::Bf16>* out);

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_CUDA_ATTENTION_DEVICE_H_
