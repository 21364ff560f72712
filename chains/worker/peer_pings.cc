#include "chains/worker/peer_pings.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "bfio/v1/pipeline.grpc.pb.h"
#include "common/base/clock.h"
#include "common/net/channel.h"
#include "grpcpp/grpcpp.h"

namespace bfio::worker {
namespace {

constexpr int kRounds = 6;
constexpr absl::Duration kConnect = absl::Seconds(1), kAnswer = absl::Milliseconds(250);
// Time for gRPC to report that a deadline has passed.
constexpr absl::Duration kGrace = absl::Milliseconds(500);

struct Peer {
  std::unique_ptr<v1::Pipeline::Stub> stub;
  double least_s = std::numeric_limits<double>::infinity();
};

}  // namespace

// One ping to each peer, all concurrently.
class PeerPings::Round {
 public:
  explicit Round(std::vector<Peer>& peers)
      : calls_(peers.size()), peers_(peers), left_(static_cast<int>(peers.size())) {}

  // May be called from any thread, before or while Run runs.
  void Cancel() {
    for (Call& call : calls_) call.context.TryCancel();
  }

  void Run(absl::Duration deadline, bool counts) {
    for (size_t i = 0; i < calls_.size(); ++i) {
      Call& call = calls_[i];
      call.context.set_wait_for_ready(true);
      call.context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
      const absl::Time before = MonotonicNow();
      peers_[i].stub->async()->Ping(&call.context, &call.request, &call.reply,
                                    [this, i, before, counts](const grpc::Status& status) {
                                      Done(i, status.ok() && counts, MonotonicNow() - before);
                                    });
    }
    {
      MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(this, &Round::AllDone), deadline + kGrace)) {
        return;
      }
    }
    // gRPC's timers may fire late when the wall clock was set back (connection_wait.h).
    Cancel();
    MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Round::AllDone));
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::PingRequest request;
    v1::PingReply reply;
  };

  bool AllDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return left_ == 0; }
  void Done(size_t peer, bool counts, absl::Duration took) {
    MutexLock lock(&mutex_);
    if (counts) peers_[peer].least_s = std::min(peers_[peer].least_s, absl::ToDoubleSeconds(took));
    --left_;
  }

  Mutex mutex_;
  std::vector<Call> calls_;
  std::vector<Peer>& peers_;
  int left_ ABSL_GUARDED_BY(mutex_);
};

PeerPings::PeerPings(std::shared_ptr<grpc::ChannelCredentials> credentials,
                     std::function<void(v1::PeerTimes)> on_times)
    : credentials_(std::move(credentials)), on_times_(std::move(on_times)), thread_([this] { Run(); }) {}

PeerPings::~PeerPings() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    if (round_ != nullptr) round_->Cancel();
  }
  thread_.join();
}

void PeerPings::Measure(const v1::MeasurePeers& peers) {
  MutexLock lock(&mutex_);
  wanted_ = peers;
}

void PeerPings::Run() {
  while (const std::optional<v1::MeasurePeers> peers = Next()) {
    if (std::optional<v1::PeerTimes> times = MeasureOnce(*peers)) on_times_(*std::move(times));
  }
}

std::optional<v1::MeasurePeers> PeerPings::Next() {
  MutexLock lock(&mutex_);
  const auto some = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || wanted_.has_value(); };
  mutex_.Await(absl::Condition(&some));
  if (stopping_) return std::nullopt;
  return std::exchange(wanted_, std::nullopt);
}

bool PeerPings::Begin(Round* round) {
  MutexLock lock(&mutex_);
  if (!stopping_) round_ = round;
  return !stopping_;
}

bool PeerPings::Ended() {
  MutexLock lock(&mutex_);
  round_ = nullptr;
  return stopping_;
}

std::optional<v1::PeerTimes> PeerPings::MeasureOnce(const v1::MeasurePeers& measure) {
  std::vector<Peer> peers;
  for (const v1::MeasurePeers::Peer& peer : measure.peers())
    peers.push_back({v1::Pipeline::NewStub(NewChannel(peer.pipeline_address(), 0, credentials_))});
  for (int i = 0; i < kRounds; ++i) {
    Round round(peers);
    if (!Begin(&round)) return std::nullopt;
    round.Run(i == 0 ? kConnect : kAnswer, i > 0);
    if (Ended()) return std::nullopt;
  }
  v1::PeerTimes times;
  for (int i = 0; i < measure.peers_size(); ++i) {
    if (peers[i].least_s == std::numeric_limits<double>::infinity()) continue;
    v1::PeerTimes::Peer* to = times.add_peers();
    to->set_server_id(measure.peers(i).server_id());
    to->set_round_trip_s(peers[i].least_s);
  }
  return times;
}

}  // namespace bfio::worker
