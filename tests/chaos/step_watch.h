// The group's steps as the admin API streams them, with the time of arrival of each.
//
// Purpose: measures when the first step of a new epoch arrived, and how long the group paused. Reconnects
// when the router has been restarted. Threads: one of its own; any thread may call the methods.
#ifndef BFIO_TESTS_CHAOS_STEP_WATCH_H_
#define BFIO_TESTS_CHAOS_STEP_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "bfio/v1/admin.grpc.pb.h"

namespace bfio::chaos {

class StepWatch {
 public:
  explicit StepWatch(const std::string& admin_address);
  ~StepWatch();

  // The epoch of the last step seen.
  uint64_t epoch() const;
  uint64_t steps() const;
  // Waits for the first step of an epoch above `epoch` with `ranks` ranks (0: any number); returns when it
  // arrived.
  std::optional<absl::Time> AwaitEpochAfter(uint64_t epoch, int ranks, absl::Duration timeout);
  // The longest time between two steps since the last call.
  absl::Duration TakeLongestPause();

 private:
  void Run();

  const std::unique_ptr<v1::Admin::Stub> stub_;
  mutable std::mutex mutex_;
  std::unique_ptr<grpc::ClientContext> context_;
  bool stop_ = false;
  uint64_t epoch_ = 0, steps_ = 0;
  int ranks_ = 0;
  absl::Time epoch_began_ = absl::InfinitePast(), last_step_ = absl::InfinitePast();
  absl::Duration longest_;
  std::thread thread_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_STEP_WATCH_H_
