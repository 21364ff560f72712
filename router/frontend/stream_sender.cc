#include "router/frontend/stream_sender.h"

#include <iterator>

namespace bfio::router {

StreamSender::StreamSender() : thread_([this] { Run(); }) {}

StreamSender::~StreamSender() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void StreamSender::Submit(std::vector<std::shared_ptr<TokenSink>>& streams) {
  if (streams.empty()) return;
  MutexLock lock(&mutex_);
  if (queue_.empty()) {
    queue_.swap(streams);
  } else {
    queue_.insert(queue_.end(), std::make_move_iterator(streams.begin()),
                  std::make_move_iterator(streams.end()));
    streams.clear();
  }
}

void StreamSender::Run() {
  std::vector<std::shared_ptr<TokenSink>> batch;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &StreamSender::Ready));
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    for (const auto& stream : batch) stream->Flush();
    batch.clear();
  }
}

}  // namespace bfio::router
