// An engine's KV events (vLLM: --kv-events-config, SGLang: the same), of which only losses matter: the blocks
// that it evicts, and that it has dropped all of them. What the router believes of the rank's prefix cache
// follows from placements, and these lower it. Where a number is missing, or a message cannot be read,
// everything counts as lost. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"

namespace bfio::router {

// The events of one message.
struct KvLosses {
  int64_t blocks = 0;
  bool all = false;
};
// Reads msgpack: [time, events, rank], events [type, fields..], or maps with these names. Of several groups
// of layers only the first counts, and only blocks in the GPU. INVALID_ARGUMENT with one line.
absl::StatusOr<KvLosses> ReadKvEvents(absl::string_view payload);

class KvEvents {
 public:
  // The rank has so many blocks. Its messages before that tell nothing.
  void SetBlocks(int32_t rank, int64_t blocks);
  // RankMessages::Kind::take.
  absl::Status Take(int32_t rank, uint64_t number, absl::string_view message);
  // The share of the rank's blocks that it has lost since the last call, in parts per million.
  int64_t TakeLost(int32_t rank);

 private:
  struct Rank {
    int64_t blocks = 1;
    // The number of the next message.
    std::optional<uint64_t> next;
    double lost = 0;
  };

  Mutex mutex_;
  std::map<int32_t, Rank> ranks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router
