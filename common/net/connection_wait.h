// Waits for a channel's connection by the monotonic clock.
//
// Purpose: grpc::Channel::WaitForConnected, and the pauses between gRPC's attempts to connect, go by timers
// that (in Debian 12's gRPC) sleep until a wall-clock time: where the clock is set back by hours nothing ends
// them for hours. Here the caller looks as often as it likes, and when the clock went back it makes gRPC
// retry again without a timer. Ownership: keeps the channel. Threads: one at a time; nothing blocks but the
// destructor, until gRPC has ended a call that it cancels.
//
//   for (ConnectionWait wait(channel); !wait.Connected();) SleepFor(wait.pause());
#ifndef BFIO_COMMON_NET_CONNECTION_WAIT_H_
#define BFIO_COMMON_NET_CONNECTION_WAIT_H_

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

  // Whether there is a connection now; if not, gRPC continues to try.
  bool Connected();
  // Delay before the next check: longer after a while.
  absl::Duration pause() const;

 private:
  class Call;

  const std::shared_ptr<grpc::Channel> channel_;
  const absl::Time start_;
  absl::Time last_push_ = absl::InfinitePast();
  // What gRPC connects for.
  std::unique_ptr<Call> call_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_NET_CONNECTION_WAIT_H_
