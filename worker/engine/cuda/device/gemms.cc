#include "worker/engine/cuda/device/gemms.h"

#include <dlfcn.h>

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/engine/cuda/device/cuda_status.h"

namespace bfio::worker::gpu {
namespace {

constexpr int kCandidates = 8;
constexpr size_t kTimedProducts = 8;
constexpr int kTimedRounds = 3;
// Some tens of milliseconds of work bring a GPU to its full clock.
constexpr absl::Duration kWarmUp = absl::Milliseconds(100);
constexpr absl::Duration kTimingDeadline = absl::Seconds(30);

std::string Text(const GemmShape& shape) {
  return absl::StrCat(shape.rows, " x ", shape.inputs, " by ", shape.outputs, " x ", shape.inputs,
                      shape.fp32_out ? " to fp32" : " to bf16");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gemms>> Gemms::Create(void* workspace) {
  BFIO_ASSIGN_OR_RETURN(const auto lt, LoadCublasLt());
  auto gemms = std::unique_ptr<Gemms>(new Gemms(*lt, workspace));
  absl::Status status = gemms->lt_.Check(gemms->lt_.Create(&gemms->handle_), "Create");
  status.Update(CudaStatus(cudaEventCreate(&gemms->begin_), "cudaEventCreate"));
  status.Update(CudaStatus(cudaEventCreate(&gemms->end_), "cudaEventCreate"));
  if (!status.ok()) return status;
  return gemms;
}

Gemms::~Gemms() {
  for (Plan& plan : plans_) Forget(plan);
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (end_ != nullptr) cudaEventDestroy(end_);
  if (handle_ != nullptr) lt_.Destroy(handle_);
}

void Gemms::Forget(Plan& plan) const {
  for (cublasLtMatrixLayout_t layout : {plan.weight, plan.x, plan.y}) {
    if (layout != nullptr) lt_.MatrixLayoutDestroy(layout);
  }
  if (plan.product != nullptr) lt_.MatmulDescDestroy(plan.product);
}

const Gemms::Plan* Gemms::Find(const GemmShape& shape) const {
  const auto it = std::find_if(plans_.begin(), plans_.end(), [&](const Plan& p) { return p.shape == shape; });
  return it == plans_.end() ? nullptr : &*it;
}

// cuBLASLt is column-major: [rows, inputs] here is inputs x rows there, and the weight is transposed.
absl::Status Gemms::Describe(Plan& plan) const {
  const GemmShape& shape = plan.shape;
  const auto rows = static_cast<uint64_t>(shape.rows), inputs = static_cast<uint64_t>(shape.inputs),
             outputs = static_cast<uint64_t>(shape.outputs);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  absl::Status status =
      lt_.Check(lt_.MatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "MatmulDescCreate");
  if (!status.ok()) return status;
  status = lt_.Check(
      lt_.MatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
      "MatmulDescSetAttribute");
  const auto layout = [&](cublasLtMatrixLayout_t& to, cudaDataType_t type, uint64_t first, uint64_t second) {
    status.Update(lt_.Check(lt_.MatrixLayoutCreate(&to, type, first, second, static_cast<int64_t>(first)),
                            "MatrixLayoutCreate"));
  };
  layout(plan.weight, CUDA_R_16BF, inputs, outputs);
  layout(plan.x, CUDA_R_16BF, inputs, rows);
  layout(plan.y, shape.fp32_out ? CUDA_R_32F : CUDA_R_16BF, outputs, rows);
  return status;
}

absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Gemms::Candidates(const Plan& plan) const {
  cublasLtMatmulPreference_t preference = nullptr;
  absl::Status status = lt_.Check(lt_.MatmulPreferenceCreate(&preference), "MatmulPreferenceCreate");
  if (!status.ok()) return status;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    status.Update(lt_.Check(lt_.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
                            "MatmulPreferenceSetAttribute"));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmWorkspaceBytes));
  std::vector<cublasLtMatmulHeuristicResult_t> found(kCandidates);
  int count = 0;
  if (status.ok()) {
    status = lt_.Check(lt_.MatmulAlgoGetHeuristic(handle_, plan.product, plan.weight, plan.x, plan.y, plan.y,
                                                  preference, kCandidates, found.data(), &count),
                       absl::StrCat("MatmulAlgoGetHeuristic for ", Text(plan.shape)));
  }
  lt_.MatmulPreferenceDestroy(preference);
  if (!status.ok()) return status;
  found.resize(static_cast<size_t>(count));
  return found;
}

absl::Status Gemms::Run(const Plan& plan, const Bf16* x, const Bf16* weight, void* y,
                        cudaStream_t stream) const {
  const float one = 1, zero = 0;
  return lt_.Check(lt_.Matmul(handle_, plan.product, &one, weight, plan.weight, x, plan.x, &zero, y, plan.y,
                              y, plan.y, &plan.algorithm, workspace_, plan.workspace_bytes, stream),
                   absl::StrCat("Matmul of ", Text(plan.shape)));
}

absl::StatusOr<float> Gemms::TimeOf(const Plan& plan, absl::Span<const Bf16* const> weights, const Bf16* x,
                                    void* y, cudaStream_t stream) const {
  // A first run without timing: it loads the kernel and shows its errors.
  BFIO_RETURN_IF_ERROR(Run(plan, x, weights[0], y, stream));
  const auto recorded = RecordWork(stream, [&] {
    absl::Status status;
    for (size_t i = 0; i < kTimedProducts && status.ok(); ++i) {
      status = Run(plan, x, weights[(i + 1) % weights.size()], y, stream);
    }
    return status;
  });
  if (!recorded.ok()) return recorded.status();
  float best = std::numeric_limits<float>::max();
  absl::Status status;
  for (int round = 0; round < kTimedRounds && status.ok(); ++round) {
    status = CudaStatus(cudaEventRecord(begin_, stream), "cudaEventRecord");
    status.Update(CudaStatus(cudaGraphLaunch(*recorded, stream), "cudaGraphLaunch"));
    status.Update(CudaStatus(cudaEventRecord(end_, stream), "cudaEventRecord"));
    if (status.ok()) status = WaitFor(end_, kTimingDeadline);
    float milliseconds = 0;
    if (status.ok()) {
      status = CudaStatus(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    }
    best = std::min(best, milliseconds);
  }
  // If the device hangs, it may still use the graph.
  if (!absl::IsDeadlineExceeded(status)) cudaGraphExecDestroy(*recorded);
  if (!status.ok()) return status;
  return best / kTimedProducts;
}

absl::Status Gemms::WarmUp(const Plan& plan, const Bf16* x, const Bf16* weight, void* y,
                           cudaStream_t stream) {
  if (warm_) return absl::OkStatus();
  const absl::Time end = MonotonicNow() + kWarmUp;
  absl::Status status;
  while (status.ok() && MonotonicNow() < end) {
    for (size_t i = 0; i < kTimedProducts && status.ok(); ++i) status = Run(plan, x, weight, y, stream);
    status.Update(CudaStatus(cudaEventRecord(end_, stream), "cudaEventRecord"));
    if (status.ok()) status = WaitFor(end_, kTimingDeadline);
  }
  warm_ = status.ok();
  return status;
}

absl::Status Gemms::Prepare(const GemmShape& shape, absl::Span<const Bf16* const> weights, const Bf16* x,
                            void* y, cudaStream_t stream) {
  if (Find(shape) != nullptr) return absl::OkStatus();
  Plan plan;
  plan.shape = shape;
  absl::Status status = Describe(plan);
  if (status.ok()) status = Choose(plan, weights, x, y, stream);
  if (status.ok()) {
    plans_.push_back(plan);
  } else {
    Forget(plan);
  }
  return status;
}

absl::Status Gemms::Choose(Plan& plan, absl::Span<const Bf16* const> weights, const Bf16* x, void* y,
                           cudaStream_t stream) {
  BFIO_ASSIGN_OR_RETURN(const auto candidates, Candidates(plan));
  float best = -1;
  Plan tried = plan;
  // The last error of a candidate; others may still succeed.
  absl::Status refused;
  for (const cublasLtMatmulHeuristicResult_t& candidate : candidates) {
    if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
    tried.algorithm = candidate.algo;
    tried.workspace_bytes = candidate.workspaceSize;
    absl::Status status = WarmUp(tried, x, weights[0], y, stream);
    absl::StatusOr<float> time = 0.0f;
    if (status.ok()) {
      time = TimeOf(tried, weights, x, y, stream);
      status = time.status();
    }
    // The device hangs, so every other candidate would too.
    if (absl::IsDeadlineExceeded(status)) return status;
    if (!status.ok()) refused = status;
    if (!status.ok() || (best >= 0 && *time >= best)) continue;
    best = *time;
    plan.algorithm = tried.algorithm;
    plan.workspace_bytes = tried.workspace_bytes;
  }
  if (best >= 0) return absl::OkStatus();
  return refused.ok() ? absl::UnavailableError(
                            absl::StrCat("cuBLASLt has no algorithm for the product ", Text(plan.shape)))
                      : refused;
}

absl::Status Gemms::Multiply(const GemmShape& shape, const Bf16* x, const Bf16* weight, void* y,
                             cudaStream_t stream) const {
  const Plan* const plan = Find(shape);
  if (plan == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("this product was not prepared: ", Text(shape)));
  }
  return Run(*plan, x, weight, y, stream);
}

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
