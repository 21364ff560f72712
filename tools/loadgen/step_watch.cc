#include "tools/loadgen/step_watch.h"

#include <utility>

#include "common/base/clock.h"
#include "common/base/spdlog.h"

namespace bfio::loadgen {
namespace {

constexpr absl::Duration kReopenPause = absl::Seconds(1);

GroupStep Plain(const v1::StepSummary& summary) {
  GroupStep step = {.waiting_requests = summary.waiting_requests()};
  step.load_tokens.assign(summary.load_tokens().begin(), summary.load_tokens().end());
  for (const uint64_t ns : summary.local_ns()) step.local_s.push_back(static_cast<double>(ns) * 1e-9);
  for (const uint64_t ns : summary.barrier_wait_ns()) step.wait_s.push_back(static_cast<double>(ns) * 1e-9);
  return step;
}

}  // namespace

StepWatch::StepWatch(const std::shared_ptr<grpc::Channel>& admin, const Login& login, absl::Time start)
    : login_(login), start_(start), stub_(v1::Admin::NewStub(admin)), thread_([this] { Run(); }) {}

StepWatch::~StepWatch() {
  Stop();
}

GroupTimeline StepWatch::Finish() {
  Stop();
  return std::move(timeline_);
}

void StepWatch::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  if (thread_.joinable()) thread_.join();
}

void StepWatch::Run() {
  for (;;) {
    ReadStream();
    MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kReopenPause)) return;
  }
}

void StepWatch::ReadStream() {
  grpc::ClientContext context;
  login_.Present(context);
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    context_ = &context;
  }
  v1::StepSummary summary;
  const auto stream = stub_->WatchSteps(&context, v1::WatchStepsRequest());
  while (stream->Read(&summary)) {
    warned_ = false;
    timeline_.AddMissed(summary.dropped());
    timeline_.Add(absl::ToDoubleSeconds(MonotonicNow() - start_), Plain(summary));
  }
  const grpc::Status status = stream->Finish();
  MutexLock lock(&mutex_);
  context_ = nullptr;
  if (stopping_ || std::exchange(warned_, true)) return;
  spdlog::warn("cannot read the group's steps from the admin API, retrying: {}", status.error_message());
}

}  // namespace bfio::loadgen
