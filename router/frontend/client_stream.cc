#include "router/frontend/client_stream.h"

#include <chrono>
#include <utility>

#include "common/base/clock.h"

namespace bfio::router {

std::shared_ptr<ClientStream> ClientStream::Create(grpc::CallbackServerContext* context, uint64_t id,
                                                   std::string request_id, const StreamLimits& limits,
                                                   std::function<void(bool)> on_cancel) {
  std::shared_ptr<ClientStream> stream(
      new ClientStream(context, id, std::move(request_id), limits, std::move(on_cancel)));
  stream->Open(stream);
  return stream;
}

bool ClientStream::MarkDirty() {
  if (dirty_ || writing()) return false;  // whoever is at it will see the change
  dirty_ = true;
  return true;
}

ClientStream::Delivery ClientStream::Deliver(uint32_t index, absl::Span<const uint32_t> tokens,
                                             absl::Time now) {
  MutexLock lock(&mutex_);
  if (ended() || broken()) return Delivery::kTaken;
  const absl::Duration untaken = Untaken(now);
  const auto waiting = static_cast<int64_t>(pending_.size());
  const bool full = waiting > 0 && waiting + static_cast<int64_t>(tokens.size()) > limits_.buffer_tokens;
  if (writing() && (full || untaken > limits_.timeout)) return Delivery::kTooSlow;
  if (pending_.empty()) pending_first_index_ = index;
  pending_.insert(pending_.end(), tokens.begin(), tokens.end());
  return MarkDirty() ? Delivery::kFlush : Delivery::kTaken;
}

void ClientStream::CatchUp(uint32_t index, absl::Span<const uint32_t> tokens) {
  MutexLock lock(&mutex_);
  pending_first_index_ = index;
  pending_.assign(tokens.begin(), tokens.end());
}

bool ClientStream::End(grpc::Status status, std::optional<v1::Finish> finish) {
  MutexLock lock(&mutex_);
  // Nobody reads what a cancelled request still has.
  const bool discard = status.error_code() == grpc::StatusCode::CANCELLED;
  const bool ok = status.ok();
  if (!SetEnd(std::move(status))) return false;
  if (discard) pending_.clear();
  if (ok) finish_ = std::move(finish);
  return MarkDirty();
}

void ClientStream::Flush() {
  MutexLock lock(&mutex_);
  dirty_ = false;
  Advance();
}

bool ClientStream::Next(v1::GenerateResponse& response) {
  if (pending_.empty() && !finish_) return false;
  if (response.request_id().empty()) response.set_request_id(request_id_);
  response.set_first_index(pending_.empty() ? finish_->usage().completion_tokens() : pending_first_index_);
  response.mutable_token_ids()->Assign(pending_.begin(), pending_.end());
  pending_.clear();
  if (finish_) *response.mutable_finish() = *std::exchange(finish_, std::nullopt);
  return true;
}

void ClientStream::BreakOff() {
  {
    MutexLock lock(&mutex_);
    if (!ended()) return;
  }
  BreakOffIfStuck(MonotonicNow(), absl::ZeroDuration());
}

void ClientStream::OnCancel() {
  const GrpcReaction reaction(this);
  on_cancel_(context()->deadline() <= std::chrono::system_clock::now());
}

}  // namespace bfio::router
