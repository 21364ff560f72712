#include "worker/engine/cuda/device/cublas_lt.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace bfio::worker::gpu {
namespace {

absl::StatusOr<const CublasLt*> Load() {
  static CublasLt functions;
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("the CUDA engine cannot load ", name, " (check LD_LIBRARY_PATH): ", dlerror()));
  }
  std::string missing;
  const auto find = [&]<typename Function>(const char* function, Function*& pointer) {
    pointer = reinterpret_cast<Function*>(dlsym(library, function));
    if (pointer == nullptr) missing = function;
  };
#define BFIO_FIND(function) find("cublasLt" #function, functions.function)
  BFIO_FIND(GetStatusString);
  BFIO_FIND(GetVersion);
  BFIO_FIND(Create);
  BFIO_FIND(Destroy);
  BFIO_FIND(MatmulDescCreate);
  BFIO_FIND(MatmulDescSetAttribute);
  BFIO_FIND(MatmulDescDestroy);
  BFIO_FIND(MatrixLayoutCreate);
  BFIO_FIND(MatrixLayoutDestroy);
  BFIO_FIND(MatmulPreferenceCreate);
  BFIO_FIND(MatmulPreferenceSetAttribute);
  BFIO_FIND(MatmulPreferenceDestroy);
  BFIO_FIND(MatmulAlgoGetHeuristic);
  BFIO_FIND(Matmul);
#undef BFIO_FIND
  if (!missing.empty()) return absl::UnavailableError(absl::StrCat(name, " lacks ", missing));
  return &functions;
}

}  // namespace

absl::Status CublasLt::Check(cublasStatus_t status, absl::string_view call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cublasLt", call, ": ", GetStatusString(status)));
}

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  static const absl::StatusOr<const CublasLt*> loaded = Load();
  return loaded;
}

}  // namespace bfio::worker::gpu
