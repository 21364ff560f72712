// A StreamCall for a caller that reads message by message and blocks while it waits.
//
// Purpose: at most kReadAhead messages wait for a slow caller; then gRPC's flow control stops the router.
// Threads: Take and Abandon on one thread; Cancel on any.
#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "tools/client/stream_call.h"

namespace bfio::client {

class StreamReader : public StreamCall {
 public:
  // More than 1, because each read that Take starts passes through two other threads. 16 is not tuned.
  static constexpr size_t kReadAhead = 16;

  explicit StreamReader(v1::GenerateRequest request, absl::Time deadline = absl::InfiniteFuture(),
                        const Metadata& metadata = {})
      : StreamCall(std::move(request), deadline, metadata) {}

  // A message, the final status, or std::monostate when neither arrived within `patience`.
  std::variant<std::monostate, v1::GenerateResponse, grpc::Status> Take(absl::Duration patience);

  // Cancels the call and discards messages that were not taken. REQUIRES: no Take afterwards.
  void Abandon();

 private:
  Then OnMessage(v1::GenerateResponse& message, absl::Time arrived) final;
  void OnEnd(const grpc::Status& status, absl::Time ended) final;
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !waiting_.empty() || status_.has_value();
  }

  Mutex mutex_;
  std::deque<v1::GenerateResponse> waiting_ ABSL_GUARDED_BY(mutex_);
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bfio::client
