// The definitions of GenerateStream, for the file of each protocol that instantiates it.
#ifndef BFIO_ROUTER_FRONTEND_GATEWAY_GENERATE_STREAM_IMPL_H_
#define BFIO_ROUTER_FRONTEND_GATEWAY_GENERATE_STREAM_IMPL_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/net/status.h"
#include "router/frontend/gateway/generate_stream.h"
#include "router/requests/passed_trailers.h"

namespace bfio::router::gateway {

// Memory that the message takes, in multiples of a token id's size; at least 1.
inline int64_t WordsOf(const PassedPtr& message) {
  return 1 + message->bytes() / 4;
}

// Bound of what a call without a stream keeps of the messages of several engines: 256 MiB, four of the
// largest messages. A single message may be as large as the router accepts.
inline constexpr int64_t kMostKeptWords = int64_t{64} << 20;

inline const char* ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kAbort:
      return "abort";
  }
  return "error";
}

template <typename Wire>
class GenerateStream<Wire>::Sink final : public TokenSink {
 public:
  Sink(GenerateStream* call, uint32_t index, core::RequestId id) : call_(call), index_(index), id_(id) {}

  uint64_t id() const override { return id_; }
  const std::string& traceparent() const override { return call_->options_.traceparent; }
  // Used for resumable requests only.
  void SetModel(const std::string&) override {}
  void CatchUp(uint32_t, absl::Span<const uint32_t>, const LogprobsView&) override {}
  Delivery Deliver(uint32_t, absl::Span<const uint32_t> tokens, const LogprobsView& logprobs,
                   absl::Time now) override {
    return call_->Deliver(index_, tokens, logprobs, now);
  }
  Delivery Pass(absl::Span<const PassedPtr> messages, absl::Time now) override {
    return call_->Pass(index_, messages, now);
  }
  bool End(const absl::Status& status, std::optional<router::Finish> finish) override {
    return call_->EndOutput(index_, status, finish);
  }
  void Flush() override { call_->WriteDirty(); }
  void BreakOff() override {
    if (call_->MayBreakOff(index_)) call_->BreakOffEnded();
  }

 private:
  GenerateStream* const call_;
  const uint32_t index_;
  const core::RequestId id_;
};

template <typename Wire>
GenerateStream<Wire>::GenerateStream(grpc::CallbackServerContext* context, Options options)
    : Call(context, options.open, std::move(options.on_request)), options_(std::move(options)) {}
template <typename Wire>
GenerateStream<Wire>::~GenerateStream() = default;

template <typename Wire>
std::shared_ptr<GenerateStream<Wire>> GenerateStream<Wire>::Create(grpc::CallbackServerContext* context,
                                                                   Options options) {
  std::shared_ptr<GenerateStream> stream(new GenerateStream(context, std::move(options)));
  stream->Open(stream);
  return stream;
}

template <typename Wire>
std::vector<std::shared_ptr<TokenSink>> GenerateStream<Wire>::BeginOutputs(Shape shape) {
  MutexLock lock(&mutex_);
  shape_ = std::move(shape);
  live_ = shape_.ids.size();
  outputs_.resize(live_);
  std::vector<std::shared_ptr<TokenSink>> sinks;
  for (uint32_t index = 0; index < live_; ++index) {
    outputs_[index].stop_text = shape_.stop_text;
    sinks_.push_back(std::make_unique<Sink>(this, index, shape_.ids[index]));
    // Lives as long as the call.
    sinks.emplace_back(this->shared_from_this(), sinks_.back().get());
  }
  return sinks;
}

template <typename Wire>
std::vector<uint32_t> GenerateStream<Wire>::LiveOutputs() {
  MutexLock lock(&mutex_);
  std::vector<uint32_t> live;
  for (uint32_t index = 0; index < outputs_.size(); ++index) {
    if (!outputs_[index].ended) live.push_back(index);
  }
  return live;
}

template <typename Wire>
absl::Span<const uint32_t> GenerateStream<Wire>::UpToStop(Output& output, absl::Span<const uint32_t> tokens) {
  if (!output.stop_text) return tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::optional<std::string> stop = output.stop_text->Add(tokens[i]);
    if (!stop) continue;
    output.matched_text = *std::move(stop);
    return tokens.subspan(0, i + 1);
  }
  return tokens;
}

