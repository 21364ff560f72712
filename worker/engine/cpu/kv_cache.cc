#include "worker/engine/cpu/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/saturate.h"

namespace bfio::worker::cpu {
namespace {

// The head of a chain may have no blocks, but a mapping has at least one byte.
size_t MappedBytes(const KvShape& shape) {
  return static_cast<size_t>(std::max<int64_t>(1, shape.bytes()));
}

}  // namespace

int64_t KvShape::bytes() const {
  return SaturatedProduct({layers, pages, page_tokens, head_dim + value_dim(), kv_heads, kElementBytes});
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const KvShape& shape) {
  // Zero pages are allocated by the kernel when they are first written, so unused capacity costs no memory.
  void* const memory = mmap(nullptr, MappedBytes(shape), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate a KV cache of ", shape.bytes() >> 20,
                                                     " MiB (", shape.pages, " pages of ", shape.page_tokens,
                                                     " tokens)"));
  }
  return std::unique_ptr<KvCache>(new KvCache(shape, static_cast<float*>(memory)));
}

KvCache::~KvCache() {
  munmap(memory_, MappedBytes(shape_));
}

void KvCache::Write(int64_t layer, int64_t head, PageId page, int32_t in_page, const float* key,
                    const float* value) {
  float* const head_page = At(layer, head) + page * shape_.page_stride();
  float* const keys = head_page + in_page / kLanes * kLanes * shape_.head_dim + in_page % kLanes;
  for (int64_t d = 0; d < shape_.head_dim; ++d) keys[d * kLanes] = key[d];
  std::copy_n(value, shape_.head_dim,
              head_page + shape_.page_tokens * shape_.head_dim + in_page * shape_.value_dim());
}

}  // namespace bfio::worker::cpu
