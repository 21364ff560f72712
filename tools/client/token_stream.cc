#include "tools/client/token_stream.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/net/client_reactor.h"
#include "common/net/status.h"
#include "common/net/tsan_edge.h"
#include "tools/client/link.h"
#include "tools/client/stream_call.h"

namespace bfio::client {
namespace {

// Longer than any caller needs; gRPC's deadlines have a smaller range than absl's times.
constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 365);
constexpr absl::Duration kDeadlineGrace = absl::Seconds(1);
constexpr absl::Duration kAbortTimeout = absl::Seconds(5);

uint64_t RandomBits() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

Metadata WithToken(const CallOptions& options) {
  Metadata metadata = BearerToken(options.token);
  metadata.insert(metadata.end(), options.metadata.begin(), options.metadata.end());
  return metadata;
}

// A TokenStream does not wait for the streams that it abandons, so each stream holds a use of its link.
class Attempt final : public StreamReader {
 public:
  Attempt(Link& link, const v1::GenerateRequest& request, absl::Time deadline, const Metadata& metadata)
      : StreamReader(request, deadline, metadata), use_(link) {}

 private:
  const Link::Use use_;
};

// An Abort RPC for which no caller waits: ends a resumable request at the router when its caller has finished
// with it. Best effort: a router that the RPC does not reach ends the request after its --client_timeout.
class AbortCall final : public ClientReactor<grpc::ClientUnaryReactor> {
 public:
  AbortCall(Link& link, const v1::AbortRequest& request, const Metadata& metadata)
      : use_(link), request_(request) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kAbortTimeout));
    for (const auto& [name, value] : metadata) context_.AddMetadata(name, value);
    link.stub().async()->Abort(&context_, &request_, &response_, this);
    GrpcHandOver(this);
    StartCall();
  }

 private:
  void OnDone(const grpc::Status&) override {
    GrpcTakeOver(this);
    delete this;
  }

  const Link::Use use_;  // released last, because members are destroyed in reverse order
  grpc::ClientContext context_;
  const v1::AbortRequest request_;
  v1::AbortResponse response_;
};

// True when the router may accept the same request later: it refused the request for now, or could not be
// reached.
bool MayComeAgain(const absl::Status& status) {
  return absl::IsUnavailable(status) ||
         (absl::IsResourceExhausted(status) && GetRetryDelay(status).has_value());
}

// Whether the router may still compute a resumable request whose stream ended with `status`. The router
// treats the end of a stream, including the client's deadline, as a broken connection.
bool MayGoOn(const absl::Status& status, bool was_live) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:  // by the router, which disconnected this client, or by a proxy
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown: return true;
    case absl::StatusCode::kResourceExhausted:  // usually refused at admission
      return was_live;
    default:  // refused, or the id belongs to another client's request: this client must not abort it
      return false;
  }
}

}  // namespace

TokenStream::TokenStream(Link& link, v1::GenerateRequest request, CallOptions options)
    : link_(link),
      options_(std::move(options)),
      deadline_(MonotonicNow() + std::min(options_.timeout, kLongestTimeout)),
      request_(std::move(request)),
      own_id_(request_.request_id().empty()),
      backoff_(options_.retry.first_pause, options_.retry.last_pause, RandomBits()) {
  if (own_id_) request_.set_request_id(absl::StrCat("c-", absl::Hex(RandomBits(), absl::kZeroPad16)));
  if (absl::Status status = CheckMetadata(WithToken(options_)); !status.ok()) end_ = std::move(status);
  if (!options_.resume) return;
  request_.set_resumable(true);
  if (request_.resume_token().empty()) {
    request_.set_resume_token(absl::StrCat(absl::Hex(RandomBits()), absl::Hex(RandomBits())));
  }
}

TokenStream::~TokenStream() {
  Cancel();
  if (attempt_ != nullptr) attempt_->Abandon();
}

TokenStream::Event TokenStream::Next(absl::Duration patience) {
  const absl::Time until = MonotonicNow() + patience;
  while (!end_.has_value()) {
    if (pause_until_.has_value()) SleepUntil(std::min(until, *pause_until_));
    if (Cancelled()) return End(absl::CancelledError("cancelled by the caller"));
    if (pause_until_.has_value() && MonotonicNow() < *pause_until_) return StillWaiting();
    pause_until_.reset();
    if (attempt_ == nullptr) Begin();
    // gRPC reports the deadline itself, unless its timers wait because the wall clock was set back
    // (connection_wait.h).
    const absl::Time last = deadline_ + kDeadlineGrace;
    const auto taken = attempt_->Take(std::max(std::min(until, last) - MonotonicNow(), absl::ZeroDuration()));
    std::optional<Event> event;
    if (const auto* message = std::get_if<v1::GenerateResponse>(&taken)) {
      event = OnMessage(*message);
    } else if (const auto* status = std::get_if<grpc::Status>(&taken)) {
      event = OnStreamEnd(FromGrpcStatus(*status));
    } else if (MonotonicNow() >= last) {
      attempt_->Cancel();
      return End(absl::DeadlineExceededError("the request did not end before its deadline"));
    } else {
      return StillWaiting();
    }
    if (event.has_value()) return *std::move(event);
  }
  return *end_;
}

