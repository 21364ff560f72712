// The model's files, from --tokenizer=DIR, or from workers: those that a worker of the served model has sent.
// Client protocols read the files with every call, because they may arrive after startup and change with the
// served model. Models are named by the digests that workers report. Threads: any. Converting a worker's
// files may take a second, and runs on a thread of its own, which the destructor joins.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/tokenizer/tokenizer_files.h"
#include "router/frontend/tokenizer/token_text.h"

namespace bfio::router {

// The files of a model that a gateway needs: its tokenizer, and the model's properties in config.json. Read
// once at startup from --tokenizer=DIR (a checkpoint's directory, or one with only the tokenizer), or sent by
// a worker (model_source.h). Weights are not read. Threads: immutable once made; any.

// A zip archive, uncompressed, in which gateways fetch a tokenizer, of these names and contents, in this
// order; the same input gives the same bytes. REQUIRES: names are short, and the total is below 4 GiB, the
// limit of the format.
std::string ZipArchive(const std::vector<std::pair<std::string, std::string>>& files);

struct ModelFiles {
  // The path as given, without a slash at its end.
  std::string directory;
  // From config.json; 0 and empty where it is absent or has no value.
  uint32_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = 0, pad_token_id = 0;
  std::string model_type;
  // Type of the weights, such as "bfloat16".
  std::string dtype;
  std::vector<std::string> architectures;
  // A zip archive of the tokenizer's files, and its SHA-256 in hexadecimal.
  std::string archive, archive_sha256;
  // Null: there is no tokenizer.json of a supported kind; `why_no_text` has the reason.
  std::shared_ptr<const TokenText> text;
  std::string why_no_text;
};

// NOT_FOUND: the directory has no tokenizer file; INVALID_ARGUMENT: config.json is invalid, or the files are
// larger than 256 MiB together. The message begins with the path.
absl::StatusOr<ModelFiles> LoadModelFiles(std::string directory);
// From files that were read elsewhere. INVALID_ARGUMENT as above.
absl::StatusOr<ModelFiles> MakeModelFiles(std::string directory, const TokenizerFiles& files);

// Name of a model for which there are files: the last part of the path, or "bfio".
std::string ModelNameOf(absl::string_view directory);

class ModelSource {
 public:
  // Bound of the models whose files are kept, the served one among them.
  static constexpr size_t kMostModels = 2;

  // `configured`: the files of --tokenizer, whichever model is served; null: none.
  explicit ModelSource(std::shared_ptr<const ModelFiles> configured) : configured_(std::move(configured)) {}
  ~ModelSource();

  // Null: there are none of the served model.
  std::shared_ptr<const ModelFiles> Get() const {
    MutexLock lock(&mutex_);
    return configured_ != nullptr ? configured_ : served_ ? Find(*served_) : nullptr;
  }
  void SetServed(const std::string& model) {
    MutexLock lock(&mutex_);
    served_ = model;
  }
  // False: the files are present, or files are being converted.
  bool wanted(const std::string& model) const {
    MutexLock lock(&mutex_);
    return configured_ == nullptr && !converting_ && Find(model) == nullptr;
  }
  // Takes the files if they are wanted. `done` is called once, with OK, or with the reason why they cannot be
  // used.
  void Take(const std::string& model, std::string directory, TokenizerFiles files,
            std::function<void(const absl::Status&)> done);

 private:
  std::shared_ptr<const ModelFiles> Find(const std::string& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [name, files] : files_) {
      if (name == model) return files;
    }
    return nullptr;
  }
  void Convert(const std::string& model, std::string directory, const TokenizerFiles& files,
               const std::function<void(const absl::Status&)>& done);

  mutable Mutex mutex_;
  const std::shared_ptr<const ModelFiles> configured_;
  std::optional<std::string> served_ ABSL_GUARDED_BY(mutex_);
  // By model; oldest first.
  std::vector<std::pair<std::string, std::shared_ptr<const ModelFiles>>> files_ ABSL_GUARDED_BY(mutex_);
  bool converting_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router
