#include "worker/engine/cuda/model_signature.h"

#include <algorithm>

#include "common/base/rng.h"
#include "worker/barrier/summation_tree.h"

namespace bfio::worker::gpu {
namespace {

// Of the embedding: the norms of random checkpoints are all ones.
constexpr int64_t kEmbeddingElements = 512;
constexpr absl::Duration kSignatureDeadline = absl::Seconds(60);
// So that no engine of another kind has the same.
constexpr uint64_t kKind = 0x63756461;

}  // namespace

absl::StatusOr<uint64_t> SignatureOf(const ModelConfig& config, const DeviceWeights& weights,
                                     DeviceOps& ops) {
  const int64_t embedding = std::min(kEmbeddingElements, config.vocab * config.hidden);
  const int64_t count = config.layers * config.hidden + embedding;
  const auto pinned = ops.AllocatePinned(count * static_cast<int64_t>(sizeof(Bf16)), "a model's signature");
  if (!pinned.ok()) return pinned.status();
  auto* const elements = static_cast<Bf16*>(*pinned);
  absl::Status status;
  int64_t at = 0;
  const auto take = [&](const Bf16* from, int64_t size) {
    if (status.ok()) {
      status = ops.CopyOut(elements + at, from, size * static_cast<int64_t>(sizeof(Bf16)));
    }
    at += size;
  };
  for (const DeviceLayer& layer : weights.layers) take(layer.post_attention_norm, config.hidden);
  take(weights.embedding, embedding);
  if (status.ok()) status = ops.Wait(kSignatureDeadline);
  uint64_t hash = 0;
  const auto add = [&](uint64_t value) { hash = Mix64(hash ^ value) + 1; };
  for (const int64_t size : {config.layers, config.hidden, config.intermediate, config.vocab, config.heads,
                             config.kv_heads, config.head_dim, int64_t{kSumTerms}}) {
    add(static_cast<uint64_t>(size));
  }
  add(kKind);
  for (int64_t i = 0; status.ok() && i < count; ++i) add(elements[i].bits);
  if (status.ok()) status = ops.Release(*pinned);
  if (!status.ok()) return status;
  return hash;
}

}  // namespace bfio::worker::gpu
