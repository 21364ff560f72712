// A fake of the state behind the client APIs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "router/frontend/request_handler.h"

namespace bfio::router {

inline Finish FinishOf(FinishReason reason) {
  Finish finish;
  finish.reason = reason;
  return finish;
}
inline void Deliver(TokenSink& sink, const std::vector<uint32_t>& tokens) {
  if (sink.Deliver(0, tokens, {}, absl::UnixEpoch()) == TokenSink::Delivery::kFlush) sink.Flush();
}
inline void End(TokenSink& sink, const absl::Status& status, std::optional<Finish> finish) {
  if (sink.End(status, std::move(finish))) sink.Flush();
}

// Handles requests as the test specifies.
class FakeHandler final : public RequestHandler {
 public:
  // An output that the client has given up: its sink, and whether its deadline has passed.
  using Cancelled = std::pair<uint64_t, bool>;

  core::RequestId NextId() override { return next_id_++; }
  absl::Status Submit(ClientRequest request, std::vector<Output> outputs) override {
    ++calls;
    for (uint32_t i = 0; i < outputs.size(); ++i) {
      {
        MutexLock lock(&mutex_);
        submitted_.push_back(OutputOf(request, i));
      }
      if (absl::Status status = on_submit(outputs[i].id, std::move(outputs[i].sink)); !status.ok())
        return status;
    }
    return absl::OkStatus();
  }
  void Cancel(uint64_t sink_id, bool timed_out) override {
    MutexLock lock(&mutex_);
    cancelled_.emplace_back(sink_id, timed_out);
  }
  absl::Status Abort(AbortRequest request, absl::AnyInvocable<void(absl::StatusOr<bool>) &&> done) override {
    {
      MutexLock lock(&mutex_);
      aborted_.push_back(std::move(request));
    }
    if (!refuse.ok()) return refuse;
    std::move(done)(true);
    return absl::OkStatus();
  }
  absl::Status GetLoads(std::optional<uint32_t> rank,
                        absl::AnyInvocable<void(absl::StatusOr<Loads>) &&> done) override {
    std::move(done)(rank ? absl::StatusOr<Loads>(absl::NotFoundError("no such rank")) : loads);
    return absl::OkStatus();
  }
  Serving GetServing() const override {
    MutexLock lock(&mutex_);
    return serving_;
  }

  // All cancellations; waits until there are `count`.
  std::vector<Cancelled> AwaitCancels(size_t count, absl::Duration patience = absl::Seconds(60)) {
    MutexLock lock(&mutex_);
    const auto all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return cancelled_.size() >= count; };
    mutex_.AwaitWithTimeout(absl::Condition(&all), patience);
    return cancelled_;
  }

  std::vector<ClientRequest> submitted() const {
    MutexLock lock(&mutex_);
    return submitted_;
  }
  std::vector<AbortRequest> aborted() const {
    MutexLock lock(&mutex_);
    return aborted_;
  }
  void set_serving(const Serving& serving) {
    MutexLock lock(&mutex_);
    serving_ = serving;
  }

  // Called for each output, in order, and one after another. An error refuses the whole call.
  class OnSubmit {
   public:
    using Function = std::function<absl::Status(core::RequestId, std::shared_ptr<TokenSink>)>;
    void operator=(Function function) {
      MutexLock lock(&mutex_);
      function_ = std::move(function);
    }
    absl::Status operator()(core::RequestId id, std::shared_ptr<TokenSink> sink) {
      MutexLock lock(&mutex_);
      return function_(id, std::move(sink));
    }

   private:
    Mutex mutex_;
    Function function_ ABSL_GUARDED_BY(mutex_);
  } on_submit;
  std::atomic<int> calls = 0;
  absl::Status refuse;
  Loads loads;

 private:
  std::atomic<core::RequestId> next_id_ = 41;
  mutable Mutex mutex_;
  Serving serving_ ABSL_GUARDED_BY(mutex_);
  std::vector<ClientRequest> submitted_ ABSL_GUARDED_BY(mutex_);
  std::vector<AbortRequest> aborted_ ABSL_GUARDED_BY(mutex_);
  std::vector<Cancelled> cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router
