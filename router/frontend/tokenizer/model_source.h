// The model's files, from --tokenizer=DIR, or from workers: those that a worker of the served model has sent.
// Client protocols read the files with every call, because they may arrive after startup and change with the
// served model. Models are named by the digests that workers report. Threads: any. Converting a worker's
// files may take a second, and runs on a thread of its own, which the destructor joins.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/tokenizer/tokenizer_files.h"
#include "router/frontend/tokenizer/model_files.h"

namespace bfio::router {

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
