// cuBLASLt, loaded at run time. A worker built with the CUDA engine starts on a machine without CUDA's
// libraries, as long as it does not use that engine. So the library is not linked but opened by name
// (libcublasLt.so of the major version that this was compiled against, with the dynamic linker's search
// path). Threads: immutable once loaded.
#pragma once

#include <cublasLt.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::worker::gpu {

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

}  // namespace bfio::worker::gpu
