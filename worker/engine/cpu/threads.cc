#include "worker/engine/cpu/threads.h"

namespace bfio::worker::cpu {

Threads::Threads(int32_t count) : count_(count) {
  for (int32_t i = 1; i < count; ++i) helpers_.emplace_back([this, i] { Serve(i); });
}

Threads::~Threads() {
  stop_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Threads::Run(absl::FunctionRef<void(int32_t)> task) {
  if (helpers_.empty()) return task(0);
  task_ = &task;
  busy_ = count_ - 1;
  ++round_;
  round_.notify_all();
  task(0);
  for (int32_t busy = busy_; busy != 0; busy = busy_) busy_.wait(busy);
}

void Threads::Serve(int32_t thread) {
  for (uint32_t seen = 0;;) {
    round_.wait(seen);
    seen = round_;  // cannot be ahead of the present Run, which waits for this thread
    if (stop_) return;
    (*task_)(thread);
    if (--busy_ == 0) busy_.notify_one();
  }
}

}  // namespace bfio::worker::cpu
