// Waits for a channel's connection by the monotonic clock. WaitForConnected of grpc::Channel, and the
// pauses between gRPC's attempts to connect, use timers that (in Debian 12's gRPC) sleep until a wall-clock
// time: if the clock is set back by hours, they fire hours late. Here the caller checks at its own intervals,
// and if the clock was set back, gRPC is made to retry without a timer. Ownership: shares the channel.
// Threads: one at a time. Only the destructor blocks, until gRPC has ended a call that it cancels.
//
//   for (ConnectionWait wait(channel); !wait.Connected();) SleepFor(wait.pause());
#pragma once

#include <memory>

#include "absl/time/time.h"

namespace grpc {
class Channel;
}

namespace bfio {

class ConnectionWait {
 public:
  explicit ConnectionWait(std::shared_ptr<grpc::Channel> channel);
  ~ConnectionWait();
  ConnectionWait(const ConnectionWait&) = delete;
  ConnectionWait& operator=(const ConnectionWait&) = delete;

  // Whether there is a connection now. If not, gRPC continues to try.
  bool Connected();
  // Delay before the next check: longer after a while.
  absl::Duration pause() const;

 private:
  class Call;

  const std::shared_ptr<grpc::Channel> channel_;
  const absl::Time start_;
  absl::Time last_push_ = absl::InfinitePast();
  // The pending call for which gRPC connects.
  std::unique_ptr<Call> call_;
};

}  // namespace bfio
