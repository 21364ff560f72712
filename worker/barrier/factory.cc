#include "worker/barrier/factory.h"

#include "absl/strings/str_cat.h"
#include "worker/barrier/star/star_endpoint.h"
#ifdef BFIO_HAVE_CUDA
#include "worker/barrier/nccl/nccl_barrier.h"
#endif

namespace bfio::worker {
namespace {

absl::StatusOr<std::unique_ptr<BarrierEndpoint>> MakeNccl(const BarrierOptions& options) {
#ifdef BFIO_HAVE_CUDA
  return NcclEndpoint::Create(NcclOptions{.device = options.device});
#else
  return absl::FailedPreconditionError(
      "barrier 'nccl': this program was built without CUDA and NCCL (configure with -DBFIO_WITH_CUDA=ON)");
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<BarrierEndpoint>> MakeBarrierEndpoint(absl::string_view name,
                                                                     const BarrierOptions& options) {
  if (name == "star" || name == "star_tls") {
    return StarEndpoint::Create(StarOptions{.host = options.host, .tls = name == "star_tls"});
  }
  if (name == "nccl") return MakeNccl(options);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown barrier '", name, "'; must be star, star_tls or nccl"));
}

}  // namespace bfio::worker
