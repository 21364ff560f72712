// The CPU engine's KV cache: the memory that the page table's page numbers refer to. One block of memory per
// layer, page after page. A page has for each KV head its keys, [tokens / 16][head_dim][16], then its values,
// [tokens][value_dim] (kernels.h has the reasons). The page of one head is contiguous. Threads: different
// tokens or heads may be written by different threads.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/engine/cpu/kernels.h"
#include "worker/kv/page_pool.h"

namespace bfio::worker::cpu {

struct KvShape {
  static constexpr int64_t kElementBytes = sizeof(float);

  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  // A multiple of 16.
  int32_t page_tokens = 0;
  int64_t pages = 0;

  int64_t value_dim() const { return RoundUpToLanes(head_dim); }
  // Elements of a page of one head, and of a page of all heads.
  int64_t head_stride() const { return page_tokens * (head_dim + value_dim()); }
  int64_t page_stride() const { return kv_heads * head_stride(); }
  // Bytes that attention reads per token of context, over all layers.
  int64_t token_bytes() const { return layers * kv_heads * (head_dim + value_dim()) * kElementBytes; }
  // Size of the cache, saturated at the largest int64_t.
  int64_t bytes() const;
};

class KvCache {
 public:
  // RESOURCE_EXHAUSTED when the address space is too small. Memory is allocated when it is first used; the
  // code that makes caches checks that the machine has enough (part_memory.h).
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const KvShape& shape);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvShape& shape() const { return shape_; }
  // Keys and values of a head in page 0; those of page p are p * shape().page_stride() elements further.
  const float* Keys(int64_t layer, int64_t head) const { return At(layer, head); }
  const float* Values(int64_t layer, int64_t head) const {
    return At(layer, head) + shape_.page_tokens * shape_.head_dim;
  }
  // `in_page`: the token's offset in the page. `key` and `value` have head_dim elements.
  void Write(int64_t layer, int64_t head, PageId page, int32_t in_page, const float* key, const float* value);

 private:
  KvCache(const KvShape& shape, float* memory) : shape_(shape), memory_(memory) {}
  float* At(int64_t layer, int64_t head) const {
    return memory_ + layer * shape_.pages * shape_.page_stride() + head * shape_.head_stride();
  }

  const KvShape shape_;
  float* const memory_;
};

}  // namespace bfio::worker::cpu
