#include "router/frontend/gateway/generate_stream.h"

#include <algorithm>

#include "common/net/status.h"
#include "router/requests/passed_trailers.h"

namespace bfio::router::gateway {
namespace {

// A call's reservation grows by at least as many words.
constexpr int64_t kReserve = 1024;

const char* ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength: return "length";
    case FinishReason::kStop: return "stop";
    case FinishReason::kAbort: return "abort";
  }
  return "error";
}

}  // namespace

class GenerateStream::Sink final : public TokenSink {
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
  void StartOver() override { call_->StartOver(index_); }
  bool End(const absl::Status& status, std::optional<router::Finish> finish) override {
    return call_->EndOutput(index_, status, finish);
  }
  bool Cancelled() override { return call_->ClientCancelled(); }
  void Flush() override { call_->WriteDirty(); }
  void BreakOff() override {
    if (call_->MayBreakOff(index_)) call_->BreakOffEnded();
  }

 private:
  GenerateStream* const call_;
  const uint32_t index_;
  const core::RequestId id_;
};

GenerateStream::GenerateStream(grpc::CallbackServerContext* context, Options options)
    : Call(context, options.open, std::move(options.on_request),
           AnyMessage::Of(options.protocol->types.generate_request)),
      options_(std::move(options)),
      kept_(options_.kept) {}
GenerateStream::~GenerateStream() = default;

std::shared_ptr<GenerateStream> GenerateStream::Create(grpc::CallbackServerContext* context,
                                                       Options options) {
  std::shared_ptr<GenerateStream> stream(new GenerateStream(context, std::move(options)));
  stream->Open(stream);
  return stream;
}

std::vector<std::shared_ptr<TokenSink>> GenerateStream::BeginOutputs(Shape shape) {
  MutexLock lock(&mutex_);
  shape_ = std::move(shape);
  live_ = shape_.ids.size();
  outputs_.resize(live_);
  std::vector<std::shared_ptr<TokenSink>> sinks;
  for (uint32_t index = 0; index < live_; ++index) {
    outputs_[index].stop_text = shape_.stop_text;
    sinks_.push_back(std::make_unique<Sink>(this, index, shape_.ids[index]));
    // Lives as long as the call.
    sinks.emplace_back(shared_from_this(), sinks_.back().get());
  }
  return sinks;
}

std::vector<uint32_t> GenerateStream::LiveOutputs() {
  MutexLock lock(&mutex_);
  std::vector<uint32_t> live;
  for (uint32_t index = 0; index < outputs_.size(); ++index) {
    if (!outputs_[index].ended) live.push_back(index);
  }
  return live;
}

absl::Span<const uint32_t> GenerateStream::UpToStop(Output& output, absl::Span<const uint32_t> tokens) {
  if (!output.stop_text) return tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::optional<std::string> stop = output.stop_text->Add(tokens[i]);
    if (!stop) continue;
    output.matched_text = *std::move(stop);
    return tokens.subspan(0, i + 1);
  }
  return tokens;
}

TokenSink::Delivery GenerateStream::Deliver(uint32_t index, absl::Span<const uint32_t> tokens,
                                            const LogprobsView& logprobs, absl::Time now) {
  using Delivery = TokenSink::Delivery;
  bool flush = false;
  {
    MutexLock lock(&mutex_);
    Output& output = outputs_[index];
    if (ended() || broken() || output.ended || tokens.empty()) return Delivery::kTaken;
    const int64_t words = static_cast<int64_t>(tokens.size()) + logprobs.words();
    if (TooSlow(waiting_, words, options_.limits, now)) return Delivery::kTooSlow;
    if (Reserve(words)) return Keep(output, tokens, logprobs);
    flush = GiveUp();
  }
  CancelAll(/*timed_out=*/false);
  return flush ? Delivery::kFlush : Delivery::kTaken;
}

bool GenerateStream::Reserve(int64_t words) {
  return shape_.stream || waiting_ + words <= kept_.held() || kept_.Take(peer(), std::max(words, kReserve));
}

