#include "router/frontend/tokenizer/model_source.h"

#include "absl/status/statusor.h"

namespace bfio::router {

ModelSource::~ModelSource() {
  std::thread last;
  {
    MutexLock lock(&mutex_);
    last = std::move(thread_);
  }
  if (last.joinable()) last.join();
}

void ModelSource::Take(const std::string& model, std::string directory, TokenizerFiles files,
                       std::function<void(const absl::Status&)> done) {
  {
    MutexLock lock(&mutex_);
    if (configured_ == nullptr && !converting_ && Find(model) == nullptr) {
      converting_ = true;
      // The previous thread has ended; its result could not be used.
      if (thread_.joinable()) thread_.join();
      thread_ = std::thread([this, model, directory = std::move(directory), files = std::move(files),
                             done = std::move(done)] { Convert(model, directory, files, done); });
      return;
    }
  }
  done(absl::OkStatus());
}

void ModelSource::Convert(const std::string& model, std::string directory, const TokenizerFiles& files,
                          const std::function<void(const absl::Status&)>& done) {
  absl::StatusOr<ModelFiles> made = MakeModelFiles(std::move(directory), files);
  {
    MutexLock lock(&mutex_);
    converting_ = false;
    if (made.ok()) {
      const bool first_is_served = !files_.empty() && files_.front().first == served_;
      if (files_.size() >= kMostModels) files_.erase(files_.begin() + (first_is_served ? 1 : 0));
      files_.emplace_back(model, std::make_shared<const ModelFiles>(*std::move(made)));
    }
  }
  done(made.status());
}

}  // namespace bfio::router
