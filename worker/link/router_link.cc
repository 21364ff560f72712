#include "worker/link/router_link.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bfio/v1/worker.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/router_instance.h"
#include "common/base/spdlog.h"
#include "common/net/client_reactor.h"
#include "common/net/connection_wait.h"
#include "common/net/tsan_edge.h"
#include "common/telemetry/log_fields.h"
#include "common/telemetry/trace_context.h"
#include "grpcpp/grpcpp.h"
#include "worker/link/convert.h"

namespace bfio::worker {
namespace {

// Logs a plan's requests, with their clients' trace ids.
void LogBeginnings(const v1::Plan& plan) {
  for (const v1::Assignment& assignment : plan.assignments()) {
    const absl::string_view trace = TraceIdOf(assignment.traceparent());
    const ScopedLogFields fields{{"handle", assignment.handle()}, {"trace_id", trace}};
    spdlog::debug("handle {}{}: {} prompt tokens, token {} is next", assignment.handle(),
                  trace.empty() ? "" : absl::StrCat(" (trace ", trace, ")"), assignment.prompt_length(),
                  assignment.first_index());
  }
}

// The router's election term; 0: a router without election.
uint64_t TermOf(uint64_t instance) {
  return instance >= kElected ? instance - kElected : 0;
}

// How long a closing stream may take before it is cancelled.
constexpr absl::Duration kCloseTimeout = absl::Seconds(1);
// A leave request without a connection is sent if one is made within this time.
constexpr absl::Duration kLeavePatience = absl::Milliseconds(200);

// The router rejects this worker permanently, independently of other workers.
bool IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) || absl::IsPermissionDenied(status);
}

}  // namespace

struct RouterLink::State {
  Mutex mutex;
  std::deque<OutMessage> queue ABSL_GUARDED_BY(mutex);
  // The present stream; 0: none.
  uint64_t stream ABSL_GUARDED_BY(mutex) = 0;
  bool greeted ABSL_GUARDED_BY(mutex) = false;
  bool writing ABSL_GUARDED_BY(mutex) = false;
  // No more reads or writes will succeed.
  bool broken ABSL_GUARDED_BY(mutex) = false;
  // Something has come from the router on this stream.
  bool heard ABSL_GUARDED_BY(mutex) = false;
  std::optional<absl::Status> done ABSL_GUARDED_BY(mutex);
  std::optional<std::string> leaving ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  // Epoch.router_instance of the latest router that was followed.
  uint64_t router_instance ABSL_GUARDED_BY(mutex) = 0;
};