int64_t GenerateStream::WordsOf(const PassedPtr& message) const {
  return 1 + (shape_.stream ? std::max(message->bytes(), message->memory() / 8) : message->memory()) / 4;
}

bool GenerateStream::GiveUp() {
  SetEnd({grpc::StatusCode::RESOURCE_EXHAUSTED,
          "the outputs of the caller's calls are too large in total to be kept until they end: set stream: "
          "true"});
  for (Output& one : outputs_) {
    one.pending.clear();
    one.logprobs.Clear();
    one.passed.clear();
    one.whole = nullptr;
  }
  waiting_ = 0;
  return MarkDirty();
}

TokenSink::Delivery GenerateStream::Keep(Output& output, absl::Span<const uint32_t> tokens,
                                         const LogprobsView& logprobs) {
  using Delivery = TokenSink::Delivery;
  tokens = UpToStop(output, tokens);
  output.pending.insert(output.pending.end(), tokens.begin(), tokens.end());
  output.tokens += static_cast<uint32_t>(tokens.size());
  output.last_token = tokens.back();
  const LogprobsView kept = logprobs.subspan(0, tokens.size());
  output.logprobs.Append(kept);
  waiting_ += static_cast<int64_t>(tokens.size()) + kept.words();
  if (!output.matched_text.empty()) return Delivery::kEnough;
  if (!shape_.stream) return Delivery::kTaken;
  return MarkDirty() ? Delivery::kFlush : Delivery::kTaken;
}

TokenSink::Delivery GenerateStream::Pass(uint32_t index, absl::Span<const PassedPtr> messages,
                                         absl::Time now) {
  using Delivery = TokenSink::Delivery;
  int64_t words = 0;
  bool flush = false;
  {
    MutexLock lock(&mutex_);
    for (const PassedPtr& message : messages) words += WordsOf(message);
    if (ended() || broken() || outputs_[index].ended) return Delivery::kTaken;
    if (TooSlow(waiting_, words, options_.limits, now)) return Delivery::kTooSlow;
    if (Reserve(words)) return Keep(outputs_[index], messages);
    flush = GiveUp();
  }
  CancelAll(/*timed_out=*/false);
  return flush ? Delivery::kFlush : Delivery::kTaken;
}

TokenSink::Delivery GenerateStream::Keep(Output& output, absl::Span<const PassedPtr> messages) {
  using Delivery = TokenSink::Delivery;
  for (const PassedPtr& message : messages) {
    const std::optional<PassedPart> part = options_.protocol->ReadPassed(*message);
    if (!part) continue;  // not of this protocol
    output.completed = part->ends;
    output.tokens += part->tokens;
    waiting_ += WordsOf(message);
    PassedPtr ready = shape_.stream ? message : options_.protocol->Fold(*message, output.whole);
    if (ready != nullptr) output.passed.push_back(std::move(ready));
  }
  if (!shape_.stream) return Delivery::kTaken;
  return MarkDirty() ? Delivery::kFlush : Delivery::kTaken;
}

void GenerateStream::StartOver(uint32_t index) {
  MutexLock lock(&mutex_);
  outputs_[index].whole = nullptr;
  outputs_[index].tokens = 0;
}

bool GenerateStream::EndOutput(uint32_t index, const absl::Status& status,
                               const std::optional<router::Finish>& finish) {
  bool failed = false, flush = false;
  {
    MutexLock lock(&mutex_);
    Output& output = outputs_[index];
    if (ended() || output.ended) return false;
    output.ended = true;
    --live_;
    if (!status.ok() || !finish) {
      failed = live_ > 0;
      ends_call_ = index;
      flush = SetEnd(ToGrpcStatus(status)) && MarkDirty();
      if (context() != nullptr) {
        ForEachTrailer(status, [this](const std::string& key, const std::string& value) {
          context()->AddTrailingMetadata(key, value);
        });
      }
      // Pending tokens of cancelled requests are not sent, nor what was kept until all outputs have ended.
      for (Output& one : outputs_) {
        if (absl::IsCancelled(status) || !shape_.stream) {
          one.pending.clear();
          one.logprobs.Clear();
          one.passed.clear();
          one.whole = nullptr;
        }
        if (!shape_.stream) one.finish.reset();
      }
    } else {
      if (!output.completed) output.finish = finish->reason;
      const std::vector<uint32_t>& stops = shape_.stop_token_ids;
      if (finish->reason == FinishReason::kStop && output.matched_text.empty() && output.tokens > 0 &&
          (options_.protocol->traits.names_eos ||
           std::find(stops.begin(), stops.end(), output.last_token) != stops.end())) {
        output.matched_token = output.last_token;
      }
      if (live_ == 0) {
        ends_call_ = index;
        SetEnd(grpc::Status::OK);
      }
      flush = (shape_.stream || live_ == 0) && MarkDirty();
    }
  }
  if (failed) CancelAll(/*timed_out=*/false);
  return flush;
}

