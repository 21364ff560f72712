// A client that resumes its request when the stream breaks, until the request has ended.
//
// Purpose: the behaviour of a careful client, for tests that kill routers and connections. Checks every
// index. Threads: one thread calls Join; any thread may call Break and tokens_seen.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "tests/testing/process.h"
#include "tests/testing/request_stream.h"

namespace bfio::testing {

class ResumingClient {
 public:
  // Starts at once; `request` must have an id.
  ResumingClient(std::string address, v1::GenerateRequest request)
      : request_(std::move(request)), thread_([this, address] { Run(address); }) {}
  ~ResumingClient() { Join(); }

  // Waits for the end of the request.
  const GenerateResult& Join() {
    if (thread_.joinable()) thread_.join();
    return result_;
  }

  // Breaks the stream, as a lost connection would.
  void Break() {
    MutexLock lock(&mutex_);
    if (stream_ != nullptr) stream_->Cancel();
  }

  size_t tokens_seen() const { return seen_.load(); }

 private:
  void Run(const std::string& address) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    // This is also the timeout of one connection attempt, which can take long on a busy machine.
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    const auto stub =
        v1::Inference::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
    const absl::Time give_up = MonotonicNow() + kSlowdown * absl::Seconds(60);
    request_.set_resumable(true);
    do {
      ReadOneStream(*stub);
      const grpc::StatusCode code = result_.status.error_code();
      if (code != grpc::StatusCode::UNAVAILABLE && code != grpc::StatusCode::CANCELLED) return;
      if (result_.finishes > 0) {  // the stream broke after its last message, before its status
        result_.status = grpc::Status::OK;
        return;
      }
      request_.set_resume_from_index(static_cast<uint32_t>(result_.tokens.size()));
      // Sending the received tokens is optional: every second client does.
      if (request_.request_id().size() % 2 == 0)
        *request_.mutable_received_token_ids() = {result_.tokens.begin(), result_.tokens.end()};
      absl::SleepFor(absl::Milliseconds(20));
    } while (MonotonicNow() < give_up);
  }

  void ReadOneStream(v1::Inference::Stub& stub) {
    RequestStream stream(stub, request_, {.deadline = kSlowdown * absl::Seconds(60), .so_far = result_});
    SetStream(&stream);
    while (stream.Read()) seen_ = stream.result().tokens.size();
    result_ = stream.result();
    SetStream(nullptr);
  }

  void SetStream(RequestStream* stream) {
    MutexLock lock(&mutex_);
    stream_ = stream;
  }

  v1::GenerateRequest request_;
  GenerateResult result_;
  std::atomic<size_t> seen_ = 0;
  Mutex mutex_;
  RequestStream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace bfio::testing
