// cuBLASLt, loaded when it is needed.
//
// Purpose: a worker built with the CUDA engine starts on a machine without CUDA's libraries, as long as it
// does not ask for that engine: so the library is not linked but opened by name (libcublasLt.so of the major
// version that this was compiled against, found as the dynamic linker finds libraries). Threads: immutable
// once loaded.
#ifndef BFIO_WORKER_ENGINE_CUDA_DEVICE_CUBLAS_LT_H_
#define BFIO_WORKER_ENGINE_CUDA_DEVICE_CUBLAS_LT_H_

#include <cublasLt.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::worker::gpu {

// The functions used, by their names without the prefix.
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

// The process's one, loaded by the first call. UNAVAILABLE, with the linker's text, when it is not there.
absl::StatusOr<const CublasLt*> LoadCublasLt();

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_DEVICE_CUBLAS_LT_H_
