// An engine's KV events (vLLM: --kv-events-config, SGLang: the same). Where prompts are known as tokens
// (prefixes: exact), they say which blocks each rank's prefix cache holds. Otherwise only losses matter: what
// the router believes of a cache follows from placements, and the blocks that the engine evicts lower it.
// Where a number is missing, or a message cannot be read, everything counts as lost. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// An event about blocks in the GPU; of several groups of layers only the first counts.
struct KvEvent {
  enum class Kind { kStored, kRemoved, kCleared } kind = Kind::kCleared;
  // The engine's names of the blocks, or hashes of these.
  std::vector<uint64_t> blocks = {};
  // Of those stored: the block that they follow, absent at a prompt's beginning, and their tokens.
  std::optional<uint64_t> parent = {};
  std::vector<uint32_t> tokens = {};
  int64_t block_tokens = 0;
  // More than the tokens tells them apart: a LoRA adapter, images, a tenant's salt.
  bool special = false;
};
// Reads msgpack: [time, events, rank], events [type, fields..], or maps with these names. INVALID_ARGUMENT
// with one line.
absl::StatusOr<std::vector<KvEvent>> ReadKvEvents(absl::string_view payload);

class KvEvents {
 public:
  // Of all ranks, some 100 bytes each. A rank with more than its part counts as not exact.
  static constexpr size_t kMostBlocks = size_t{1} << 20;
  // In one answer of TakeChanges; and that wait for one, beyond which everything counts as lost.
  static constexpr size_t kMostChanges = size_t{1} << 12, kMostWaiting = size_t{1} << 16;

  explicit KvEvents(bool exact = false) : exact_(exact) {}

  // The rank has so many blocks, and is new to the caller: what it is known to hold counts as stored again.
  // Its messages before the first call tell nothing.
  void Begin(int32_t rank, int64_t blocks);
  // RankMessages::Kind::take.
  absl::Status Take(int32_t rank, uint64_t number, absl::string_view message);
  // Sets what the load says of the rank's cache: the changes since the last call.
  void TakeChanges(int32_t rank, EngineLoad& load);

 private:
  // A block of the engine.
  struct Block {
    // core::NameAfter, and the number, of all tokens up to its end; the router's blocks that end in it.
    uint64_t name = 0;
    int64_t end = 0;
    std::vector<uint64_t> ends_of = {};
  };
  struct Rank {
    int64_t blocks = 1;
    bool exact = false;
    // The number of the next message.
    std::optional<uint64_t> next;
    // The share of the blocks.
    double lost = 0;
    absl::flat_hash_map<uint64_t, Block> held;
    // By the router's name of the block: it is held now, or no longer. Not taken yet.
    std::map<uint64_t, bool> changes;
  };

  static void LoseAll(Rank& rank);
  static void Store(Rank& rank, const KvEvent& event);
  void Apply(Rank& rank, const KvEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool exact_;
  Mutex mutex_;
  std::map<int32_t, Rank> ranks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router
