// Where a token's keys and values are in device memory.
//
// Purpose: the one definition that the appending kernel, the attention kernels and the allocating host share.
// Each layer has a pool of keys and a pool of values, bf16, both
//     [pages][kv_heads][page_tokens][head_dim]
// so that the tokens of one KV head in one page are contiguous: a tile of attention reads runs of page_tokens
// * head_dim * 2 bytes (4 KB for 16 tokens of 128). The page of position p is the (p / page_tokens)-th of its
// sequence (worker/kv/page_table.h). Plain data.
#pragma once

#include <cstdint>

#include "worker/engine/cuda/kernels/device_types.h"

namespace bfio::worker::gpu {

struct KvLayout {
  int32_t kv_heads = 0;
  // A power of two, 16 to 64.
  int32_t page_tokens = 16;
  int32_t head_dim = 0;

  // Elements of one pool, which may well be 2^31 or more.
  BFIO_HOST_DEVICE int64_t PoolElements(int64_t pages) const { return pages * PageElements(); }
  BFIO_HOST_DEVICE int64_t PageElements() const {
    return static_cast<int64_t>(kv_heads) * page_tokens * head_dim;
  }
  // Index of the first of the head_dim elements of the token at offset `slot` of `page`.
  BFIO_HOST_DEVICE int64_t TokenOffset(int32_t page, int32_t kv_head, int32_t slot) const {
    return page * PageElements() + static_cast<int64_t>(kv_head * page_tokens + slot) * head_dim;
  }
};

}  // namespace bfio::worker::gpu
