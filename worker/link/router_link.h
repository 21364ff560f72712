// One rank's stream to the router, over gRPC.
//
// Purpose: keeps a WorkerLink.Attach stream up (reconnecting with exponential backoff and jitter), feeds the
// rank's Inbox with what comes in, and converts and writes what the step loop sends, on its own thread, so
// that the step loop never serialises. Threads: Run takes one thread until Stop or a fatal error; the other
// methods may be called from any thread. gRPC's callback threads only deliver and never block.
#ifndef BFIO_WORKER_LINK_ROUTER_LINK_H_
#define BFIO_WORKER_LINK_ROUTER_LINK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/rng.h"
#include "worker/link/inbox.h"
#include "worker/link/rank_recorder.h"
#include "worker/link/refusal_delay.h"
#include "worker/link/step_loop.h"
#include "worker/link/tokenizer_offer.h"

namespace grpc {
class Channel;
}

namespace bfio::worker {

struct RouterLinkOptions {
  // For messages.
  std::string router;
  std::string worker_id;
  // How long the first connection may take; afterwards it retries without a limit.
  absl::Duration connect_timeout = absl::Seconds(60);
  // Pause before a lost stream is opened again: anything between 0 and a bound that doubles from the first to
  // the last (full jitter), so that a group's workers do not come all at once. No longer than a second: a
  // restarted router waits for the last worker of a group, and its ranks do not step until then.
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration last_backoff = absl::Seconds(1);
  // The same after a refusal for now (refusal_delay.h).
  absl::Duration first_refusal = RefusalDelay::kFirst;
  // Messages waiting to be written, and how long a step waits for space in the queue. A router that makes
  // none in that time has stopped reading: the stream is given up.
  size_t max_queued = 1024;
  absl::Duration send_patience = absl::Seconds(1);
  // Seed of the jitter; different for each rank.
  uint64_t seed = 0;
  // Notified of events; borrowed, may be null.
  RankRecorder* recorder = nullptr;
  // The directory of the model whose tokenizer is sent to the router before each stream; empty: none.
  std::string tokenizer;
};

class RouterLink final : public StepLink {
 public:
  // `channel` is shared by the process's ranks; the caller keeps it until all links are gone.
  RouterLink(RouterLinkOptions options, std::shared_ptr<grpc::Channel> channel);
  ~RouterLink() override;

  // Until Stop (OK), or until a permanent error: UNAVAILABLE when the router cannot be reached at the start,
  // or the router's status when it refuses this worker permanently. After FAILED_PRECONDITION it retries with
  // growing delay. Before it returns it makes `inbox` shut down.
  absl::Status Run(Inbox& inbox);

  // Waits for space in the queue, send_patience at most.
  void Send(uint64_t stream, OutMessage message) override;

  // Requests a drain from the router. Without a stream, or when the stream breaks, the inbox is made to shut
  // down instead.
  void RequestLeave(std::string reason);

  // Writes what is queued, closes the stream, ends Run. Bounded by a second or two.
  void Stop();

 private:
  class Call;
  struct State;

  absl::Status Loop(Inbox& inbox);
  // False: stop, or too late (`status`).
  bool Connect(bool first, absl::Status& status);
  // One stream from start to end; returns how it ended.
  absl::Status RunStream(Inbox& inbox);
  // Writes what is queued until the stream breaks, or until Stop and then half-closes it.
  void WriteLoop(Call& call);
  // Waits for the call's end, with bounded patience for the router.
  absl::Status AwaitDone(Call& call);
  // The pause before the next stream; logs why the last one ended.
  absl::Duration PauseAfter(const absl::Status& ended, bool heard);
  // A message that no router receives.
  void Lose(const OutMessage& message);

  const RouterLinkOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  // Shared with a call's callbacks, which may still run when the link is destroyed.
  const std::shared_ptr<State> state_;
  TokenizerOffer tokenizer_;

  // Used by Run's thread only.
  uint64_t last_stream_ = 0;
  absl::Duration backoff_;
  Rng rng_;
  RefusalDelay refusals_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_LINK_ROUTER_LINK_H_