template <typename Wire>
TokenSink::Delivery GenerateStream<Wire>::Deliver(uint32_t index, absl::Span<const uint32_t> tokens,
                                                  const LogprobsView& logprobs, absl::Time now) {
  using Delivery = TokenSink::Delivery;
  MutexLock lock(&mutex_);
  Output& output = outputs_[index];
  if (this->ended() || this->broken() || output.ended || tokens.empty()) return Delivery::kTaken;
  const int64_t words = static_cast<int64_t>(tokens.size()) + logprobs.words();
  if (this->TooSlow(waiting_, words, options_.limits, now)) return Delivery::kTooSlow;
  tokens = UpToStop(output, tokens);
  output.pending.insert(output.pending.end(), tokens.begin(), tokens.end());
  output.tokens += static_cast<uint32_t>(tokens.size());
  output.last_token = tokens.back();
  const LogprobsView kept = logprobs.subspan(0, tokens.size());
  output.logprobs.Append(kept);
  waiting_ += static_cast<int64_t>(tokens.size()) + kept.words();
  if (!output.matched_text.empty()) return Delivery::kEnough;
  if (!shape_.stream) return Delivery::kTaken;
  return this->MarkDirty() ? Delivery::kFlush : Delivery::kTaken;
}

template <typename Wire>
TokenSink::Delivery GenerateStream<Wire>::Pass(uint32_t index, absl::Span<const PassedPtr> messages,
                                               absl::Time now) {
  using Delivery = TokenSink::Delivery;
  int64_t words = 0;
  for (const PassedPtr& message : messages) words += WordsOf(message);
  bool flush = false;
  {
    MutexLock lock(&mutex_);
    if (this->ended() || this->broken() || outputs_[index].ended) return Delivery::kTaken;
    if (this->TooSlow(waiting_, words, options_.limits, now)) return Delivery::kTooSlow;
    if (shape_.stream || this->MayQueue(waiting_, words, kMostKeptWords))
      return Keep(outputs_[index], messages);
    this->SetEnd({grpc::StatusCode::RESOURCE_EXHAUSTED,
                  "the outputs of the call are larger than 256 MiB in total: set stream: true"});
    for (Output& one : outputs_) one.passed.clear();
    waiting_ = 0;
    flush = this->MarkDirty();
  }
  CancelAll(/*timed_out=*/false);
  return flush ? Delivery::kFlush : Delivery::kTaken;
}

template <typename Wire>
TokenSink::Delivery GenerateStream<Wire>::Keep(Output& output, absl::Span<const PassedPtr> messages) {
  using Delivery = TokenSink::Delivery;
  for (const PassedPtr& message : messages) {
    const Response* const response = PassedMessage<Response>::In(message.get());
    if (response == nullptr) continue;  // not of this protocol
    output.completed = response->has_complete();
    output.tokens += static_cast<uint32_t>(response->chunk().token_ids_size());
    output.passed.push_back(message);
    waiting_ += WordsOf(message);
  }
  if (!shape_.stream) return Delivery::kTaken;
  return this->MarkDirty() ? Delivery::kFlush : Delivery::kTaken;
}

template <typename Wire>
bool GenerateStream<Wire>::EndOutput(uint32_t index, const absl::Status& status,
                                     const std::optional<router::Finish>& finish) {
  bool failed = false, flush = false;
  {
    MutexLock lock(&mutex_);
    Output& output = outputs_[index];
    if (this->ended() || output.ended) return false;
    output.ended = true;
    --live_;
    if (!status.ok() || !finish) {
      failed = live_ > 0;
      ends_call_ = index;
      flush = this->SetEnd(ToGrpcStatus(status)) && this->MarkDirty();
      if (this->context() != nullptr) {
        ForEachTrailer(status, [this](const std::string& key, const std::string& value) {
          this->context()->AddTrailingMetadata(key, value);
        });
      }
      // Pending tokens of cancelled requests are not sent, nor what was kept until all outputs have ended.
      for (Output& one : outputs_) {
        if (absl::IsCancelled(status) || !shape_.stream) {
          one.pending.clear();
          one.logprobs.Clear();
          one.passed.clear();
        }
        if (!shape_.stream) one.finish.reset();
      }
    } else {
      if (!output.completed) output.finish = finish->reason;
      const std::vector<uint32_t>& stops = shape_.stop_token_ids;
      if (finish->reason == FinishReason::kStop && output.matched_text.empty() && output.tokens > 0 &&
          (Wire::kNamesEos || std::find(stops.begin(), stops.end(), output.last_token) != stops.end())) {
        output.matched_token = output.last_token;
      }
      if (live_ == 0) {
        ends_call_ = index;
        this->SetEnd(grpc::Status::OK);
      }
      flush = (shape_.stream || live_ == 0) && this->MarkDirty();
    }
  }
  if (failed) CancelAll(/*timed_out=*/false);
  return flush;
}

