#include "worker/engine/model/model.h"

#include <openssl/evp.h>
#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/quote.h"
#include "common/base/status_macros.h"
#include "common/json/json_fields.h"
#include "common/json/json_reader.h"
#include "worker/engine/model/layout.h"
#include "worker/engine/model/mapped_file.h"

namespace bfio::worker {

// Takes tensors out of a checkpoint by name and shape; keeps the first error.
class ModelBuilder {
 public:
  ModelBuilder(ModelConfig config, std::unique_ptr<Checkpoint> checkpoint, std::string directory)
      : directory_(std::move(directory)), model_(new Model(std::move(config), std::move(checkpoint))) {}

  absl::StatusOr<std::unique_ptr<Model>> Build() {
    const ModelConfig& config = model_->config_;
    const std::vector<int64_t> matrix = {config.vocab, config.hidden};
    model_->embedding_ = Take(kEmbeddingName, matrix);
    model_->final_norm_ = Take(kFinalNormName, {config.hidden});
    model_->lm_head_ = config.tied_embeddings ? TiedHead(matrix) : Take(kHeadName, matrix);
    const std::vector<LayerTensor> tensors = LayerTensors(config);
    for (int64_t i = 0; i < config.layers && status_.ok(); ++i) model_->layers_.push_back(Layer(i, tensors));
    if (status_.ok()) RefuseUnexpected();
    if (!status_.ok()) return status_;
    model_->digest_ = DigestOf(*model_);
    return std::move(model_);
  }

 private:
  TensorView Take(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorMap& tensors = model_->checkpoint_->tensors();
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      Fault(absl::StrCat(directory_, ": tensor ", Quote(name), " is missing",
                         name == kHeadName ? " (and tie_word_embeddings is not true)" : ""));
      return {};
    }
    taken_.insert(name);
    if (found->second.shape != shape) {
      Fault(absl::StrCat(model_->checkpoint_->FileOf(name), ": tensor ", Quote(name), " has shape [",
                         absl::StrJoin(found->second.shape, ", "), "], but config.json requires [",
                         absl::StrJoin(shape, ", "), "]"));
    }
    model_->weight_bytes_ += found->second.bytes();
    return found->second;
  }

  // A file may contain a copy of the tied lm_head anyway.
  TensorView TiedHead(const std::vector<int64_t>& shape) {
    const std::string name = kHeadName;
    const TensorView& embedding = model_->embedding_;
    if (!status_.ok() || !model_->checkpoint_->tensors().contains(name)) return embedding;
    const TensorView copy = Take(name, shape);
    if (status_.ok() &&
        (copy.dtype != embedding.dtype || std::memcmp(copy.data, embedding.data, embedding.bytes()) != 0)) {
      Fault(absl::StrCat(model_->checkpoint_->FileOf(name), ": tensor ", Quote(name),
                         " differs from the embedding, although tie_word_embeddings is true"));
    }
    model_->weight_bytes_ -= copy.bytes();
    return embedding;
  }

  LayerWeights Layer(int64_t index, const std::vector<LayerTensor>& tensors) {
    LayerWeights weights;
    for (const LayerTensor& tensor : tensors) {
      weights.*tensor.place = Take(LayerPrefix(index) + tensor.name, tensor.shape);
    }
    return weights;
  }

  void RefuseUnexpected() {
    for (const auto& [name, view] : model_->checkpoint_->tensors()) {
      // A table that old versions of transformers saved; it follows from config.json.
      if (taken_.contains(name) || absl::EndsWith(name, ".rotary_emb.inv_freq")) continue;
      return Fault(absl::StrCat(model_->checkpoint_->FileOf(name), ": tensor ", Quote(name),
                                " is not part of the ", FamilyName(model_->config_.family),
                                " model that config.json describes"));
    }
  }

  void Fault(const std::string& message) { status_.Update(absl::InvalidArgumentError(message)); }

  const std::string directory_;
  std::unique_ptr<Model> model_;
  std::set<std::string, std::less<>> taken_;
  absl::Status status_;
};

namespace {

absl::StatusOr<ModelConfig> ReadConfig(const std::string& directory) {
  BFIO_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(absl::StrCat(directory, "/config.json")));
  return ParseModelConfig(file.text(), file.path());
}

// Chat models end an assistant message with tokens that only generation_config.json names.
absl::Status AddGenerationEosTokens(const std::string& directory, ModelConfig& config) {
  const absl::StatusOr<MappedFile> file =
      MappedFile::Open(absl::StrCat(directory, "/generation_config.json"));
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  if (!file.ok()) return file.status();
  BFIO_ASSIGN_OR_RETURN(const std::vector<int32_t> more,
                        ParseGenerationEosTokens(file->text(), file->path(), config.vocab));
  std::vector<int32_t>& ids = config.eos_token_ids;
  // The family's default is replaced by what the model's files say: token 2 is an ordinary token in Llama 3's
  // vocabulary.
  if (config.eos_by_default && !more.empty()) ids.clear();
  ids.insert(ids.end(), more.begin(), more.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& directory) {
  BFIO_ASSIGN_OR_RETURN(ModelConfig config, ReadConfig(directory));
  BFIO_RETURN_IF_ERROR(AddGenerationEosTokens(directory, config));
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(directory));
  return ModelBuilder(std::move(config), std::move(checkpoint), directory).Build();
}

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

