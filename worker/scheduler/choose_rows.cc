#include "worker/scheduler/choose_rows.h"

#include <algorithm>

namespace bfio::worker {

void ChooseRows(absl::Span<const int64_t> pending, int64_t step_tokens, std::vector<Chunk>& chunks) {
  chunks.clear();
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i] == 1) chunks.push_back({static_cast<int32_t>(i), 1});
  }
  int64_t left = std::max(step_tokens - static_cast<int64_t>(chunks.size()), kMinPrefillRows);
  for (size_t i = 0; i < pending.size() && left > 0; ++i) {
    if (pending[i] <= 1) continue;
    const int64_t rows = std::min(pending[i], left);
    chunks.push_back({static_cast<int32_t>(i), static_cast<int32_t>(rows)});
    left -= rows;
  }
}

int64_t MaxRows(int64_t sequences, int64_t step_tokens) {
  return std::max(step_tokens, sequences + kMinPrefillRows);
}

}  // namespace bfio::worker
