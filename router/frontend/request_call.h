// The server's side of a call that brings a request and streams its tokens. The shared part of the client
// protocols' Generate calls. The request is received (ServerCall), handed over once and freed, so that no
// copy of a prompt is kept for as long as the call lasts. A cancelled call ends itself before the handover;
// after it, its owner is notified. Ownership, writes and the end of the call: ServerCall. Threads: gRPC's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/net/server_call.h"
#include "common/net/status.h"
#include "common/telemetry/trace_context.h"
#include "router/requests/limits.h"

namespace bfio::router {

// The W3C trace context of a call; empty: it has none.
inline std::string TraceparentOf(const grpc::CallbackServerContext& context) {
  const auto trace = context.client_metadata().find("traceparent");
  if (trace == context.client_metadata().end()) return {};
  const absl::string_view value(trace->second.data(), trace->second.size());
  return TraceIdOf(value).empty() ? std::string() : std::string(value);
}

template <typename Derived, typename In, typename Out>
class RequestCall : public ServerCall<Derived, In, Out> {
 public:
  // Called at most once, on a gRPC thread, with the client's request. With an error the call ends; with OK
  // its new owner ends it.
  using OnRequest = std::function<absl::Status(const std::shared_ptr<Derived>&, In)>;

  void OnCancel() final {
    const GrpcReaction reaction(this);
    const bool timed_out = TimedOut();
    {
      MutexLock lock(&mutex_);
      cancelled_ = true;
      if (phase_ == Phase::kHandingOver) return;
      if (phase_ == Phase::kAwaiting) {
        this->SetEnd(grpc::Status::CANCELLED);
        return this->Advance();
      }
    }
    OnAbandoned(timed_out);
  }

 protected:
  using Base = ServerCall<Derived, In, Out>;
  using Base::mutex_;

  // Whether the caller must have the call flushed. False: a flush is due already, or a thread is writing and
  // will see the change.
  bool MarkDirty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (dirty_ || this->writing()) return false;
    dirty_ = true;
    return true;
  }
  // Starts the write for which MarkDirty was called.
  void WriteDirty() {
    MutexLock lock(&mutex_);
    dirty_ = false;
    this->Advance();
  }
  // GRPC knows of a cancellation before it calls OnCancel, which waits for a thread.
  bool ClientCancelled() {
    MutexLock lock(&mutex_);
    return cancelled_ || (!this->finished() && this->context()->IsCancelled());
  }
  // Breaks off an ended call whose client does not read the end.
  void BreakOffEnded() {
    if (this->HasEnded()) this->BreakOffIfStuck(MonotonicNow(), absl::ZeroDuration());
  }
  // Whether the client has left so much unread, or for so long, that it gets no more. `waiting` and `coming`
  // are in token ids.
  bool TooSlow(int64_t waiting, int64_t coming, const StreamLimits& limits, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool full = !this->MayQueue(waiting, coming, limits.buffer_tokens);
    return this->writing() && (full || this->Untaken(now) > limits.timeout);
  }

  // `open` counts the calls that are open; may be null, outlives the call. `incoming`: as in ServerCall.
  RequestCall(grpc::CallbackServerContext* context, std::atomic<int64_t>* open, OnRequest on_request,
              In incoming = In())
      : Base(context, std::move(incoming)),
        open_(open),
        on_request_(std::move(on_request)),
        created_(std::chrono::system_clock::now()) {
    if (open_ != nullptr) open_->fetch_add(1, std::memory_order_relaxed);
  }

  // The client has gone away or its deadline has passed (`timed_out`), after on_request was OK. No lock is
  // held.
  virtual void OnAbandoned(bool timed_out) = 0;

 private:
  // The handling of a cancellation.
  enum class Phase {
    // The request has not been received: the call ends itself.
    kAwaiting,
    // The request is being handed over: `cancelled_` records a cancellation until that is done.
    kHandingOver,
    // OnAbandoned notifies the request's owner of a cancellation.
    kHandedOver,
  };

  void OnMessage(In request) final {
    {
      MutexLock lock(&mutex_);
      if (this->ended()) return;  // too late, or cancelled
      phase_ = Phase::kHandingOver;
    }
    const absl::Status taken = on_request_(this->shared_from_this(), std::move(request));
    if (!taken.ok()) return this->Close(ToGrpcStatus(taken));
    {
      MutexLock lock(&mutex_);
      phase_ = Phase::kHandedOver;
      if (!cancelled_) return;
    }
    // Notified only now, because its owner could not have found the call before.
    OnAbandoned(TimedOut());
  }
  // The router has ended the call; OnCancel follows and reports it.
  void OnBroken() final ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}
  void OnGone() final {
    if (open_ != nullptr) open_->fetch_sub(1, std::memory_order_relaxed);
  }

  bool TimedOut() const {
    // The call's deadline here may be later than the client's: it counts from the call's arrival, and is
    // rounded up by up to 1 %. A client that cancels so shortly before it has reached its own deadline.
    const auto deadline = this->context()->deadline();
    const auto grace = (deadline - created_) / 100 + std::chrono::milliseconds(50);
    return deadline - grace <= std::chrono::system_clock::now();
  }

  std::atomic<int64_t>* const open_;
  const OnRequest on_request_;
  const std::chrono::system_clock::time_point created_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kAwaiting;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;  // waits for WriteDirty
};

}  // namespace bfio::router