bool GenerateStream::MayBreakOff(uint32_t index) {
  MutexLock lock(&mutex_);
  return ended() && (!ends_call_ || *ends_call_ == index);
}

void GenerateStream::CancelAll(bool timed_out) {
  const std::vector<uint32_t> live = LiveOutputs();
  std::vector<core::RequestId> ids;
  {
    MutexLock lock(&mutex_);
    for (const uint32_t index : live) ids.push_back(shape_.ids[index]);
  }
  for (const core::RequestId id : ids) options_.cancel(id, timed_out);
}

OutputPart GenerateStream::Pending(uint32_t index) const {
  const Output& output = outputs_[index];
  return {.request_id = shape_.request_id,
          .index = index,
          .tokens = output.pending,
          .logprobs = output.logprobs.view(),
          .prompt_tokens = shape_.prompt_tokens,
          .completion_tokens = output.tokens};
}

void GenerateStream::FillChunk(uint32_t index, Message& response) {
  Output& output = outputs_[index];
  OutputPart part = Pending(index);
  if (!options_.protocol->traits.chunks_count_all)
    part.completion_tokens = static_cast<uint32_t>(output.pending.size());
  options_.protocol->FillChunk(part, response);
  waiting_ -= static_cast<int64_t>(output.pending.size()) + part.logprobs.words();
  output.pending.clear();
  output.logprobs.Clear();
}

void GenerateStream::FillComplete(uint32_t index, Message& response) {
  Output& output = outputs_[index];
  const OutputPart part = Pending(index);
  options_.protocol->FillComplete(part,
                                  {.reason = ReasonName(*std::exchange(output.finish, std::nullopt)),
                                   .matched_token = output.matched_token,
                                   .matched_text = output.matched_text},
                                  response);
  waiting_ -= static_cast<int64_t>(output.pending.size()) + part.logprobs.words();
  std::vector<uint32_t>().swap(output.pending);
  output.logprobs.Clear();
}

void GenerateStream::FillPassed(uint32_t index, Message& response) {
  Output& output = outputs_[index];
  const PassedPtr message = std::move(output.passed.front());
  output.passed.pop_front();
  if (shape_.stream) waiting_ -= WordsOf(message);
  share_ = message->share();
  options_.protocol->FillPassed(*message, shape_.request_id, index, response);
}

bool GenerateStream::Next(AnyMessage& response) {
  if (std::exchange(share_, nullptr) != nullptr) response = AnyMessage();
  // Without a stream all outputs are written together, in order: gateways rely on the order.
  if (!shape_.stream && live_ > 0) return false;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const auto index = static_cast<uint32_t>((next_ + i) % outputs_.size());
    Output& output = outputs_[index];
    if (!response) response = AnyMessage::Of(options_.protocol->types.generate_response);
    if (shape_.stream && !output.pending.empty()) {
      // The response holds the last message: most chunks follow a chunk and reuse its memory.
      FillChunk(index, *response);
    } else if (!output.passed.empty()) {
      FillPassed(index, *response);
    } else if (output.finish) {
      FillComplete(index, *response);
    } else {
      continue;
    }
    next_ = index + 1;
    return true;
  }
  return false;
}

}  // namespace bfio::router::gateway
