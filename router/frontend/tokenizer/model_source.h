// The model's files, from --tokenizer=DIR, or from the first worker that sends them.
//
// Purpose: client protocols read them with every call, because they may arrive after the start. They never
// change once they are there: workers of a group have the same model. Threads: any. Converting what a worker
// sends may take a second, and runs on a thread of its own, which the destructor awaits.
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
  // Null: there are none yet.
  explicit ModelSource(std::shared_ptr<const ModelFiles> model) : model_(std::move(model)) {}
  ~ModelSource();

  std::shared_ptr<const ModelFiles> Get() const {
    MutexLock lock(&mutex_);
    return model_;
  }
  // False: there are files, or they are being converted.
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
