#include "common/net/connection_wait.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "common/net/awaited_call.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"

namespace bfio {
namespace {

// A connection usually comes within milliseconds, or else when a program is started; after this time checks
// become less frequent.
constexpr absl::Duration kImpatience = absl::Seconds(2);
constexpr absl::Duration kFirstPause = absl::Milliseconds(5), kLaterPause = absl::Milliseconds(50);
// Interval at which gRPC is made to retry when its timers do not fire.
constexpr absl::Duration kPushPeriod = absl::Seconds(1);
// Smaller delays of gRPC's timers are ignored.
constexpr int64_t kSetBackNs = 1'000'000'000;

// Whether the wall clock has been set back during this process.
bool ClockWasSetBack() {
  static std::atomic<int64_t> furthest{INT64_MIN};
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const int64_t ahead =
      std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count() - absl::ToUnixNanos(MonotonicNow());
  int64_t seen = furthest.load();
  while (seen < ahead && !furthest.compare_exchange_weak(seen, ahead)) {
  }
  return ahead < furthest.load() - kSetBackNs;
}

}  // namespace

// A call that any gRPC server answers, waiting for the connection: while a call waits, gRPC's own threads
// make connection attempts. They do not for a channel that is only checked.
class ConnectionWait::Call final : public AwaitedCall<grpc::ClientUnaryReactor> {
 public:
  explicit Call(std::shared_ptr<grpc::Channel> channel) : stub_(std::move(channel)) {
    const grpc::Slice nothing;
    request_ = grpc::ByteBuffer(&nothing, 1);
    context_.set_wait_for_ready(true);
    stub_.PrepareUnaryCall(&context_, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request_,
                           &response_, this);
    GrpcHandOver(this);
    StartCall();
  }
  ~Call() override { End(); }

 private:
  grpc::GenericStub stub_;
  grpc::ByteBuffer request_, response_;
};

ConnectionWait::ConnectionWait(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)), start_(MonotonicNow()) {
  ClockWasSetBack();  // records the clock, in case it is set during the wait
}

ConnectionWait::~ConnectionWait() = default;

bool ConnectionWait::Connected() {
  if (channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) return true;
  if (call_ == nullptr || call_->done()) call_ = std::make_unique<Call>(channel_);
  if (MonotonicNow() - last_push_ >= kPushPeriod && ClockWasSetBack()) {
    grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
    last_push_ = MonotonicNow();
  }
  return false;
}

absl::Duration ConnectionWait::pause() const {
  return MonotonicNow() - start_ < kImpatience ? kFirstPause : kLaterPause;
}

}  // namespace bfio
