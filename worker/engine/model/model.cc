#include "worker/engine/model/model.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/quote.h"
#include "common/base/status_macros.h"
#include "worker/engine/model/layout.h"
#include "worker/engine/model/mapped_file.h"
#include "worker/engine/model/model_config.h"

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
    for (int64_t i = 0; i < config.layers && status_.ok(); ++i) {
      model_->layers_.push_back(Layer(i, tensors));
    }
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

}  // namespace bfio::worker
