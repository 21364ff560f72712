#include "tests/chaos/step_watch.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/base/clock.h"

namespace bfio::chaos {

StepWatch::StepWatch(const std::string& admin_address)
    : stub_(v1::Admin::NewStub(grpc::CreateChannel(admin_address, grpc::InsecureChannelCredentials()))),
      thread_([this] { Run(); }) {}

StepWatch::~StepWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  thread_.join();
}

uint64_t StepWatch::epoch() const {
  std::lock_guard lock(mutex_);
  return epoch_;
}
uint64_t StepWatch::steps() const {
  std::lock_guard lock(mutex_);
  return steps_;
}

std::optional<absl::Time> StepWatch::AwaitEpochAfter(uint64_t epoch, int ranks, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (epoch_ > epoch && (ranks == 0 || ranks_ == ranks)) return epoch_began_;
    }
    if (MonotonicNow() > deadline) return std::nullopt;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

absl::Duration StepWatch::TakeLongestPause() {
  std::lock_guard lock(mutex_);
  const absl::Duration longest = std::max(longest_, MonotonicNow() - last_step_);
  longest_ = absl::ZeroDuration();
  return longest;
}

void StepWatch::Run() {
  for (;;) {
    grpc::ClientContext* context = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      context_ = std::make_unique<grpc::ClientContext>();
      context = context_.get();
    }
    const auto reader = stub_->WatchSteps(context, v1::WatchStepsRequest());
    v1::StepSummary step;
    while (reader->Read(&step)) {
      const absl::Time now = MonotonicNow();
      std::lock_guard lock(mutex_);
      if (last_step_ != absl::InfinitePast()) longest_ = std::max(longest_, now - last_step_);
      last_step_ = now;
      ++steps_;
      if (step.epoch() == epoch_) continue;
      epoch_ = step.epoch();
      ranks_ = step.load_tokens_size();
      epoch_began_ = now;
    }
    reader->Finish();
    absl::SleepFor(absl::Milliseconds(20));
  }
}

}  // namespace bfio::chaos
