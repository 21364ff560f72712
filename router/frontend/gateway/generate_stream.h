// A gateway's Generate call: one or several outputs of one request.
//
// Purpose: every output is a request of its own to the router, with a sink of its own; this call writes the
// output of them all. As a stream: a chunk with the tokens since the last one, then `complete`. Otherwise the
// outputs' tokens are kept until all have ended, and come in a `complete` each, in order: that holds
// max_new_tokens per output at most. Texts that end an output are searched here. Outputs fail together: with
// an error of one, or a client that is gone, the others are cancelled. Messages of an engine to which the
// request passes are written as they are, but for the output's index and the request's id. `Wire` is a
// protocol (the header of its service): its messages, and where they differ.
//
// Ownership: the call owns itself (RequestCall); the sinks are part of it. Threads: those of ClientStream,
// whose rules for clients that do not read apply here, too.
#ifndef BFIO_ROUTER_FRONTEND_GATEWAY_GENERATE_STREAM_H_
#define BFIO_ROUTER_FRONTEND_GATEWAY_GENERATE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/core/model/request.h"
#include "router/frontend/request_call.h"
#include "router/frontend/tokenizer/stop_text.h"
#include "router/requests/limits.h"
#include "router/requests/passed.h"
#include "router/requests/token_sink.h"

namespace bfio::router::gateway {

template <typename Wire>
class GenerateStream final : public RequestCall<GenerateStream<Wire>, typename Wire::GenerateRequest,
                                                typename Wire::GenerateResponse> {
 public:
  using Request = typename Wire::GenerateRequest;
  using Response = typename Wire::GenerateResponse;
  using Chunk = std::remove_cvref_t<decltype(std::declval<Response>().chunk())>;
  using Complete = std::remove_cvref_t<decltype(std::declval<Response>().complete())>;
  using OnRequest = typename RequestCall<GenerateStream, Request, Response>::OnRequest;

  struct Options {
    // W3C trace context of the call; empty: none.
    std::string traceparent;
    StreamLimits limits;
    // Counts the calls that are open; may be null, outlives the call.
    std::atomic<int64_t>* open = nullptr;
    // It defines the outputs (BeginOutputs).
    OnRequest on_request;
    // Cancels the request of an output, which may have ended. Any thread; must not block.
    std::function<void(core::RequestId id, bool timed_out)> cancel;
  };
  struct Shape {
    // The request's; its outputs'.
    std::string request_id;
    std::vector<core::RequestId> ids;
    bool stream = false;
    uint32_t prompt_tokens = 0;
    // Tokens whose match is named to the client.
    std::vector<uint32_t> stop_token_ids;
    // Copied for each output; nothing: no text ends one.
    std::optional<StopText> stop_text;
  };

  ~GenerateStream() override;

  // `context` is the call's.
  static std::shared_ptr<GenerateStream> Create(grpc::CallbackServerContext* context, Options options);

  // Returns the sinks of the outputs, parts of the call that keep it alive. REQUIRES: called once, from
  // on_request.
  std::vector<std::shared_ptr<TokenSink>> BeginOutputs(Shape shape);

  // Outputs that have not ended.
  std::vector<uint32_t> LiveOutputs();
  // Whether the end of this output was the call's: the time that its client has for reading the end runs from
  // there. Any output's, when the call ended otherwise.
  bool MayBreakOff(uint32_t index);

 private:
  using Call = RequestCall<GenerateStream, Request, Response>;
  using Call::mutex_;

  class Sink;
  struct Output {
    // To be written, or kept until all have ended.
    std::vector<uint32_t> pending;
    // The log-probabilities of `pending`, for requests with log-probabilities.
    Logprobs logprobs;
    std::optional<StopText> stop_text;
    std::string matched_text;
    std::optional<uint32_t> matched_token;
    // All that came.
    uint32_t tokens = 0;
    uint32_t last_token = 0;
    // Messages of an engine, to be written unchanged; and whether the last one ends the output.
    std::deque<PassedPtr> passed;
    bool completed = false;
    // Set when it has ended and that is not written yet.
    std::optional<FinishReason> finish;
    bool ended = false;
  };

  GenerateStream(grpc::CallbackServerContext* context, Options options);

  TokenSink::Delivery Deliver(uint32_t index, absl::Span<const uint32_t> tokens, const LogprobsView& logprobs,
                              absl::Time now);
  TokenSink::Delivery Pass(uint32_t index, absl::Span<const PassedPtr> messages, absl::Time now);
  TokenSink::Delivery Keep(Output& output, absl::Span<const PassedPtr> messages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool EndOutput(uint32_t index, const absl::Status& status, const std::optional<router::Finish>& finish);

  void OnAbandoned(bool timed_out) override { CancelAll(timed_out); }
  bool Next(Response& response) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Those up to the one with which a text ends the output, if there is one.
  absl::Span<const uint32_t> UpToStop(Output& output, absl::Span<const uint32_t> tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillChunk(uint32_t index, Chunk& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves what an output has pending into the message.
  template <typename Message>
  void FillLogprobs(Output& output, absl::Span<const uint32_t> tokens, Message& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillComplete(uint32_t index, Complete& complete) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next message of an engine.
  void FillPassed(uint32_t index, Response& response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelAll(bool timed_out) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  Shape shape_ ABSL_GUARDED_BY(mutex_);
  std::vector<Output> outputs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Sink>> sinks_ ABSL_GUARDED_BY(mutex_);
  // Where the search for something to write begins: no output prevents the others from being written.
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  // Tokens in the outputs' `pending`, with their log-probabilities (LogprobsView::words), and `passed` in
  // such units (WordsOf); and outputs that have not ended.
  int64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t live_ ABSL_GUARDED_BY(mutex_) = 0;
  // The output with which the call ended; absent while it has not, or when it ended otherwise.
  std::optional<uint32_t> ends_call_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router::gateway

#endif  // BFIO_ROUTER_FRONTEND_GATEWAY_GENERATE_STREAM_H_
