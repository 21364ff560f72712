// A router and its workers under attack: what the faults of a schedule do to real processes.
//
// Purpose: starts the programs, each worker behind a proxy of its own and, where the machine allows it, in a
// network namespace of its own; where etcd is installed the router leads by a lease there, over a proxy, too.
// Begin and End carry out one fault. Threads: one (the proxies have theirs).
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
#include "tests/chaos/attack.h"
#include "tests/chaos/harmless_watch.h"
#include "tests/chaos/misbehaving_worker.h"
#include "tests/chaos/network.h"
#include "tests/chaos/schedule.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/testing/etcd_server.h"
#include "tests/testing/held_port.h"
#include "tests/testing/log_pipe.h"
#include "tests/testing/process.h"
#include "tests/testing/wall_clock/wall_clock.h"

namespace bfio::chaos {

struct GroupOptions {
  int workers = 8;
  std::vector<std::string> router_flags, worker_flags;
  // What makes a worker's model another one.
  std::vector<std::string> other_model_flags;
  // Of the misbehaving worker's engine, which is a sim engine.
  worker::SimOptions misbehaving_worker;
};

// What is possible on this machine, and for what is not: why.
struct Means {
  std::unique_ptr<Network> network;
  std::unique_ptr<testing::EtcdServer> etcd;
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
  int workers() const { return options_.workers; }
  pid_t router_pid() const { return router_->pid(); }
  std::vector<pid_t> worker_pids() const;
  testing::LogPipe& router_log() { return router_log_; }
  testing::LogPipe& worker_log(int i) { return *workers_[static_cast<size_t>(i)].log; }
  // Between the router and etcd; null: there is none.
  TcpProxy* etcd_link() { return etcd_link_.get(); }
  // This process's address as the workers reach it.
  std::string host() const { return means_.network ? means_.network->host_address() : "127.0.0.1"; }
  // HOST:PORT where the workers listen for their barrier.
  std::vector<std::string> barrier_addresses() const;
  // Of a worker process that is as the others are, but for its model.
  std::vector<std::string> OtherModelFlags(const std::string& id) const;

  // False: the fault's target is in no state for it; nothing was done.
  bool Begin(const Fault& fault);
  void End(const Fault& fault);
  // Reports that misbehaving workers have changed so far.
  int64_t altered_reports() const { return altered_reports_; }
  bool IsUnderWay(FaultKind harmless) const { return attacks_.contains(harmless); }
  // Toggles the slow workers and reads the logs; to be called every 20 ms or so.
  void Tick();
  // The group as the router tells; what attacks have achieved that they must not goes to `broken`, once each.
  std::optional<GroupView> Look(std::vector<std::string>& broken);
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
    // It outlives the process.
    std::unique_ptr<testing::LogPipe> log;
    std::unique_ptr<testing::Process> process;
    // Its machine's: it outlives the process.
    std::unique_ptr<testing::WallClock> clock;
    // Under a fault: others leave it alone.
    bool busy = false;
    bool slow = false, stopped = false;
    int starts = 0;
  };

  struct AttackUnderWay {
    std::unique_ptr<Attack> attack;
    bool told = false;
  };

  std::string worker_host(int i) const {
    return means_.network ? means_.network->worker_address(i) : "127.0.0.1";
  }
  // As if the lease of a router that was killed had ended.
  void EndLease();
  // The kinds that befall one worker, and others leave it alone.
  bool BeginAtWorker(const Fault& fault, Worker& target);
  // Whether the process ends within `timeout`; its log is read meanwhile.
  std::optional<int> WaitReading(testing::Process& process, absl::Duration timeout);
  void ReadLogs();

  // The worker that is rank 0, which the others of a star meet at; -1: none now.
  int Hub();

  const GroupOptions options_;
  const Means& means_;
  const testing::HeldPort port_, worker_port_, admin_port_;
  std::unique_ptr<TcpProxy> etcd_link_;
  testing::LogPipe router_log_;
  std::unique_ptr<testing::Process> router_;
  testing::WallClock router_clock_;
  bool router_down_ = false;
  int router_starts_ = 0;
  std::vector<Worker> workers_;
  std::unique_ptr<MisbehavingWorker> misbehaving_worker_;
  // Of those that have left.
  int64_t altered_reports_ = 0;
  std::unique_ptr<v1::Admin::Stub> admin_;
  bool disk_full_ = false;
  std::map<FaultKind, AttackUnderWay> attacks_;
  // Workers of a partition under way, by the fault's worker.
  std::map<int, std::pair<int, int>> apart_;
};

}  // namespace bfio::chaos

#endif  // BFIO_TESTS_CHAOS_CHAOS_GROUP_H_
