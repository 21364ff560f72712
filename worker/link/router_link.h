// One rank's stream to the router, over gRPC. Keeps a WorkerLink.Attach stream up (reconnecting with
// exponential backoff and jitter), passes received messages to the rank's Inbox, and converts and writes the
// step loop's messages on its own thread, so that the step loop never serialises. Threads: Run takes one
// thread until Stop or a fatal error; the other methods may be called from any thread. gRPC's callback
// threads only deliver and never block.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/backoff.h"
#include "worker/link/inbox.h"
#include "worker/link/rank_recorder.h"
#include "worker/link/step_loop.h"

namespace grpc {
class Channel;
}

namespace bfio::worker {

// Bounds of the pause after FAILED_PRECONDITION: this worker does not fit the group or the router's settings
// at present. That may change without the worker: the others are replaced, the router is started with other
// flags, a wrong worker that came first leaves. So the worker keeps its requests and tries again: it serves
// within a minute of a correction.
inline constexpr absl::Duration kFirstRefusal = absl::Seconds(1), kLastRefusal = absl::Minutes(1);

struct RouterLinkOptions {
  // The router's address, for log lines and errors.
  std::string router;
  std::string worker_id;
  // How long the first connection may take; later reconnections have no limit.
  absl::Duration connect_timeout = absl::Seconds(60);
  // Bounds of the pause before a lost stream is opened again. At most a second: a restarted router waits for
  // the last worker of a group, and its ranks do not step until then.
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration last_backoff = absl::Seconds(1);
  absl::Duration first_refusal = kFirstRefusal;
  // Messages waiting to be written, and how long a step waits for space in the queue. A router that frees
  // none in that time has stopped reading: the stream is closed.
  size_t max_queued = 1024;
  absl::Duration send_patience = absl::Seconds(1);
  // Seed of the pauses; different for each rank.
  uint64_t seed = 0;
  // Notified of events; borrowed, may be null.
  RankRecorder* recorder = nullptr;
};

class RouterLink final : public StepLink {
 public:
  // `channel` is shared by the process's ranks; the caller keeps it until all links are gone.
  RouterLink(RouterLinkOptions options, std::shared_ptr<grpc::Channel> channel);
  ~RouterLink() override;

  // Runs until Stop (OK), or until a permanent error: UNAVAILABLE when the router cannot be reached at the
  // start, or the router's status when it refuses this worker permanently. After FAILED_PRECONDITION it
  // retries with growing delays. Before it returns it shuts `inbox` down.
  absl::Status Run(Inbox& inbox);

  // Waits for space in the queue, send_patience at most.
  void Send(uint64_t stream, OutMessage message) override;

  // Requests a drain from the router. Without a stream, or when the stream breaks, it shuts the inbox down
  // instead.
  void RequestLeave(std::string reason);

  // Writes the queued messages, closes the stream and ends Run; takes at most a second or two.
  void Stop();

 private:
  class Call;
  struct State;

  absl::Status Loop(Inbox& inbox);
  // False: Stop was called, or connect_timeout has passed (`status`).
  bool Connect(bool first, absl::Status& status);
  // One stream from start to end; returns how it ended.
  absl::Status RunStream(Inbox& inbox);
  // Writes queued messages until the stream breaks, or until Stop; then half-closes the stream.
  void WriteLoop(Call& call);
  // Waits for the call's end, with bounded patience for the router.
  absl::Status AwaitDone(Call& call);
  // The pause before the next stream; logs why the last one ended.
  absl::Duration PauseAfter(const absl::Status& ended, bool heard);
  // Records a message that no router receives.
  void Lose(const OutMessage& message);
  void Record(absl::FunctionRef<void(RankTelemetry&)> change) const;

  const RouterLinkOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  // Shared with a call's callbacks, which may still run when the link is destroyed.
  const std::shared_ptr<State> state_;

  // Used by Run's thread only.
  uint64_t last_stream_ = 0;
  Backoff backoff_, refusals_;
};

}  // namespace bfio::worker
