#include "worker/engine/cuda/device_ops.h"

#include "absl/strings/str_cat.h"

namespace bfio::worker::gpu {

absl::Status LaunchStatus(const char* error, absl::string_view kernel) {
  if (error == nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the launch of ", kernel, ": ", error));
}

}  // namespace bfio::worker::gpu
