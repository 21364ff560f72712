#include "router/frontend/vllm/generate_stream.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/net/status.h"

namespace bfio::router::vllm {
namespace {

const char* ReasonName(FinishReason reason) {
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

}  // namespace

class GenerateStream::Sink final : public TokenSink {
 public:
  Sink(std::shared_ptr<GenerateStream> call, uint32_t index, core::RequestId id)
      : call_(std::move(call)), index_(index), id_(id) {}

  uint64_t id() const override { return id_; }
  const std::string& traceparent() const override { return call_->options_.traceparent; }
  // Of resumable requests only.
  void SetModel(const std::string&) override {}
  void CatchUp(uint32_t, absl::Span<const uint32_t>) override {}
  Delivery Deliver(uint32_t, absl::Span<const uint32_t> tokens, absl::Time now) override {
    return call_->Deliver(index_, tokens, now);
  }
  bool End(const absl::Status& status, std::optional<router::Finish> finish) override {
    return call_->EndOutput(index_, status, finish);
  }
  void Flush() override { call_->Flush(); }
  void BreakOff() override { call_->BreakOff(); }

 private:
  const std::shared_ptr<GenerateStream> call_;
  const uint32_t index_;
  const core::RequestId id_;
};

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
    sinks.push_back(std::make_shared<Sink>(shared_from_this(), index, shape_.ids[index]));
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

bool GenerateStream::MarkDirty() {
  if (dirty_ || writing()) return false;  // the thread that writes will see the change
  dirty_ = true;
  return true;
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
                                            absl::Time now) {
  using Delivery = TokenSink::Delivery;
  MutexLock lock(&mutex_);
  Output& output = outputs_[index];
  if (ended() || broken() || output.ended || tokens.empty()) return Delivery::kTaken;
  const bool full = !MayQueue(waiting_, static_cast<int64_t>(tokens.size()), options_.limits.buffer_tokens);
  if (writing() && (full || Untaken(now) > options_.limits.timeout)) return Delivery::kTooSlow;
  tokens = UpToStop(output, tokens);
  output.pending.insert(output.pending.end(), tokens.begin(), tokens.end());
  output.tokens += static_cast<uint32_t>(tokens.size());
  output.last_token = tokens.back();
  waiting_ += static_cast<int64_t>(tokens.size());
  if (!output.matched_text.empty()) return Delivery::kEnough;
  if (!shape_.stream) return Delivery::kTaken;
  return MarkDirty() ? Delivery::kFlush : Delivery::kTaken;
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
      flush = SetEnd(ToGrpcStatus(status)) && MarkDirty();
      // What remains of a cancelled request is not read; and what is kept until all have ended is not sent.
      for (Output& one : outputs_) {
        if (absl::IsCancelled(status) || !shape_.stream) one.pending.clear();
        if (!shape_.stream) one.finish.reset();
      }
    } else {
      output.finish = finish->reason;
      const std::vector<uint32_t>& stops = shape_.stop_token_ids;
      if (finish->reason == FinishReason::kStop && output.matched_text.empty() && output.tokens > 0 &&
          std::find(stops.begin(), stops.end(), output.last_token) != stops.end()) {
        output.matched_token = output.last_token;
      }
      if (live_ == 0) SetEnd(grpc::Status::OK);
      flush = (shape_.stream || live_ == 0) && MarkDirty();
    }
  }
  if (failed) CancelAll(/*timed_out=*/false);
  return flush;
}

void GenerateStream::Flush() {
  MutexLock lock(&mutex_);
  dirty_ = false;
  Advance();
}

void GenerateStream::BreakOff() {
  {
    MutexLock lock(&mutex_);
    if (!ended()) return;
  }
  BreakOffIfStuck(MonotonicNow(), absl::ZeroDuration());
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

void GenerateStream::FillChunk(uint32_t index, pb::GenerateStreamChunk& chunk) {
  std::vector<uint32_t>& tokens = outputs_[index].pending;
  chunk.mutable_token_ids()->Assign(tokens.begin(), tokens.end());
  chunk.set_prompt_tokens(shape_.prompt_tokens);
  chunk.set_completion_tokens(static_cast<uint32_t>(tokens.size()));
  chunk.set_index(index);
  waiting_ -= static_cast<int64_t>(tokens.size());
  tokens.clear();
}

void GenerateStream::FillComplete(uint32_t index, pb::GenerateComplete& complete) {
  Output& output = outputs_[index];
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

bool GenerateStream::Next(pb::GenerateResponse& response) {
  // All together then, and in order: gateways go by the order.
  if (!shape_.stream && live_ > 0) return false;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const size_t index = (next_ + i) % outputs_.size();
    Output& output = outputs_[index];
    if (shape_.stream && !output.pending.empty()) {
      // The response holds what was written last, and a chunk follows a chunk most of the time.
      FillChunk(static_cast<uint32_t>(index), *response.mutable_chunk());
    } else if (output.finish) {
      response.Clear();
      FillComplete(static_cast<uint32_t>(index), *response.mutable_complete());
    } else {
      continue;
    }
    next_ = index + 1;
    return true;
  }
  return false;
}

}  // namespace bfio::router::vllm
