// Matrix products by cuBLASLt: bf16 in, fp32 sums, bf16 or fp32 out. For every shape that was prepared, keeps
// the algorithm that was fastest on this device among those cuBLASLt proposes. Candidates are timed on the
// real weights of all layers in rotation, because the weights of a single layer would stay in the cache and
// distort the times. Threads: used by one thread. Errors: UNAVAILABLE with the call's name;
// FAILED_PRECONDITION for a shape that is not prepared.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/engine/cuda/device/cublas_lt.h"
#include "worker/engine/cuda/device_ops.h"

namespace bfio::worker::gpu {

// Device memory that every product may use, in bytes: twice NVIDIA's recommendation for Hopper.
inline constexpr int64_t kGemmWorkspaceBytes = 64 << 20;

class Gemms {
 public:
  // `workspace`: kGemmWorkspaceBytes of the current device's memory, aligned to 256.
  static absl::StatusOr<std::unique_ptr<Gemms>> Create(void* workspace);
  ~Gemms();
  Gemms(const Gemms&) = delete;
  Gemms& operator=(const Gemms&) = delete;

  // As DeviceOps::Prepare.
  absl::Status Prepare(const GemmShape& shape, absl::Span<const Bf16* const> weights, const Bf16* x, void* y,
                       cudaStream_t stream);
  absl::Status Multiply(const GemmShape& shape, const Bf16* x, const Bf16* weight, void* y,
                        cudaStream_t stream) const;

 private:
  struct Plan {
    GemmShape shape;
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};
    size_t workspace_bytes = 0;
  };

  Gemms(const CublasLt& lt, void* workspace) : lt_(lt), workspace_(workspace) {}

  const Plan* Find(const GemmShape& shape) const;
  absl::Status Describe(Plan& plan) const;
  // Times cuBLASLt's candidates and takes the fastest.
  absl::Status Choose(Plan& plan, absl::Span<const Bf16* const> weights, const Bf16* x, void* y,
                      cudaStream_t stream);
  // Keeps the device busy until its clock has risen from idle: otherwise the first candidates would be timed
  // at a fraction of the full clock.
  absl::Status WarmUp(const Plan& plan, const Bf16* x, const Bf16* weight, void* y, cudaStream_t stream);
  absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Candidates(const Plan& plan) const;
  // Milliseconds of a product, averaged over different weights; the best of several rounds. Products are
  // replayed as a graph, because short ones would otherwise be limited by how fast the host queues them.
  absl::StatusOr<float> TimeOf(const Plan& plan, absl::Span<const Bf16* const> weights, const Bf16* x,
                               void* y, cudaStream_t stream) const;
  absl::Status Run(const Plan& plan, const Bf16* x, const Bf16* weight, void* y, cudaStream_t stream) const;
  void Forget(Plan& plan) const;

  const CublasLt& lt_;
  void* const workspace_;
  cublasLtHandle_t handle_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<Plan> plans_;
  bool warm_ = false;
};

}  // namespace bfio::worker::gpu
