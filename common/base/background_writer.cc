#include "common/base/background_writer.h"

#include <signal.h>

#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/spdlog.h"

namespace bfio {

struct BackgroundWriter::State {
  explicit State(Options of) : options(std::move(of)) {}

  const Options options;
  Mutex mutex;
  CondVar changed;
  std::vector<Item> items ABSL_GUARDED_BY(mutex);
  // Of `items`, and removed from them while they are written.
  int64_t bytes ABSL_GUARDED_BY(mutex) = 0, writing ABSL_GUARDED_BY(mutex) = 0;
  // Nothing is appended any more; there will be no more items; the disk has failed; the thread has ended.
  bool ended ABSL_GUARDED_BY(mutex) = false, closing ABSL_GUARDED_BY(mutex) = false,
             failed ABSL_GUARDED_BY(mutex) = false, done ABSL_GUARDED_BY(mutex) = false;
};

BackgroundWriter::BackgroundWriter(Options options)
    : state_(std::make_shared<State>(std::move(options))), thread_([shared = state_] { Run(shared); }) {}

BackgroundWriter::~BackgroundWriter() {
  Close();
  bool done = false;
  {
    MutexLock lock(&state_->mutex);
    const absl::Time deadline = MonotonicNow() + kPatience;
    while (!state_->done && !state_->changed.WaitWithDeadline(&state_->mutex, deadline)) {
    }
    done = state_->done;
  }
  if (done) {
    thread_.join();
    return;
  }
  spdlog::warn("the {} cannot be written to the end in time: its last lines may be missing",
               state_->options.name);
  thread_.detach();
}

bool BackgroundWriter::Append(absl::string_view bytes, bool begins) {
  const auto size = begins ? int64_t{0} : static_cast<int64_t>(bytes.size());
  int64_t waits = 0;
  {
    MutexLock lock(&state_->mutex);
    if (state_->ended) return false;
    if (state_->bytes + size <= state_->options.max_bytes) {
      if (begins || state_->items.empty()) state_->items.push_back({begins, ""});
      state_->items.back().bytes.append(bytes.data(), bytes.size());
      state_->bytes += size;
      if (state_->bytes > state_->options.max_bytes / 2) state_->changed.Signal();
      return true;
    }
    state_->ended = true;
    waits = state_->bytes + state_->writing;
  }
  spdlog::error(
      "the {} ends here: the disk is too slow, or {} too small: {} bytes and {} that wait exceed {}",
      state_->options.name, state_->options.bound, size, waits, state_->options.max_bytes);
  return false;
}

void BackgroundWriter::Close(absl::string_view last) {
  MutexLock lock(&state_->mutex);
  if (state_->closing || state_->failed) return;
  if (state_->items.empty()) state_->items.emplace_back();
  state_->items.back().bytes.append(last.data(), last.size());
  state_->ended = state_->closing = true;
  state_->changed.SignalAll();
}

int64_t BackgroundWriter::backlog_bytes() const {
  MutexLock lock(&state_->mutex);
  return state_->bytes + state_->writing;
}

void BackgroundWriter::Run(const std::shared_ptr<State>& state) {
  // A write to a pipe without a reader returns an error instead of ending the process.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  std::vector<Item> items;
  absl::Status status;
  for (bool closing = false; !closing && status.ok();) {
    items.clear();
    {
      MutexLock lock(&state->mutex);
      state->writing = 0;
      if (!state->closing) state->changed.WaitWithTimeout(&state->mutex, state->options.poll);
      closing = state->closing;
      std::swap(items, state->items);
      state->writing = std::exchange(state->bytes, 0);
    }
    for (const Item& item : items)
      if (status.ok()) status = state->options.write(item);
  }
  if (!status.ok()) spdlog::error("the {} ends here: {}", state->options.name, std::string(status.message()));
  MutexLock lock(&state->mutex);
  state->failed = !status.ok();
  state->ended = true;
  state->items.clear();
  state->done = true;
  state->changed.SignalAll();
}

}  // namespace bfio