template <typename Wire>
bool GenerateStream<Wire>::MayBreakOff(uint32_t index) {
  MutexLock lock(&mutex_);
  return this->ended() && (!ends_call_ || *ends_call_ == index);
}

template <typename Wire>
void GenerateStream<Wire>::CancelAll(bool timed_out) {
  const std::vector<uint32_t> live = LiveOutputs();
  std::vector<core::RequestId> ids;
  {
    MutexLock lock(&mutex_);
    for (const uint32_t index : live) ids.push_back(shape_.ids[index]);
  }
  for (const core::RequestId id : ids) options_.cancel(id, timed_out);
}

template <typename Wire>
template <typename Message>
void GenerateStream<Wire>::FillLogprobs(Output& output, absl::Span<const uint32_t> tokens, Message& message) {
  message.clear_output_logprobs();
  if (output.logprobs.empty()) return;
  const LogprobsView from = output.logprobs.view();
  auto& out = *message.mutable_output_logprobs();
  out.mutable_token_logprobs()->Add(from.tokens.begin(), from.tokens.end());
  out.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  for (size_t i = 0; from.width() > 0 && i < from.tokens.size(); ++i) {
    auto& top = *out.add_top_logprobs();
    for (const TopToken& one : from.subspan(i, 1).top) {
      top.add_values(one.logprob);
      top.add_token_ids(one.id);
    }
  }
  waiting_ -= from.words();
  output.logprobs.Clear();
}

template <typename Wire>
void GenerateStream<Wire>::FillChunk(uint32_t index, Chunk& chunk) {
  std::vector<uint32_t>& tokens = outputs_[index].pending;
  FillLogprobs(outputs_[index], tokens, chunk);
  chunk.mutable_token_ids()->Assign(tokens.begin(), tokens.end());
  chunk.set_prompt_tokens(shape_.prompt_tokens);
  chunk.set_completion_tokens(Wire::kChunksCountAll ? outputs_[index].tokens
                                                    : static_cast<uint32_t>(tokens.size()));
  chunk.set_index(index);
  waiting_ -= static_cast<int64_t>(tokens.size());
  tokens.clear();
}

template <typename Wire>
void GenerateStream<Wire>::FillComplete(uint32_t index, Complete& complete) {
  Output& output = outputs_[index];
  FillLogprobs(output, output.pending, complete);
  complete.mutable_output_ids()->Assign(output.pending.begin(), output.pending.end());
  waiting_ -= static_cast<int64_t>(output.pending.size());
  std::vector<uint32_t>().swap(output.pending);
  complete.set_finish_reason(ReasonName(*std::exchange(output.finish, std::nullopt)));
  complete.set_prompt_tokens(shape_.prompt_tokens);
  complete.set_completion_tokens(output.tokens);
  complete.set_index(index);
  if (output.matched_token) complete.set_matched_token_id(*output.matched_token);
  if (!output.matched_text.empty()) complete.set_matched_stop_str(output.matched_text);
}

template <typename Wire>
void GenerateStream<Wire>::FillPassed(uint32_t index, Response& response) {
  Output& output = outputs_[index];
  const PassedPtr message = std::move(output.passed.front());
  output.passed.pop_front();
  waiting_ -= WordsOf(message);
  response = *PassedMessage<Response>::In(message.get());
  if (response.has_chunk()) response.mutable_chunk()->set_index(index);
  if (response.has_complete()) response.mutable_complete()->set_index(index);
}

template <typename Wire>
bool GenerateStream<Wire>::Next(Response& response) {
  // Without a stream all outputs are written together, in order: gateways rely on the order.
  if (!shape_.stream && live_ > 0) return false;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const size_t index = (next_ + i) % outputs_.size();
    Output& output = outputs_[index];
    if (shape_.stream && !output.pending.empty()) {
      // The response holds the last message: most chunks follow a chunk and reuse its memory.
      FillChunk(static_cast<uint32_t>(index), *response.mutable_chunk());
    } else if (!output.passed.empty()) {
      FillPassed(static_cast<uint32_t>(index), response);
    } else if (output.finish) {
      response.Clear();
      FillComplete(static_cast<uint32_t>(index), *response.mutable_complete());
    } else {
      continue;
    }
    Wire::SetRequestId(shape_.request_id, response);
    next_ = index + 1;
    return true;
  }
  return false;
}

}  // namespace bfio::router::gateway

#endif  // BFIO_ROUTER_FRONTEND_GATEWAY_GENERATE_STREAM_IMPL_H_
