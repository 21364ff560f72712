#include "worker/engine/decode/model_part.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/saturate.h"

namespace bfio::worker {
namespace {

std::string MiB(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

absl::Status CheckFits(const ModelBytes& bytes, const ModelPart& part, int64_t kv_bytes, int64_t limit) {
  const int64_t weights = bytes.Weights(part), both = SaturatedSum(weights, kv_bytes);
  if (both <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "blocks ", part.blocks.first, " to ", part.blocks.end() - 1,
      part.ends ? " with embedding and head" : "", " take ", MiB(weights), " and their KV cache ",
      MiB(kv_bytes), ", ", MiB(both - limit), " more than the memory limit of ", MiB(limit)));
}

}  // namespace bfio::worker
