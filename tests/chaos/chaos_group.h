// A router and its workers under faults: carries out the faults of a schedule on real processes.
//
// Purpose: starts the programs, each worker behind its own proxy and, where the machine allows it, in its own
// network namespace. Where etcd is installed, the router leads by a lease there, also through a proxy. Begin
// and End carry out one fault. Threads: one (the proxies have theirs).
#pragma once

#include <deque>
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
#include "tests/chaos/greedy_peer.h"
#include "tests/chaos/memory_watch.h"
#include "tests/chaos/schedule.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/testing/etcd_server.h"
#include "tests/testing/log_pipe.h"
#include "tests/testing/process.h"
#include "tests/testing/sockets.h"
#include "tests/testing/wall_clock/wall_clock.h"

namespace bfio::chaos {

struct GroupOptions {
  int workers = 8;
  std::vector<std::string> router_flags, worker_flags;
  // Flags with which a worker has a different model.
  std::vector<std::string> other_model_flags;
  // HOST:PORT of an engine behind Envoy; empty: none. The router then has a port for Envoy.
  std::string engine;
  // The first of the workers are servers that compute prompts for the others, which are servers that decode.
  // 0: they are workers.
  int prefill_servers = 0;
};

// What this machine supports, and the reason for each fault that is not possible.
struct Means {
  std::unique_ptr<Network> network;
  std::unique_ptr<testing::EtcdServer> etcd;
  // A directory that is a small file system of its own.
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
  const std::string& worker_address() const { return worker_port_.address(); }
  const std::string& admin_address() const { return admin_port_.address(); }
  Ports ports() const {
    const std::string picker = options_.engine.empty() ? "" : picker_port_.address();
    return {address(), address(), worker_address(),     admin_address(),
            picker,    picker,    http_port_.address(), address()};
  }
  int workers() const { return options_.workers; }
  pid_t router_pid() const { return router_->pid(); }
  std::vector<pid_t> worker_pids() const;
  testing::LogPipe& router_log() { return router_log_; }
  testing::LogPipe& worker_log(int i) { return *workers_[static_cast<size_t>(i)].log; }
  // Proxy between the router and etcd; null without etcd.
  TcpProxy* etcd_link() { return etcd_link_.get(); }
  // This process's address as the workers reach it.
  std::string host() const { return means_.network ? means_.network->host_address() : "127.0.0.1"; }
  // HOST:PORT on which the workers listen for their barrier.
  std::vector<std::string> barrier_addresses() const;
  // Flags of a worker process like the others, except for its model.
  std::vector<std::string> OtherModelFlags(const std::string& id) const;

  // False: the fault's target is not in a suitable state; nothing was done.
  bool Begin(const Fault& fault);
  void End(const Fault& fault);
  // Prompts that servers have computed for others and that these have decoded, as far as it was observed
  // before a router was killed.
  int64_t handed_over() const { return handed_over_ + handed_over_to_last_; }
  bool IsUnderWay(FaultKind harmless) const { return attacks_.contains(harmless); }
  // Toggles the slow workers and reads the logs; must be called about every 20 ms.
  void Tick();
  // The group as the router reports it. Forbidden effects of attacks are added to `broken`, once each.
  std::optional<GroupView> Observe(std::vector<std::string>& broken);
  // Programs that have ended without being killed; each is reported once.
  std::vector<std::string> Deaths();

  testing::Process& worker(int i) { return *workers_[static_cast<size_t>(i)].process; }
  void StartWorker(int i);
  void KillWorker(int i);
  void StartRouter();
  // Sends SIGTERM to all; returns the errors.
  std::vector<std::string> StopCleanly(absl::Duration timeout);

 private:
  struct Worker {
    // Of a server.
    testing::HeldPort port;
    std::unique_ptr<TcpProxy> link;
    // Outlives the process.
    std::unique_ptr<testing::LogPipe> log;
    std::unique_ptr<testing::Process> process;
    // The clock of the worker's machine; outlives the process.
    std::unique_ptr<testing::WallClock> clock;
    // A fault is under way on this worker; no other fault may use it.
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
  // Simulates that the lease of a killed router has expired.
  void EndLease();
  std::vector<std::string> WorkerFlags(int i) const;
  bool serves() const { return options_.prefill_servers > 0; }
  // Begins a fault that concerns a single worker.
  bool BeginAtWorker(const Fault& fault, Worker& target);
  void ReadLogs();

  // Index of the worker that is rank 0, the hub of a star; -1: none at the moment.
  int Hub();

  const GroupOptions options_;
  const Means& means_;
  const testing::HeldPort port_, worker_port_, admin_port_, picker_port_, http_port_;
  std::unique_ptr<TcpProxy> etcd_link_;
  testing::LogPipe router_log_;
  std::unique_ptr<testing::Process> router_;
  testing::WallClock router_clock_;
  bool router_down_ = false;
  int router_starts_ = 0;
  std::deque<Worker> workers_;
  // By earlier routers, and by the present one.
  int64_t handed_over_ = 0, handed_over_to_last_ = 0;
  std::unique_ptr<v1::Admin::Stub> admin_;
  bool disk_full_ = false;
  std::map<FaultKind, AttackUnderWay> attacks_;
  // Workers of the partitions under way, by the fault's worker.
  std::map<int, std::pair<int, int>> apart_;
};

}  // namespace bfio::chaos