// One RPC. Made and deleted by Run's thread, deleted after OnDone has been seen; the link's channel reference
// outlives it, so its own is never the last one.
class RouterLink::Call final
    : public ClientReactor<grpc::ClientBidiReactor<v1::WorkerMessage, v1::RouterMessage>> {
 public:
  // `worker_id` outlives the call.
  Call(std::shared_ptr<State> state, const std::string& worker_id, Inbox& inbox,
       std::shared_ptr<grpc::Channel> channel)
      : state_(std::move(state)),
        worker_id_(worker_id),
        inbox_(inbox),
        stub_(v1::WorkerLink::NewStub(std::move(channel))) {
    stub_->async()->Attach(&context_, this);
    // Writes are started from outside of reactions.
    AddHold();
    GrpcHandOver(this);
    StartRead(&in_);
    StartCall();
  }

  // REQUIRES: no write is under way.
  void Write(const OutMessage& message) {
    ToProto(message, out_);
    GrpcHandOver(this);
    StartWrite(&out_);
  }
  void Close() {
    GrpcHandOver(this);
    StartWritesDone();
  }
  void Cancel() { context_.TryCancel(); }
  void Release() {
    GrpcHandOver(this);
    RemoveHold();
  }

  void OnReadDone(bool ok) override {
    const GrpcReaction reaction(this);
    if (!ok) return MarkBroken();
    if (in_.has_plan() && spdlog::should_log(spdlog::level::debug)) LogBeginnings(in_.plan());
    std::optional<InMessage> message = FromProto(in_);
    if (message.has_value() && !Follow(*message)) {
      // Sent messages are not revoked: to the step loop the end of this stream is a lost connection.
      context_.TryCancel();
      return MarkBroken();
    }
    if (message.has_value()) Deliver(*std::move(message));
    {
      MutexLock lock(&state_->mutex);
      state_->heard = true;
    }
    GrpcHandOver(this);
    StartRead(&in_);
  }

  void OnWriteDone(bool ok) override {
    const GrpcReaction reaction(this);
    MutexLock lock(&state_->mutex);
    state_->writing = false;
    state_->broken |= !ok;
  }

  void OnDone(const grpc::Status& status) override {
    GrpcTakeOver(this);
    // Must be last: as soon as `done` is set, Run's thread may delete this call.
    const std::shared_ptr<State> state = state_;
    absl::Status ended(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    MutexLock lock(&state->mutex);
    state->broken = true;
    state->done = std::move(ended);
  }

 private:
  void MarkBroken() {
    MutexLock lock(&state_->mutex);
    state_->broken = true;
  }

  // False if the message comes from a router that was elected before one that this worker has followed.
  bool Follow(const InMessage& message) {
    const auto* epoch = std::get_if<Epoch>(&message);
    if (epoch == nullptr) return true;
    MutexLock lock(&state_->mutex);
    if (MayFollow(state_->router_instance, epoch->router_instance)) {
      state_->router_instance = epoch->router_instance;
      return true;
    }
    spdlog::warn("rejected an epoch of a router that no longer leads (term {}; the latest term is {})",
                 TermOf(epoch->router_instance), TermOf(state_->router_instance));
    return false;
  }

  void Deliver(InMessage message) {
    if (auto* plan = std::get_if<Plan>(&message)) {
      inbox_.OnPlan(std::move(*plan));
    } else if (auto* epoch = std::get_if<Epoch>(&message)) {
      inbox_.OnEpoch(std::move(*epoch));
    } else if (const auto* notice = std::get_if<Notice>(&message)) {
      spdlog::warn("{}: notice from the router: {}", worker_id_, notice->text);
    } else {
      inbox_.OnShutdown(absl::StrCat("shutdown by the router: ", std::get<Shutdown>(message).reason));
    }
  }

  const std::shared_ptr<State> state_;
  const std::string& worker_id_;
  Inbox& inbox_;
  const std::unique_ptr<v1::WorkerLink::Stub> stub_;
  grpc::ClientContext context_;
  v1::RouterMessage in_;
  v1::WorkerMessage out_;
};

RouterLink::RouterLink(RouterLinkOptions options, std::shared_ptr<grpc::Channel> channel)
    : options_(std::move(options)),
      channel_(std::move(channel)),
      state_(std::make_shared<State>()),
      backoff_(options_.first_backoff, options_.last_backoff, options_.seed),
      refusals_(options_.first_refusal, kLastRefusal, options_.seed) {}

RouterLink::~RouterLink() = default;

absl::Status RouterLink::Run(Inbox& inbox) {
  absl::Status status = Loop(inbox);
  inbox.OnShutdown(status.ok() ? "stopped" : std::string(status.message()));
  return status;
}

absl::Status RouterLink::Loop(Inbox& inbox) {
  absl::Status status;
  for (bool first = true; Connect(first, status); first = false) {
    const absl::Status ended = RunStream(inbox);
    if (IsFinal(ended)) {
      return absl::Status(ended.code(), absl::StrCat("the router at ", options_.router,
                                                     " refuses this worker: ", ended.message()));
    }
    MutexLock lock(&state_->mutex);
    if (state_->stopping) break;
    if (state_->leaving.has_value()) {
      inbox.OnShutdown("the stream ended while this worker was leaving");
      break;
    }
    const ScopedLogFields fields{{"worker", options_.worker_id}};
    const auto woken = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
      return state_->stopping || state_->leaving.has_value();
    };
    state_->mutex.AwaitWithTimeout(absl::Condition(&woken), PauseAfter(ended, state_->heard));
    if (state_->stopping) break;
  }
  return status;
}

absl::Duration RouterLink::PauseAfter(const absl::Status& ended, bool heard) {
  if (heard) {
    backoff_.Reset();
    refusals_.Reset();
  }
  if (absl::IsFailedPrecondition(ended)) {
    const absl::Duration pause = refusals_.Next();
    spdlog::warn("{}: the router at {} refuses this worker: {}; retrying in {}", options_.worker_id,
                 options_.router, std::string(ended.message()),
                 absl::FormatDuration(absl::Trunc(pause, absl::Milliseconds(100))));
    return pause;
  }
  spdlog::warn("{}: lost the stream to the router: {}", options_.worker_id, ended.ToString());
  return backoff_.Next();
}

bool RouterLink::Connect(bool first, absl::Status& status) {
  const absl::Time start = MonotonicNow();
  for (ConnectionWait wait(channel_); !wait.Connected();) {
    MutexLock lock(&state_->mutex);
    if (state_->mutex.AwaitWithTimeout(absl::Condition(&state_->stopping), wait.pause())) return false;
    if (state_->leaving.has_value() && MonotonicNow() >= start + kLeavePatience) return false;
    if (first && MonotonicNow() >= start + options_.connect_timeout) {
      status = absl::UnavailableError(
          absl::StrCat("no router at ", options_.router,
                       " within --connect_timeout=", absl::FormatDuration(options_.connect_timeout)));
      return false;
    }
  }
  MutexLock lock(&state_->mutex);
  return !state_->stopping;
}

