#include "tests/chaos/attack.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/chaos/barrier_intruder.h"
#include "tests/chaos/chaos_group.h"
#include "tests/chaos/flood.h"
#include "tests/testing/log_pipe.h"
#include "tests/testing/process.h"

namespace bfio::chaos {
namespace {

class BlockedLog final : public Attack {
 public:
  explicit BlockedLog(testing::LogPipe& log) : log_(log) { log_.Block(); }
  ~BlockedLog() override { log_.Unblock(); }

 private:
  testing::LogPipe& log_;
};

class SlowEtcd final : public Attack {
 public:
  // `delay`: in each direction.
  SlowEtcd(TcpProxy& link, absl::Duration delay) : link_(link) { link_.Delay(delay); }
  ~SlowEtcd() override { link_.Delay(absl::ZeroDuration()); }

 private:
  TcpProxy& link_;
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

class IntrudersAtBarriers final : public Attack {
 public:
  explicit IntrudersAtBarriers(ChaosGroup& group) {
    BarrierIntruder::Options options{group.barrier_addresses(), group.host(), group.workers(), 1};
    if (const auto state = group.State(); state.ok()) options.epoch = state->epoch();
    intruder_ = std::make_unique<BarrierIntruder>(std::move(options));
  }
  std::string Check(const v1::ClusterState&) override {
    return intruder_->joined() == 0 ? "" : "a intruder is a rank of the barrier";
  }

 private:
  std::unique_ptr<BarrierIntruder> intruder_;
};

class UnauthenticatedFlood final : public Attack {
 public:
  explicit UnauthenticatedFlood(const std::string& address) : flood_(address) {}

 private:
  Flood flood_;
};

}  // namespace

std::unique_ptr<Attack> MakeAttack(const Fault& fault, ChaosGroup& group) {
  switch (fault.kind) {
    case FaultKind::kBlockedLog: {
      testing::LogPipe& log = IsRoutersLog(fault) ? group.router_log() : group.worker_log(fault.worker);
      return std::make_unique<BlockedLog>(log);
    }
    case FaultKind::kSlowEtcd:
      return std::make_unique<SlowEtcd>(*group.etcd_link(), absl::Milliseconds(100 + fault.detail % 900));
    case FaultKind::kWrongModel:
      return std::make_unique<WrongModel>(group, fault.detail);
    case FaultKind::kBarrierIntruder:
      return std::make_unique<IntrudersAtBarriers>(group);
    case FaultKind::kFlood:
      return std::make_unique<UnauthenticatedFlood>(group.address());
    default:
      return nullptr;
  }
}

}  // namespace bfio::chaos
