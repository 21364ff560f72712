// Sends the requests of a schedule, collects the results, ends the run.
//
// Purpose: open and closed loop, the limit on streams under way, retries, interruption. Ownership: the caller
// owns login, channel and schedule, which outlive Run. Threads: Run is called once and blocks; streams end
// on gRPC's threads and access only what `mutex_` guards. Times are of MonotonicNow, except RPC deadlines.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/backoff.h"
#include "common/base/mutex.h"
#include "common/net/login.h"
#include "grpcpp/channel.h"
#include "tools/client/stream_call.h"
#include "tools/loadgen/client_stream.h"
#include "tools/loadgen/options.h"
#include "tools/loadgen/progress.h"
#include "tools/loadgen/results.h"
#include "tools/loadgen/schedule.h"

namespace bfio::loadgen {

class Runner {
 public:
  // `run_id` makes request ids unique among generators that load the same router.
  Runner(const Options& options, const Login& login, Schedule& schedule,
         const std::shared_ptr<grpc::Channel>& channel, std::string run_id,
         std::function<bool()> stop_requested, Progress& progress);

  // Returns when everything sent has ended. When `stop_requested` becomes true nothing more is sent and
  // requests under way are cancelled.
  Results Run();

 private:
  // A request that has been sent and has no final result yet.
  struct Open {
    PlannedRequest planned;
    absl::Time due;
    // When the request is given up, retries included.
    absl::Time give_up;
    uint32_t retries = 0;
    // Shared by all streams of the request.
    std::shared_ptr<Received> received = std::make_shared<Received>();
    // The request's stream broke, and the next attempt resumes it.
    bool resume = false;
    Backoff resumes;
    // The attempt under way; null while a retry waits.
    std::shared_ptr<client::StreamCall> call;
  };

  // What the loop does next.
  struct Step {
    enum Kind { kSendNew, kSendAgain, kWait, kFinished } kind = kWait;
    absl::Time until = absl::InfiniteFuture();
    uint64_t retry_index = 0;
  };

  Step NextStep(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MaySend(absl::Time now, absl::Time& until) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendNew(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
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
  const std::unique_ptr<v1::Inference::Stub> stub_;
  const std::string run_id_;
  // Secret for resuming; empty: requests are not resumable.
  const std::string resume_token_;
  const std::function<bool()> stop_requested_;
  Progress& progress_;

  // Only used by the loop's thread.
  absl::Time start_;
  absl::Time send_end_ = absl::InfiniteFuture();
  // When requests under way are counted next. The interval is fixed, so that busy periods do not count more.
  absl::Time next_sample_ = absl::InfinitePast();
  std::optional<PlannedRequest> next_;
  // No new request is sent any more; requests under way were also cancelled.
  bool sent_all_ = false, interrupted_ = false;

  std::atomic<uint64_t> live_tokens_{0};

  Mutex mutex_;
  // Set when a stream ends, to wake the loop.
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<uint64_t, Open> open_ ABSL_GUARDED_BY(mutex_);
  std::multimap<absl::Time, uint64_t> retries_ ABSL_GUARDED_BY(mutex_);
  // Closed loop: no new request is sent before this time, so that a router that refuses at once is not
  // flooded.
  absl::Time hold_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time last_end_ ABSL_GUARDED_BY(mutex_);
  Results results_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::loadgen
