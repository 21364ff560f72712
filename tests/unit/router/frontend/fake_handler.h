// A fake of the state behind the client APIs.
#ifndef BFIO_TESTS_UNIT_ROUTER_FRONTEND_FAKE_HANDLER_H_
#define BFIO_TESTS_UNIT_ROUTER_FRONTEND_FAKE_HANDLER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
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

// Takes one request at a time and handles it as the test specifies.
class FakeHandler final : public RequestHandler {
 public:
  core::RequestId NextId() override { return next_id_++; }
  absl::Status Submit(ClientRequest request, std::vector<Output> outputs) override {
    ++calls;
    for (uint32_t i = 0; i < outputs.size(); ++i) {
      {
        MutexLock lock(&mutex_);
        submitted.push_back(OutputOf(request, i));
      }
      if (absl::Status status = on_submit(outputs[i].id, std::move(outputs[i].sink)); !status.ok())
        return status;
    }
    return absl::OkStatus();
  }
  void Cancel(uint64_t sink_id, bool timed_out) override {
    {
      MutexLock lock(&mutex_);
      cancelled_ = {sink_id, timed_out};
      all_cancelled_.push_back(sink_id);
    }
    if (on_cancel) on_cancel(sink_id);
  }
  absl::Status Abort(AbortRequest request, absl::AnyInvocable<void(absl::StatusOr<bool>) &&> done) override {
    aborted = request;
    all_aborted.push_back(std::move(request));
    if (!refuse.ok()) return refuse;
    std::move(done)(abort_finds);
    return absl::OkStatus();
  }
  absl::Status GetLoads(std::optional<uint32_t> rank,
                        absl::AnyInvocable<void(absl::StatusOr<Loads>) &&> done) override {
    std::move(done)(rank ? absl::StatusOr<Loads>(absl::NotFoundError("no such rank")) : loads);
    return absl::OkStatus();
  }

  Serving GetServing() const override { return serving; }

  // Waits for a cancellation.
  std::optional<std::pair<uint64_t, bool>> AwaitCancel(absl::Duration patience = absl::Seconds(60)) {
    MutexLock lock(&mutex_);
    const auto some = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return cancelled_.has_value(); };
    mutex_.AwaitWithTimeout(absl::Condition(&some), patience);
    return cancelled_;
  }

  // Waits for `count` cancellations.
  std::vector<uint64_t> AwaitCancels(size_t count) {
    MutexLock lock(&mutex_);
    const auto all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return all_cancelled_.size() >= count; };
    mutex_.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(60));
    return all_cancelled_;
  }

  // Like AwaitCancel; the next call waits for another cancellation.
  std::optional<std::pair<uint64_t, bool>> TakeCancel(absl::Duration patience) {
    AwaitCancel(patience);
    MutexLock lock(&mutex_);
    return std::exchange(cancelled_, std::nullopt);
  }

  // Called for each output, in order. An error refuses the whole call.
  std::function<absl::Status(core::RequestId, std::shared_ptr<TokenSink>)> on_submit;
  std::atomic<int> calls = 0;
  // Called on each cancellation, if set.
  std::function<void(uint64_t sink_id)> on_cancel;
  std::vector<ClientRequest> submitted;
  std::optional<AbortRequest> aborted;
  std::vector<AbortRequest> all_aborted;
  absl::Status refuse;
  // The response to an Abort.
  bool abort_finds = true;
  Loads loads;
  Serving serving;

 private:
  std::atomic<core::RequestId> next_id_ = 41;
  Mutex mutex_;
  std::optional<std::pair<uint64_t, bool>> cancelled_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> all_cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router

#endif  // BFIO_TESTS_UNIT_ROUTER_FRONTEND_FAKE_HANDLER_H_
