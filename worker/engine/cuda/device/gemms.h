// Matrix products by cuBLASLt: bf16 in, fp32 sums, bf16 or fp32 out. For every shape that was prepared, keeps
// the algorithm that was fastest on this device among those cuBLASLt proposes. Candidates are timed on the
// real weights of all layers in rotation, because the weights of a single layer would stay in the cache and
// distort the times. Threads: used by one thread. Errors: UNAVAILABLE with the call's name;
// FAILED_PRECONDITION for a shape that is not prepared.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/engine/cuda/device_ops.h"

namespace bfio::worker::gpu {

// cuBLASLt, loaded at run time. A worker built with the CUDA engine starts on a machine without CUDA's
// libraries, as long as it does not use that engine. So the library is not linked but opened by name
// (libcublasLt.so of the major version that this was compiled against, with the dynamic linker's search
// path). Threads: immutable once loaded.

// The functions in use, by their names without the prefix.
struct CublasLt {
  decltype(&cublasLtGetStatusString) GetStatusString = nullptr;
  decltype(&cublasLtGetVersion) GetVersion = nullptr;
  decltype(&cublasLtCreate) Create = nullptr;
  decltype(&cublasLtDestroy) Destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute = nullptr;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic = nullptr;
  decltype(&cublasLtMatmul) Matmul = nullptr;

  // OK, or UNAVAILABLE with the call's name and cuBLASLt's text.
  absl::Status Check(cublasStatus_t status, absl::string_view call) const;
};

// The process's only instance, loaded by the first call. UNAVAILABLE, with the dynamic linker's text, when
// the library is not found.
absl::StatusOr<const CublasLt*> LoadCublasLt();

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
