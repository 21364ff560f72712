// The model's files, from --tokenizer=DIR, or from the first worker that sends them. Client protocols read
// the files with every call, because they may arrive after startup. They never change once present: workers
// of a group have the same model. Threads: any. Converting a worker's files may take a second, and runs on a
// thread of its own, which the destructor joins.
#ifndef BFIO_ROUTER_FRONTEND_TOKENIZER_MODEL_SOURCE_H_
#define BFIO_ROUTER_FRONTEND_TOKENIZER_MODEL_SOURCE_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/tokenizer/tokenizer_files.h"
#include "router/frontend/tokenizer/model_files.h"

namespace bfio::router {

class ModelSource {
 public:
  // Null: there are no files yet.
  explicit ModelSource(std::shared_ptr<const ModelFiles> model) : model_(std::move(model)) {}
  ~ModelSource();

  std::shared_ptr<const ModelFiles> Get() const {
    MutexLock lock(&mutex_);
    return model_;
  }
  // False: the files are present, or are being converted.
  bool wanted() const {
    MutexLock lock(&mutex_);
    return model_ == nullptr && !converting_;
  }
  // Takes the files if they are wanted. `done` is called once, with OK, or with the reason why they cannot be
  // used.
  void Take(std::string directory, TokenizerFiles files, std::function<void(const absl::Status&)> done);

 private:
  void Convert(std::string directory, const TokenizerFiles& files,
               const std::function<void(const absl::Status&)>& done);

  mutable Mutex mutex_;
  std::shared_ptr<const ModelFiles> model_ ABSL_GUARDED_BY(mutex_);
  bool converting_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_TOKENIZER_MODEL_SOURCE_H_
