// The thread that writes to the clients. A step touches every active stream, and starting hundreds of writes
// takes milliseconds (docs/results.md), which the decision thread must not spend. Threads: Submit from any
// thread.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "router/requests/token_sink.h"

namespace bfio::router {

class StreamSender {
 public:
  StreamSender();
  // Flushes the submitted streams, then stops.
  ~StreamSender();

  // Flushes each stream soon, on this thread; leaves `streams` empty. A stream is queued at most once at a
  // time (its dirty flag), so the queue is bounded by the number of open streams.
  void Submit(std::vector<std::shared_ptr<TokenSink>>& streams);

 private:
  void Run();
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); }

  Mutex mutex_;
  std::vector<std::shared_ptr<TokenSink>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bfio::router
