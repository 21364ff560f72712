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

void ModelSource::Take(std::string directory, TokenizerFiles files,
                       std::function<void(const absl::Status&)> done) {
  {
    MutexLock lock(&mutex_);
    if (model_ == nullptr && !converting_) {
      converting_ = true;
      // The previous thread has ended; its result could not be used.
      if (thread_.joinable()) thread_.join();
      thread_ = std::thread([this, directory = std::move(directory), files = std::move(files),
                             done = std::move(done)] { Convert(directory, files, done); });
      return;
    }
  }
  done(absl::OkStatus());
}

void ModelSource::Convert(std::string directory, const TokenizerFiles& files,
                          const std::function<void(const absl::Status&)>& done) {
  absl::StatusOr<ModelFiles> model = MakeModelFiles(std::move(directory), files);
  {
    MutexLock lock(&mutex_);
    converting_ = false;
    if (model.ok()) model_ = std::make_shared<const ModelFiles>(*std::move(model));
  }
  done(model.status());
}

}  // namespace bfio::router
