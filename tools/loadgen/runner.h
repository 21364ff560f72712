// Sends the schedule, takes the results in, ends the run.
//
// Purpose: open and closed loop, the bound on streams under way, retries, interruption. Ownership: login,
// channels and schedule are the caller's and outlive Run. Threads: Run is called once and blocks; streams
// end on gRPC's threads and touch only what `mutex_` guards. Time is MonotonicNow, except RPC deadlines.
#ifndef BFIO_TOOLS_LOADGEN_RUNNER_H_
#define BFIO_TOOLS_LOADGEN_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/base/rng.h"
#include "common/net/login.h"
#include "grpcpp/channel.h"
#include "tools/client/metadata.h"
#include "tools/loadgen/client_stream.h"
#include "tools/loadgen/options.h"
#include "tools/loadgen/progress.h"
#include "tools/loadgen/results.h"
#include "tools/loadgen/schedule.h"

namespace bfio::loadgen {

class Runner {
 public:
  // `run_id` makes request ids unique among generators that load one router.
  Runner(const Options& options, const Login& login, Schedule& schedule,
         std::vector<std::shared_ptr<grpc::Channel>> channels, std::string run_id,
         std::function<bool()> stop_requested, Progress& progress);

  // Until everything sent has ended. When `stop_requested` turns true nothing more is sent and what is under
  // way is cancelled.
  Results Run();

 private:
  // A request that has been sent and has no final result.
  struct Open {
    PlannedRequest planned;
    absl::Time due;
    // When the request is given up, retries included.
    absl::Time give_up;
    uint32_t retries = 0;
    // Of all its streams.
    std::shared_ptr<Received> received = std::make_shared<Received>();
    // Its stream broke, and the next attempt resumes it.
    bool resume = false;
    absl::Duration resume_pause = absl::ZeroDuration();
    // Of the attempt under way; null while a retry waits.
    std::shared_ptr<client::StreamCall> call;
  };

  // What the loop does next.
  struct Step {
    enum Kind { kSendNew, kSendReady, kSendAgain, kWait, kFinished } kind = kWait;
    absl::Time until = absl::InfiniteFuture();
    uint64_t retry_index = 0;
  };

  Step NextStep(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MaySend(absl::Time now, absl::Time& until) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendNew(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // The next call of an agent under way.
  void SendReady(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void Send(const PlannedRequest& planned, absl::Time due, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ramp and step: their levels begin at fixed times.
  void BeginLevels() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sweep: begins the next level once this one is over and everything of it has ended, or ends the run after
  // two rates in a row that the group did not hold.
  void AdvanceSweep(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void StartAttempt(uint64_t index) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropUnsent() ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelAll() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnAttemptDone(uint64_t index, AttemptResult result) ABSL_LOCKS_EXCLUDED(mutex_);
  bool ScheduleResume(Open& open, uint64_t index, const AttemptResult& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ScheduleRetry(Open& open, uint64_t index, const AttemptResult& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ProgressView View(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options& options_;
  const client::Metadata metadata_;
  Schedule& schedule_;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  const std::string run_id_;
  // Of requests that can be resumed; empty: they cannot.
  const std::string resume_token_;
  // Of the pauses before resumes.
  Rng rng_ ABSL_GUARDED_BY(mutex_);
  const std::function<bool()> stop_requested_;
  Progress& progress_;

  // The loop's own.
  absl::Time start_;
  absl::Time send_end_ = absl::InfiniteFuture();
  // When requests under way are counted next: at equal intervals, or busy times would count more.
  absl::Time next_sample_ = absl::InfinitePast();
  // What due times count from: the start, in a sweep the beginning of the level.
  absl::Time origin_;
  std::optional<uint32_t> level_;
  absl::Time level_end_ = absl::InfinitePast();
  std::optional<PlannedRequest> next_;
  bool stopped_ = false;

  std::atomic<uint64_t> live_tokens_{0};

  Mutex mutex_;
  // Set when a stream ends, so that the loop looks again.
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<uint64_t, Open> open_ ABSL_GUARDED_BY(mutex_);
  std::multimap<absl::Time, uint64_t> retries_ ABSL_GUARDED_BY(mutex_);
  AgentsUnderWay agents_ ABSL_GUARDED_BY(mutex_);
  // Calls whose turn has come, and since when.
  std::deque<std::pair<absl::Time, PlannedRequest>> ready_ ABSL_GUARDED_BY(mutex_);
  // Closed loop: no new request before, so that a router that refuses at once is not hammered.
  absl::Time hold_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time last_end_ ABSL_GUARDED_BY(mutex_);
  Results results_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_RUNNER_H_