absl::Status RouterLink::RunStream(Inbox& inbox) {
  const uint64_t stream = ++last_stream_;
  {
    MutexLock lock(&state_->mutex);
    for (const OutMessage& message : state_->queue) Lose(message);
    state_->queue.clear();
    state_->stream = stream;
    state_->greeted = state_->writing = state_->broken = state_->heard = false;
    state_->done.reset();
  }
  auto call = std::make_unique<Call>(state_, options_.worker_id, inbox, channel_);
  Record([](RankTelemetry& of) { of.connected = true; });
  inbox.OnStreamUp(stream);
  WriteLoop(*call);
  inbox.OnStreamDown(stream);
  Record([](RankTelemetry& of) { of.connected = false; });
  {
    MutexLock lock(&state_->mutex);
    state_->stream = 0;
  }
  call->Release();
  return AwaitDone(*call);
}

absl::Status RouterLink::AwaitDone(Call& call) {
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) { return state_->done.has_value(); };
  {
    MutexLock lock(&state_->mutex);
    if (state_->mutex.AwaitWithTimeout(absl::Condition(&done), kCloseTimeout)) return *state_->done;
  }
  // Cancelled only now, because a cancelled call drops the status that the router may be sending.
  call.Cancel();
  MutexLock lock(&state_->mutex);
  state_->mutex.Await(absl::Condition(&done));
  return *state_->done;
}

void RouterLink::WriteLoop(Call& call) {
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    return state_->broken || (!state_->writing && (!state_->queue.empty() || state_->stopping));
  };
  const auto ready_or_stopping = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    return state_->stopping || ready();
  };
  absl::Time stop_by = absl::InfiniteFuture();
  for (;;) {
    std::optional<OutMessage> message;
    {
      MutexLock lock(&state_->mutex);
      state_->mutex.Await(absl::Condition(&ready_or_stopping));
      if (state_->stopping) stop_by = std::min(stop_by, MonotonicNow() + kCloseTimeout);
      // A router that does not read does not delay the stop.
      if (!state_->mutex.AwaitWithTimeout(absl::Condition(&ready), stop_by - MonotonicNow())) return;
      if (state_->broken) return;
      if (state_->queue.empty()) break;
      message = std::move(state_->queue.front());
      state_->queue.pop_front();
      state_->writing = true;
    }
    call.Write(*message);
  }
  call.Close();
}

void RouterLink::Send(uint64_t stream, OutMessage message) {
  const bool hello = std::holds_alternative<Hello>(message);
  MutexLock lock(&state_->mutex);
  const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    return state_->queue.size() < options_.max_queued || stream != state_->stream || state_->broken ||
           state_->stopping;
  };
  // Steps of microseconds can be faster than a router that is briefly short of processors.
  state_->mutex.AwaitWithTimeout(absl::Condition(&settled), options_.send_patience);
  if (stream != state_->stream) return Lose(message);
  if (state_->queue.size() >= options_.max_queued) {
    if (!state_->broken)
      spdlog::error("{}: the router does not read its messages; closing the stream", options_.worker_id);
    state_->broken = true;
    return Lose(message);
  }
  state_->queue.push_back(std::move(message));
  if (!hello) return;
  state_->greeted = true;
  if (state_->leaving.has_value()) state_->queue.push_back(Leave{*state_->leaving});
}

void RouterLink::Lose(const OutMessage& message) {
  const auto* report = std::get_if<StepReport>(&message);
  if (report == nullptr) return;
  Record(
      [tokens = std::ssize(report->output.tokens)](RankTelemetry& of) { of.undelivered_tokens += tokens; });
}

void RouterLink::Record(absl::FunctionRef<void(RankTelemetry&)> change) const {
  if (options_.recorder != nullptr) options_.recorder->Record(change);
}

void RouterLink::RequestLeave(std::string reason) {
  Record([](RankTelemetry& of) { of.leaving = true; });
  MutexLock lock(&state_->mutex);
  if (state_->leaving.has_value()) return;
  if (state_->stream != 0 && state_->greeted) state_->queue.push_back(Leave{reason});
  state_->leaving = std::move(reason);
}

void RouterLink::Stop() {
  MutexLock lock(&state_->mutex);
  state_->stopping = true;
}

}  // namespace bfio::worker
