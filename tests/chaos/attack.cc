#include "tests/chaos/attack.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/chaos/chaos_group.h"
#include "tests/chaos/greedy_peer.h"
#include "tests/testing/log_pipe.h"
#include "tests/testing/process.h"
#include "tests/testing/sockets.h"
#include "worker/barrier/star/star_endpoint.h"

namespace bfio::chaos {
namespace {

// For all barriers together: a rank accepts 256 unauthenticated connections, and the test itself needs some.
constexpr size_t kMostOpen = 400;
constexpr int kConnectionsPerRound = 4;
constexpr uint64_t kEpochsTried = 4;
constexpr absl::Duration kAttempt = absl::Milliseconds(100), kPause = absl::Milliseconds(50);

// Something that is undone at the end.
class Undone final : public Attack {
 public:
  explicit Undone(std::function<void()> undo) : undo_(std::move(undo)) {}
  ~Undone() override { undo_(); }

 private:
  const std::function<void()> undo_;
};

// A worker process like the others, except for its model.
class WrongModel final : public Attack {
 public:
  WrongModel(const ChaosGroup& group, int64_t number)
      : id_(absl::StrCat("other-model-", number)),
        process_("bfio_worker", group.OtherModelFlags(id_)),
        workers_(group.workers()) {}

  std::string Check(const v1::ClusterState& state) override {
    if (const auto code = process_.Wait(absl::ZeroDuration()))
      return absl::StrCat("the worker of another model ended with ", *code, ": ", process_.Stderr());
    const auto& workers = state.workers();
    const auto mine = std::find_if(workers.begin(), workers.end(),
                                   [&](const v1::WorkerState& worker) { return worker.worker_id() == id_; });
    if (mine == workers.end()) return "";
    for (const v1::WorkerState& worker : workers) {
      if (worker.worker_id() != id_ && worker.group() == mine->group())
        return absl::StrCat("a worker of another model is in the group of ", worker.worker_id());
    }
    if (workers_ > 1 && mine->phase() == v1::WORKER_PHASE_SERVING)
      return "a worker of another model serves, alone in its group";
    return "";
  }

 private:
  const std::string id_;
  testing::Process process_;
  const int workers_;
};

BarrierIntruder::Options IntruderOptions(ChaosGroup& group) {
  BarrierIntruder::Options options{group.barrier_addresses(), group.host(), group.workers(), 1};
  if (const auto state = group.State(); state.ok()) options.epoch = state->epoch();
  return options;
}

}  // namespace

std::unique_ptr<Attack> MakeAttack(const Fault& fault, ChaosGroup& group) {
  switch (fault.kind) {
    case FaultKind::kBlockedLog: {
      testing::LogPipe& log = IsRoutersLog(fault) ? group.router_log() : group.worker_log(fault.worker);
      log.Block();
      return std::make_unique<Undone>([&log] { log.Unblock(); });
    }
    case FaultKind::kSlowEtcd:
      // In each direction.
      group.etcd_link()->Delay(absl::Milliseconds(100 + fault.detail % 900));
      return std::make_unique<Undone>([&group] { group.etcd_link()->Delay(absl::ZeroDuration()); });
    case FaultKind::kWrongModel: return std::make_unique<WrongModel>(group, fault.detail);
    case FaultKind::kBarrierIntruder: return std::make_unique<BarrierIntruder>(IntruderOptions(group));
    case FaultKind::kGreedyPeer:
      return std::make_unique<GreedyPeer>(
          GreedyPeer::Options{.ports = group.ports(), .seed = static_cast<uint64_t>(fault.detail)});
    default: return nullptr;
  }
}

BarrierIntruder::BarrierIntruder(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

BarrierIntruder::~BarrierIntruder() {
  stop_ = true;
  thread_.join();
  for (const int fd : open_) close(fd);
}

void BarrierIntruder::Run() {
  for (uint64_t round = 0; !stop_; ++round) {
    for (const std::string& barrier : options_.barriers) Connect(barrier);
    if (!options_.barriers.empty()) {
      const size_t which = round / kEpochsTried % options_.barriers.size();
      TryToJoin(options_.barriers[which], options_.epoch + round % kEpochsTried);
    }
    absl::SleepFor(kPause);
  }
}

void BarrierIntruder::Connect(const std::string& barrier) {
  for (int i = 0; i < kConnectionsPerRound; ++i) {
    const int fd = testing::ConnectTo(barrier, "", SOCK_NONBLOCK);
    if (fd < 0) return;
    ++connections_;
    // Every other connection is silent.
    const std::string nonsense(64, 'x');
    if (i % 2 == 0) send(fd, nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
    open_.push_back(fd);
    if (open_.size() <= kMostOpen) continue;
    close(open_.front());
    open_.pop_front();
  }
}

void BarrierIntruder::TryToJoin(const std::string& barrier, uint64_t epoch) {
  auto endpoint = worker::StarEndpoint::Create({.host = options_.host});
  if (!endpoint.ok()) return;
  const auto joined = (*endpoint)->Form(
      {epoch, 1, options_.world_size, absl::StrCat(barrier, "/", std::string(64, '0'))}, kAttempt, {});
  if (joined.ok()) ++joined_;
}

}  // namespace bfio::chaos