void TokenStream::Begin() {
  if (!options_.resume && own_id_ && counts_.retries > 0) {
    // A new id: the router may not yet have noticed that the previous stream has ended.
    request_.set_request_id(absl::StrCat("c-", absl::Hex(RandomBits(), absl::kZeroPad16)));
  }
  if (options_.resume && may_be_live_) request_.set_resume_from_index(received_);
  const auto attempt = std::make_shared<Attempt>(link_, request_, absl::Now() + (deadline_ - MonotonicNow()),
                                                 WithToken(options_));
  attempt->Start(link_.stub());
  bool cancelled;
  {
    MutexLock lock(&mutex_);
    attempt_ = attempt;
    cancelled = cancelled_;
  }
  if (!cancelled) return;
  // Cancel may have run before a call had started, or its Abort may have reached the router before the
  // request did.
  attempt_->Cancel();
  if (options_.resume) SendAbort();
}

std::optional<TokenStream::Event> TokenStream::OnMessage(const v1::GenerateResponse& message) {
  broken_since_.reset();
  backoff_.Reset();
  may_be_live_ = true;
  const auto count = static_cast<uint32_t>(message.token_ids_size());
  if (finish_.has_value()) return End(absl::DataLossError("a message came after the final one"));
  if (count > 0 && message.first_index() != received_) {
    return End(absl::DataLossError(
        absl::StrCat("token ", message.first_index(), " came where token ", received_, " was expected")));
  }
  received_ += count;
  // A router that has lost the request continues after these tokens.
  if (options_.resume) request_.mutable_received_token_ids()->MergeFrom(message.token_ids());
  if (options_.resume && !message.resume_ticket().empty())
    request_.set_resume_ticket(message.resume_ticket());
  if (message.has_finish()) {
    finish_ = message.finish();
    if (finish_->usage().completion_tokens() != received_) {
      return End(absl::DataLossError(absl::StrCat(received_, " tokens came, but the router's usage counts ",
                                                  finish_->usage().completion_tokens())));
    }
  }
  if (count == 0) return std::nullopt;
  return Tokens{received_ - count, {message.token_ids().begin(), message.token_ids().end()}};
}

std::optional<TokenStream::Event> TokenStream::OnStreamEnd(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    attempt_.reset();
    may_be_live_ = may_be_live_ || absl::IsUnavailable(status);
  }
  if (finish_.has_value()) return End(*finish_);
  if (Cancelled()) return End(absl::CancelledError("cancelled by the caller"));
  if (status.ok()) return End(absl::DataLossError("the stream ended without its final message"));
  if (TryAgain(status)) return std::nullopt;
  return End(status);
}

bool TokenStream::TryAgain(const absl::Status& status) {
  // The caller has not cancelled the request: the router disconnected a slow reader and keeps the request.
  const bool cut_off = absl::IsCancelled(status) && options_.resume && may_be_live_;
  if (!MayComeAgain(status) && !cut_off) return false;
  const absl::Time now = MonotonicNow();
  const bool refused = absl::IsResourceExhausted(status) && received_ == 0;
  const bool resumes = options_.resume && !refused;
  if (!resumes && (received_ > 0 || counts_.retries >= options_.retry.max_retries)) return false;
  if (resumes && !broken_since_.has_value()) broken_since_ = now;
  const absl::Time when = now + backoff_.Next(GetRetryDelay(status));
  if (when >= deadline_) return false;
  if (resumes && when > *broken_since_ + options_.retry.resume_patience) return false;
  ++(resumes ? counts_.resumes : counts_.retries);
  pause_until_ = when;
  return true;
}

TokenStream::Event TokenStream::End(Event event) {
  if (attempt_ != nullptr) attempt_->Abandon();
  const auto* status = std::get_if<absl::Status>(&event);
  // After Cancel the Abort has been sent already.
  if (options_.resume && status != nullptr && !Cancelled() && MayGoOn(*status, may_be_live_)) SendAbort();
  MutexLock lock(&mutex_);
  attempt_.reset();
  end_ = event;
  return event;
}

void TokenStream::SleepUntil(absl::Time until) {
  MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&cancelled_),
                          std::max(until - MonotonicNow(), absl::ZeroDuration()));
}

bool TokenStream::Cancelled() {
  MutexLock lock(&mutex_);
  return cancelled_;
}

void TokenStream::Cancel() {
  std::shared_ptr<StreamReader> attempt;
  bool may_be_live;
  {
    MutexLock lock(&mutex_);
    if (cancelled_ || end_.has_value()) return;
    cancelled_ = true;
    attempt = attempt_;
    may_be_live = attempt_ != nullptr || may_be_live_;
  }
  if (attempt != nullptr) attempt->Cancel();
  // Otherwise the id may belong to another client's request.
  if (options_.resume && may_be_live) SendAbort();
}

void TokenStream::SendAbort() {
  v1::AbortRequest abort;
  abort.set_request_id(request_.request_id());
  abort.set_resume_token(request_.resume_token());
  abort.set_tenant(request_.tenant());
  new AbortCall(link_, abort, WithToken(options_));  // gRPC owns it until OnDone
}

}  // namespace bfio::client
