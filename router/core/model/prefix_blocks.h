// Names of a prompt's blocks, by which prompts that begin alike are recognised.
//
// Purpose: the edges name the blocks of a prompt once, and decisions compare names instead of tokens. A name
// is a hash of all tokens up to the block's end, so two prompts with the same i-th name begin alike for i + 1
// blocks. Equal names of different tokens make a worse placement, nothing else: by chance 2^-64 a pair, but a
// client can construct them.
//
// Threads: any. Cost: some 4 ns per token (measured at 2.5 GHz): each waits for the hash of those before it.
#ifndef BFIO_ROUTER_CORE_MODEL_PREFIX_BLOCKS_H_
#define BFIO_ROUTER_CORE_MODEL_PREFIX_BLOCKS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

namespace bfio::core {

// Tokens of a block. Engines share in blocks of 1 (SGLang) to 16 (vLLM) or more; what a coarser block misses
// is half of one per prompt on average, and each costs memory in the router.
inline constexpr int64_t kPrefixBlockTokens = 64;

// Of a prompt's whole blocks, in order; null: unknown, or none.
using PrefixBlocks = std::shared_ptr<const std::vector<uint64_t>>;

// Null for a prompt of less than a block.
PrefixBlocks NamePrefixBlocks(absl::Span<const uint32_t> tokens);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_MODEL_PREFIX_BLOCKS_H_
