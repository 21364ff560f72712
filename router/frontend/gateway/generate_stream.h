// A gateway's Generate call: one or several outputs of one request. Every output is a request of its own to
// the router, with a sink of its own; this call writes the tokens of all. With stream=true it writes a chunk
// with the tokens since the last one, then `complete`. Otherwise it keeps the tokens until all outputs have
// ended, within the peer's share of what all such calls keep, and then writes a `complete` each, in order. It
// searches for texts that end an output. Outputs fail together: after an error of one, or when the client is
// gone, the others are cancelled. An engine's messages, if the request passes, are written unchanged except
// for output index and request id.
//
// Ownership: the call owns itself (RequestCall); the sinks are part of it. Threads: those of ClientStream,
// whose rules for clients that do not read apply here, too.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/fair_share.h"
#include "common/net/any_message.h"
#include "router/core/model/request.h"
#include "router/frontend/gateway/protocol.h"
#include "router/frontend/request_call.h"
#include "router/frontend/tokenizer/token_text.h"
#include "router/requests/limits.h"
#include "router/requests/passed.h"
#include "router/requests/token_sink.h"

namespace bfio::router::gateway {

class GenerateStream final : public RequestCall<GenerateStream, AnyMessage, AnyMessage> {
 public:
  struct Options {
    // Outlives the call.
    const Protocol* protocol = nullptr;
    // W3C trace context of the call; empty: none.
    std::string traceparent;
    StreamLimits limits;
    // Counts the calls that are open; may be null, outlives the call.
    std::atomic<int64_t>* open = nullptr;
    // What calls without a stream keep, in words; null: no bound.
    std::shared_ptr<SharedCapacity> kept;
    // Must define the outputs (BeginOutputs).
    OnRequest on_request;
    // Cancels the request of an output; the request may have ended already. Any thread; must not block.
    std::function<void(core::RequestId id, bool timed_out)> cancel;
  };
  struct Shape {
    // The request's; its outputs'.
    std::string request_id;
    std::vector<core::RequestId> ids;
    bool stream = false;
    uint32_t prompt_tokens = 0;
    // Stop tokens that are named to the client when one of them ends an output.
    std::vector<uint32_t> stop_token_ids;
    // Copied for each output; empty: no text ends an output.
    std::optional<StopText> stop_text;
  };

  // Words of 4 bytes that all calls without a stream may keep: 256 MiB.
  static constexpr int64_t kMostKeptWords = int64_t{64} << 20;

  ~GenerateStream() override;

  // `context` is the call's.
  static std::shared_ptr<GenerateStream> Create(grpc::CallbackServerContext* context, Options options);

  // Returns the sinks of the outputs. They are parts of the call and keep it alive. REQUIRES: called once,
  // from on_request.
  std::vector<std::shared_ptr<TokenSink>> BeginOutputs(Shape shape);

  // The outputs that have not ended.
  std::vector<uint32_t> LiveOutputs();
  // Whether the call ended with this output: only this output's timer may then break the call off. Any
  // output's timer may, if the call ended otherwise.
  bool MayBreakOff(uint32_t index);

 private:
  using Call = RequestCall<GenerateStream, AnyMessage, AnyMessage>;

  class Sink;
  struct Output {
    // Tokens to be written, or kept until all outputs have ended.
    std::vector<uint32_t> pending;
    // The log-probabilities of `pending`, for requests with log-probabilities.
    Logprobs logprobs;
    std::optional<StopText> stop_text;
    std::string matched_text;
    std::optional<uint32_t> matched_token;
    // Number of tokens that have come.
    uint32_t tokens = 0;
    uint32_t last_token = 0;
    // Messages of an engine, to be written unchanged; whether the last one ends the output. Without a stream
    // the output so far.
    std::deque<PassedPtr> passed;
    MessagePtr whole;
    bool completed = false;
    // Set when the output has ended; empty again when that is written.
    std::optional<FinishReason> finish;
    bool ended = false;
  };

  GenerateStream(grpc::CallbackServerContext* context, Options options);

  TokenSink::Delivery Deliver(uint32_t index, absl::Span<const uint32_t> tokens, const LogprobsView& logprobs,
                              absl::Time now);
  TokenSink::Delivery Pass(uint32_t index, absl::Span<const PassedPtr> messages, absl::Time now);
  void StartOver(uint32_t index);
  // Reserves `words` more for a call without a stream; false beyond the peer's share.
  bool Reserve(int64_t words) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the message counts, in multiples of a token id's size. In a stream, for StreamLimits::buffer_tokens,
  // its bytes, or an eighth of its memory if that is more: usual messages take 7 to 11 times their bytes.
  // Otherwise its memory.
  int64_t WordsOf(const PassedPtr& message) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a call that may keep no more. REQUIRES: the caller then cancels its requests. Returns MarkDirty.
  bool GiveUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TokenSink::Delivery Keep(Output& output, absl::Span<const uint32_t> tokens, const LogprobsView& logprobs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TokenSink::Delivery Keep(Output& output, absl::Span<const PassedPtr> messages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool EndOutput(uint32_t index, const absl::Status& status, const std::optional<router::Finish>& finish);

  void OnAbandoned(bool timed_out) override { CancelAll(timed_out); }
  bool Next(AnyMessage& response) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The tokens up to the one with which a stop text is complete, or all tokens.
  absl::Span<const uint32_t> UpToStop(Output& output, absl::Span<const uint32_t> tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Move what an output has pending into the response.
  void FillChunk(uint32_t index, Message& response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillComplete(uint32_t index, Message& response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillPassed(uint32_t index, Message& response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OutputPart Pending(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelAll(bool timed_out) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  Shape shape_ ABSL_GUARDED_BY(mutex_);
  std::vector<Output> outputs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Sink>> sinks_ ABSL_GUARDED_BY(mutex_);
  // The output at which the search for something to write begins, so that no output blocks the others.
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  // Tokens in the outputs' `pending`, with their log-probabilities (LogprobsView::words), and `passed` in the
  // same units (WordsOf). Number of outputs that have not ended.
  int64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  CapacityShare kept_ ABSL_GUARDED_BY(mutex_);
  // Of the message that is being written.
  std::shared_ptr<const void> share_ ABSL_GUARDED_BY(mutex_);
  size_t live_ ABSL_GUARDED_BY(mutex_) = 0;
  // The output whose end ended the call; empty before that, or when the call ended otherwise.
  std::optional<uint32_t> ends_call_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router::gateway
