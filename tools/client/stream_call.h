// One Generate call: the lowest layer of every C++ client that streams tokens from a router.
//
// Purpose: delivers each message with its time of arrival, then the status. It does not retry, check or
// count; subclasses do. At most one message is read ahead of the subclass: the next read begins when
// OnMessage, or ReadNext after a pause, allows it, so a slow subclass slows the router down through gRPC's
// flow control.
// Ownership: shared_ptrs, one of which the call itself holds from Start until OnEnd has returned.
// Threads: OnMessage and OnEnd are called by gRPC's threads, one at a time, and must not block; Cancel may be
// called by any thread.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/net/client_reactor.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace bfio::client {

// The headers of a call.
//
// Purpose: gRPC aborts the process on an invalid header, so headers are checked before. Pure.

using Metadata = std::vector<std::pair<std::string, std::string>>;

// The header that carries a bearer token; empty for an empty token.
Metadata BearerToken(const std::string& token);

// INVALID_ARGUMENT for a name or a value that HTTP/2 cannot carry.
absl::Status CheckMetadata(const Metadata& metadata);

class StreamCall : public std::enable_shared_from_this<StreamCall>,
                   private ClientReactor<grpc::ClientReadReactor<v1::GenerateResponse>> {
 public:
  ~StreamCall() override = default;

  // Sends the request. REQUIRES: called once, on an object that a shared_ptr owns; `stub` lives until OnEnd.
  void Start(v1::Inference::Stub& stub);
  // Ends the call soon, with CANCELLED unless it has already ended with another status. Has no effect after
  // the end. OnMessage and OnEnd of any call may run inside: the caller must not hold a lock that they take.
  void Cancel();

 protected:
  enum class Then { kRead, kPause };

  // `deadline` is a time of the wall clock, as gRPC requires; `metadata` must pass CheckMetadata.
  StreamCall(v1::GenerateRequest request, absl::Time deadline, const Metadata& metadata);

  // `message` stays valid and unchanged until the next read begins: at once after kRead, with ReadNext after
  // kPause. `arrived` is a time of MonotonicNow.
  virtual Then OnMessage(v1::GenerateResponse& message, absl::Time arrived) = 0;
  // Called once, as the last call, when the call no longer refers to stub and channel. A paused call does not
  // end: code that pauses it must call ReadNext, also after Cancel.
  virtual void OnEnd(const grpc::Status& status, absl::Time ended) = 0;
  // REQUIRES: OnMessage returned kPause for the last message, and ReadNext has not been called since.
  void ReadNext();

 private:
  void OnReadDone(bool ok) final;
  void OnDone(const grpc::Status& status) final;

  const v1::GenerateRequest request_;
  v1::GenerateResponse message_;
  std::shared_ptr<StreamCall> self_;
  Mutex mutex_;
  // Null after the end. A context holds a reference to its channel, and no thread of gRPC may drop the last
  // one.
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
};

// A StreamCall for a caller that reads message by message and blocks while it waits.
//
// Purpose: at most kReadAhead messages wait for a slow caller; then gRPC's flow control stops the router.
// Threads: Take and Abandon on one thread; Cancel on any.
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
