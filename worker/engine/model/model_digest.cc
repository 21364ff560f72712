#include "worker/engine/model/model_digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "worker/engine/model/layout.h"
#include "worker/engine/model/model.h"

namespace bfio::worker {
namespace {

// Prefix of the hashed text; its number changes when the layout of the text changes.
constexpr char kModelFormat[] = "bfio model 1\n";
constexpr int64_t kMaxSamples = 16384;
constexpr int64_t kMaxTensorSamples = 64;

std::string Text(const RopeConfig& rope) {
  const auto& [kind, theta, factor, low, high, original] = rope;
  // %a prints every bit.
  return absl::StrFormat("%d %a %a %a %a %d", static_cast<int>(kind), theta, factor, low, high, original);
}

// Names every member, so that this does not compile when a member is added and not handled.
std::string Text(const ModelConfig& config) {
  const auto& [family, hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, max_positions, window,
               epsilon, tied, qkv_bias, output_bias, mlp_bias, qk_norm, rope, bos, eos, eos_by_default] =
      config;
  // The digest does not depend on whether the ids are stated or are the family's defaults.
  static_cast<void>(eos_by_default);
  return absl::StrCat(
      FamilyName(family), " ",
      absl::StrJoin({hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, max_positions, window},
                    ","),
      " ", absl::StrFormat("%a", epsilon), " ",
      absl::StrJoin({tied, qkv_bias, output_bias, mlp_bias, qk_norm}, ""), " rope ", Text(rope), " bos ",
      bos ? absl::StrCat(*bos) : "none", " eos ", absl::StrJoin(eos, ","), "\n");
}

using NamedTensor = std::pair<std::string, const TensorView*>;

std::vector<NamedTensor> TensorsOf(const Model& model) {
  std::vector<NamedTensor> tensors = {{kEmbeddingName, &model.embedding()},
                                      {kFinalNormName, &model.final_norm()}};
  if (!model.config().tied_embeddings) tensors.emplace_back(kHeadName, &model.lm_head());
  const std::vector<LayerTensor> layer = LayerTensors(model.config());
  for (size_t i = 0; i < model.layers().size(); ++i) {
    for (const LayerTensor& tensor : layer) {
      tensors.emplace_back(LayerPrefix(static_cast<int64_t>(i)) + tensor.name,
                           &(model.layers()[i].*tensor.place));
    }
  }
  return tensors;
}

}  // namespace

class ModelDigest::Hasher {
 public:
  Hasher() { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }

  void Add(const void* data, size_t bytes) { EVP_DigestUpdate(context_.get(), data, bytes); }
  void Add(absl::string_view text) { Add(text.data(), text.size()); }
  ModelDigest End() {
    ModelDigest digest;
    EVP_DigestFinal_ex(context_.get(), digest.bytes_.data(), nullptr);
    return digest;
  }

 private:
  const std::unique_ptr<EVP_MD_CTX, decltype([](EVP_MD_CTX* c) { EVP_MD_CTX_free(c); })> context_{
      EVP_MD_CTX_new()};
};

ModelDigest ModelDigest::Of(absl::string_view bytes) {
  Hasher hash;
  hash.Add(bytes);
  return hash.End();
}

ModelDigest ModelDigest::With(absl::string_view how) const {
  return Of(absl::StrCat(Hex(), " ", how));
}

std::string ModelDigest::Hex() const {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes_.data()), bytes_.size()});
}

int64_t SamplesPerTensor(int64_t tensors) {
  return std::clamp<int64_t>(kMaxSamples / tensors, 2, kMaxTensorSamples);
}

std::vector<int64_t> SampleOffsets(int64_t bytes, int64_t samples) {
  std::vector<int64_t> offsets;
  if (bytes <= samples * kSampleBytes) return offsets;
  const int64_t last = bytes - kSampleBytes, steps = samples - 1;
  for (int64_t i = 0; i <= steps; ++i) offsets.push_back(last / steps * i + last % steps * i / steps);
  return offsets;
}

ModelDigest DigestOf(const Model& model) {
  ModelDigest::Hasher hash;
  hash.Add(absl::StrCat(kModelFormat, Text(model.config())));
  const std::vector<NamedTensor> tensors = TensorsOf(model);
  const int64_t samples = SamplesPerTensor(static_cast<int64_t>(tensors.size()));
  for (const auto& [name, tensor] : tensors) {
    hash.Add(absl::StrCat(name, " ", DTypeName(tensor->dtype), " ", absl::StrJoin(tensor->shape, "x"), "\n"));
    const std::vector<int64_t> offsets = SampleOffsets(tensor->bytes(), samples);
    if (offsets.empty()) hash.Add(tensor->data, static_cast<size_t>(tensor->bytes()));
    for (const int64_t offset : offsets) hash.Add(tensor->data + offset, kSampleBytes);
  }
  return hash.End();
}

}  // namespace bfio::worker