namespace {

// The index of Llama 405B has 100 kilobytes.
constexpr size_t kMaxIndexBytes = 16 << 20;
constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

bool Exists(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0;
}

}  // namespace

// {"metadata": anything, "weight_map": {"tensor": "file", ...}}
absl::StatusOr<WeightMap> ParseWeightMap(absl::string_view json, absl::string_view path) {
  WeightMap map;
  int found = 0;
  const auto wanted = [&found](const JsonPath& at) {
    if (at.Is({})) return at.kind != JsonPath::Kind::kObject;
    if (at.Is({"weight_map"})) return ++found > 1 || at.kind != JsonPath::Kind::kObject;
    return at.Is({"weight_map", "*"});
  };
  const auto add = [&map, &found](JsonPath& at, nlohmann::json& file) {
    if (found > 1) return absl::InvalidArgumentError("has 'weight_map' twice");
    if (at.names.size() < 2)
      return absl::InvalidArgumentError(absl::StrCat("has ", Shown(file), " instead of an object"));
    std::string& tensor = at.names[1];
    if (!file.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("has ", Shown(file), " for tensor ", Quote(tensor), " instead of a file name"));
    }
    std::string& name = file.get_ref<std::string&>();
    if (name.size() > 255 || name.find_first_of("/\\") != std::string::npos ||
        !absl::EndsWith(name, ".safetensors")) {
      return absl::InvalidArgumentError(absl::StrCat("puts tensor ", Quote(tensor), " into ", Quote(name),
                                                     ", which is not the plain name of a .safetensors file"));
    }
    if (!map.emplace(tensor, std::move(name)).second)
      return absl::InvalidArgumentError(absl::StrCat("has tensor ", Quote(tensor), " twice"));
    return absl::OkStatus();
  };
  BFIO_RETURN_IF_ERROR(ReadJson(json, path, {.bytes = kMaxIndexBytes}, wanted, add));
  if (found == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": has no 'weight_map'"));
  if (map.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": 'weight_map' is empty"));
  return map;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory) {
  const std::string single = absl::StrCat(directory, "/", kSingle),
                    index = absl::StrCat(directory, "/", kIndex);
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  if (Exists(single) && Exists(index)) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, ": has both ", kSingle, " and ", kIndex, "; remove one of them"));
  }
  if (Exists(index)) {
    BFIO_RETURN_IF_ERROR(checkpoint->AddShards(directory, index));
    return checkpoint;
  }
  if (!Exists(single)) {
    return absl::NotFoundError(absl::StrCat(directory, ": has neither ", kSingle, " nor ", kIndex,
                                            "; other formats are not supported"));
  }
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(single));
  checkpoint->Add(std::move(file));
  return checkpoint;
}

absl::Status Checkpoint::AddShards(const std::string& directory, const std::string& index) {
  BFIO_ASSIGN_OR_RETURN(const MappedFile text, MappedFile::Open(index));
  BFIO_ASSIGN_OR_RETURN(const WeightMap map, ParseWeightMap(text.text(), index));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map) shards.insert(shard);
  for (const std::string& shard : shards) {
    BFIO_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file,
                          SafetensorsFile::Open(absl::StrCat(directory, "/", shard)));
    for (const auto& [tensor, view] : file->tensors()) {
      const auto place = map.find(tensor);
      if (place != map.end() && place->second == shard) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(file->path(), ": tensor ", Quote(tensor), ": ",
                       place == map.end() ? "is not in the index"
                                          : absl::StrCat("the index has it in ", Quote(place->second))));
    }
    Add(std::move(file));
  }
  for (const auto& [tensor, shard] : map) {
    if (tensors_.contains(tensor)) continue;
    return absl::InvalidArgumentError(absl::StrCat(directory, "/", shard, ": tensor ", Quote(tensor),
                                                   ": is in the index but not in the file"));
  }
  return absl::OkStatus();
}

void Checkpoint::Add(std::unique_ptr<SafetensorsFile> file) {
  for (const auto& [name, view] : file->tensors()) {
    tensors_.emplace(name, view);
    file_of_.emplace(name, file.get());
  }
  files_.push_back(std::move(file));
}

const std::string& Checkpoint::FileOf(absl::string_view name) const {
  const auto found = file_of_.find(name);
  assert(found != file_of_.end());
  return found->second->path();
}

}  // namespace bfio::worker
