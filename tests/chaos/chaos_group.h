// A router and its workers under attack: what the faults of a schedule do to real processes.
//
// Purpose: starts the programs, each worker behind a proxy of its own and, where the machine allows it, in a
// network namespace of its own; Begin and End carry out one fault. Threads: one (the proxies have theirs).
#ifndef BFIO_TESTS_CHAOS_CHAOS_GROUP_H_
#define BFIO_TESTS_CHAOS_CHAOS_GROUP_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bfio/v1/admin.grpc.pb.h"
#include "tests/chaos/lying_worker.h"
#include "tests/chaos/network.h"
#include "tests/chaos/schedule.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/testing/held_port.h"
#include "tests/testing/process.h"
#include "tests/testing/wall_clock/wall_clock.h"

namespace bfio::chaos {

struct GroupOptions {
  int workers = 8;
  std::vector<std::string> router_flags, worker_flags;
  // Of the lying worker's engine, which is a sim engine.
  worker::SimOptions liar;
};

// What is possible on this machine, and for what is not: why.
struct Means {
  std::unique_ptr<Network> network;
  // A directory that is a file system of its own, and small.
  std::string small_disk;
  std::map<FaultKind, std::string> impossible;
};
Means FindMeans(int workers, bool sim_engine);
void ReleaseMeans(Means& means);

class ChaosGroup {
 public:
  ChaosGroup(GroupOptions options, const Means& means);
  ~ChaosGroup();

  // Waits until all ranks serve; false after `timeout`.
  bool WaitServing(int ranks, absl::Duration timeout);
  absl::StatusOr<v1::ClusterState> State();

  const std::string& address() const { return port_.address(); }
  const std::string& admin_address() const { return admin_port_.address(); }
  pid_t router_pid() const { return router_->pid(); }
  std::vector<pid_t> worker_pids() const;

  // False: the fault's target is in no state for it; nothing was done.
  bool Begin(const Fault& fault);
  void End(const Fault& fault);
  // Toggles the slow workers; to be called every 20 ms or so.
  void Tick();
  // Programs that have ended though nobody killed them; each is told once.
  std::vector<std::string> Deaths();

  testing::Process& worker(int i) { return *workers_[static_cast<size_t>(i)].process; }
  void StartWorker(int i);
  void KillWorker(int i);
  void StartRouter();
  // SIGTERM to all; what went wrong.
  std::vector<std::string> StopCleanly(absl::Duration timeout);

 private:
  struct Worker {
    std::unique_ptr<TcpProxy> link;
    std::unique_ptr<testing::Process> process;
    // Its machine's: it outlives the process.
    std::unique_ptr<testing::WallClock> clock;
    // Under a fault: others leave it alone.
    bool busy = false;
    bool slow = false, stopped = false;
    int starts = 0;
  };

  // The worker that is rank 0, which the others of a star meet at; -1: none now.
  int Hub();

  const GroupOptions options_;
  const Means& means_;
  const testing::HeldPort port_, admin_port_;
  std::unique_ptr<testing::Process> router_;
  testing::WallClock router_clock_;
  bool router_down_ = false;
  int router_starts_ = 0;
  std::vector<Worker> workers_;
  std::unique_ptr<LyingWorker> liar_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  bool disk_full_ = false;
  // Workers of a partition under way, by the fault's worker.
  std::map<int, std::pair<int, int>> apart_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_CHAOS_GROUP_H_
