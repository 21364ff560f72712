#include "tests/chaos/chaos_group.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"

namespace bfio::chaos {
namespace {

constexpr char kSmallDisk[] = "size=3m", kDiskName[] = "bfio-disk-";
constexpr absl::Duration kStart = absl::Seconds(30 * testing::kSlowdown);

std::pair<std::string, uint16_t> Split(const std::string& address) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  return {parts[0], static_cast<uint16_t>(std::stoi(parts[1]))};
}

// Of runs that were killed: a disk's name says whose it is.
void UnmountOrphans() {
  std::ifstream mounts("/proc/mounts");
  for (std::string line; std::getline(mounts, line);) {
    if (!absl::StartsWith(line, kDiskName)) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (!std::filesystem::exists(absl::StrCat("/proc/", words[0].substr(std::strlen(kDiskName)))))
      umount2(words[1].c_str(), MNT_DETACH);
  }
}

// Words before a program's; none where programs go by the machine's clock.
std::vector<std::string> Under(const testing::WallClock& clock) {
  return testing::WallClock::WhyNot().empty() ? clock.Wrapper() : std::vector<std::string>();
}

}  // namespace

Means FindMeans(int workers, bool sim_engine) {
  Means means;
  auto network = Network::Create(workers + 1);
  if (network.ok()) {
    means.network = *std::move(network);
  } else {
    means.impossible[FaultKind::kPartitionPeers] = std::string(network.status().message());
    means.impossible[FaultKind::kIsolateWorker] = std::string(network.status().message());
  }
  UnmountOrphans();
  const std::string disk = testing::TestDirectory() + "/disk";
  std::filesystem::create_directory(disk);
  if (mount(absl::StrCat(kDiskName, getpid()).c_str(), disk.c_str(), "tmpfs", 0, kSmallDisk) == 0) {
    means.small_disk = disk;
  } else {
    means.impossible[FaultKind::kFullDisk] = absl::StrCat("no mounting of a tmpfs: ", std::strerror(errno));
  }
  if (!testing::WallClock::WhyNot().empty())
    means.impossible[FaultKind::kJumpClock] = testing::WallClock::WhyNot();
  if (!sim_engine) {
    for (const FaultKind kind : {FaultKind::kLyingWorker, FaultKind::kDuplicateReport})
      means.impossible[kind] = "the lying worker's engine is the sim engine";
  }
  return means;
}

void ReleaseMeans(Means& means) {
  if (!means.small_disk.empty()) umount2(means.small_disk.c_str(), MNT_DETACH);
}

ChaosGroup::ChaosGroup(GroupOptions options, const Means& means)
    : options_(std::move(options)), means_(means) {
  StartRouter();
  const auto [host, port] = Split(address());
  for (int i = 0; i < options_.workers; ++i) {
    Worker& worker = workers_.emplace_back();
    worker.link =
        std::make_unique<TcpProxy>(means_.network ? means_.network->host_address() : "127.0.0.1", host, port);
  }
  for (int i = 0; i < options_.workers; ++i) StartWorker(i);
}

ChaosGroup::~ChaosGroup() = default;

void ChaosGroup::StartRouter() {
  std::vector<std::string> args = {absl::StrCat("--listen=", address()),
                                   absl::StrCat("--admin_listen=", admin_address()),
                                   absl::StrCat("--workers=", options_.workers)};
  if (!means_.small_disk.empty()) {
    args.push_back(absl::StrCat("--decision_log=", means_.small_disk, "/decisions", router_starts_));
    args.push_back("--decision_log_mb=1");
  }
  ++router_starts_;
  args.insert(args.end(), options_.router_flags.begin(), options_.router_flags.end());
  router_ = std::make_unique<testing::Process>("bfio_router", args, Under(router_clock_));
  router_down_ = false;
  router_->WaitForOutput("waiting for", kStart);
  if (admin_ == nullptr)
    admin_ = v1::Admin::NewStub(grpc::CreateChannel(admin_address(), grpc::InsecureChannelCredentials()));
}

void ChaosGroup::StartWorker(int i) {
  Worker& worker = workers_[static_cast<size_t>(i)];
  std::vector<std::string> args = {absl::StrCat("--router=", worker.link->address()),
                                   absl::StrCat("--worker_id=w", i)};
  if (means_.network) {
    args.push_back(absl::StrCat("--barrier_host=", means_.network->worker_address(i)));
    args.push_back("--insecure");
  }
  if (!means_.small_disk.empty()) {
    args.push_back(absl::StrCat("--step_log=", means_.small_disk, "/steps", i));
    args.push_back("--step_log_mb=1");
  }
  args.insert(args.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  if (worker.clock == nullptr) worker.clock = std::make_unique<testing::WallClock>();
  std::vector<std::string> wrapper = means_.network ? means_.network->Wrapper(i) : std::vector<std::string>();
  const std::vector<std::string> clock = Under(*worker.clock);
  wrapper.insert(wrapper.end(), clock.begin(), clock.end());
  worker.process = std::make_unique<testing::Process>("bfio_worker", args, wrapper);
  ++worker.starts;
}

void ChaosGroup::KillWorker(int i) {
  testing::Process& process = worker(i);
  process.Signal(SIGKILL);
  process.Wait(absl::Seconds(10));
}

std::vector<pid_t> ChaosGroup::worker_pids() const {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_) pids.push_back(worker.process->pid());
  return pids;
}

absl::StatusOr<v1::ClusterState> ChaosGroup::State() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1::ClusterState state;
  const grpc::Status status = admin_->GetClusterState(&context, v1::GetClusterStateRequest(), &state);
  if (!status.ok()) return absl::UnavailableError(status.error_message());
  return state;
}

bool ChaosGroup::WaitServing(int ranks, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (MonotonicNow() < deadline) {
    const auto state = State();
    int serving = 0;
    if (state.ok()) {
      for (const v1::WorkerState& worker : state->workers())
        serving += worker.phase() == v1::WORKER_PHASE_SERVING;
    }
    if (serving >= ranks) return true;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return false;
}

int ChaosGroup::Hub() {
  const auto state = State();
  if (!state.ok()) return -1;
  for (const v1::WorkerState& worker : state->workers()) {
    int index = -1;
    if (worker.has_rank() && worker.rank() == 0 && worker.phase() == v1::WORKER_PHASE_SERVING &&
        absl::SimpleAtoi(absl::StripPrefix(worker.worker_id(), "w"), &index) && index < options_.workers) {
      return index;
    }
  }
  return -1;
}

bool ChaosGroup::Begin(const Fault& fault) {
  Worker& target = workers_[static_cast<size_t>(fault.worker)];
  switch (fault.kind) {
    case FaultKind::kKillRouter:
      if (router_down_) return false;
      router_down_ = true;
      router_->Signal(SIGKILL);
      router_->Wait(absl::Seconds(10));
      return true;
    case FaultKind::kFullDisk: {
      if (disk_full_) return false;
      disk_full_ = true;
      std::ofstream filler(means_.small_disk + "/filler");
      const std::string block(4096, 'x');
      while (filler << block << std::flush) {
      }
      return true;
    }
    case FaultKind::kJumpClock: {
      const ClockJump jump = JumpOf(fault);
      (jump.router ? router_clock_ : *target.clock).Jump(jump.by);
      return true;
    }
    case FaultKind::kLyingWorker:
    case FaultKind::kDuplicateReport: {
      if (liar_ != nullptr || router_down_) return false;
      const Lie lie = fault.kind == FaultKind::kDuplicateReport
                          ? (fault.detail % 2 == 0 ? Lie::kDuplicate : Lie::kOutOfOrder)
                          : static_cast<Lie>(fault.detail % static_cast<int>(Lie::kDuplicate));
      liar_ = std::make_unique<LyingWorker>(address(),
                                            means_.network ? means_.network->host_address() : "127.0.0.1",
                                            absl::StrCat("liar-", fault.detail), lie, options_.liar);
      return true;
    }
    default:
      break;
  }
  if (target.busy) return false;
  // Half of the group is left alone.
  const auto busy = std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.busy; });
  if (2 * busy >= options_.workers) return false;
  switch (fault.kind) {
    case FaultKind::kKillWorker:
      KillWorker(fault.worker);
      break;
    case FaultKind::kPauseShort:
    case FaultKind::kPauseLong:
      target.process->Signal(SIGSTOP);
      break;
    case FaultKind::kSlowWorker:
      target.slow = true;
      break;
    case FaultKind::kCutLink:
      target.link->Cut();
      return true;
    case FaultKind::kHalfCloseLink:
      target.link->HalfClose();
      return true;
    case FaultKind::kStallLink:
      target.link->Stall(true);
      break;
    case FaultKind::kDelayLink:
      target.link->Delay(absl::Milliseconds(20 + fault.detail % 180));
      break;
    case FaultKind::kPartitionPeers: {
      const int hub = Hub();
      if (hub < 0 || workers_[static_cast<size_t>(hub)].busy) return false;
      const std::pair<int, int> apart(hub, hub == fault.worker ? fault.peer : fault.worker);
      apart_[fault.worker] = apart;
      means_.network->Partition(apart.first, apart.second, true);
      break;
    }
    case FaultKind::kIsolateWorker:
      means_.network->Isolate(fault.worker, true);
      break;
    default:
      return false;
  }
  target.busy = true;
  return true;
}

void ChaosGroup::End(const Fault& fault) {
  Worker& target = workers_[static_cast<size_t>(fault.worker)];
  switch (fault.kind) {
    case FaultKind::kKillRouter:
      StartRouter();
      return;
    case FaultKind::kFullDisk:
      std::filesystem::remove(means_.small_disk + "/filler");
      disk_full_ = false;
      return;
    case FaultKind::kLyingWorker:
    case FaultKind::kDuplicateReport:
      liar_.reset();
      return;
    case FaultKind::kKillWorker:
      StartWorker(fault.worker);
      break;
    case FaultKind::kPauseShort:
    case FaultKind::kPauseLong:
      target.process->Signal(SIGCONT);
      break;
    case FaultKind::kSlowWorker:
      target.slow = target.stopped = false;
      target.process->Signal(SIGCONT);
      break;
    case FaultKind::kStallLink:
      target.link->Stall(false);
      break;
    case FaultKind::kDelayLink:
      target.link->Delay(absl::ZeroDuration());
      break;
    case FaultKind::kPartitionPeers:
      means_.network->Partition(apart_[fault.worker].first, apart_[fault.worker].second, false);
      break;
    case FaultKind::kIsolateWorker:
      means_.network->Isolate(fault.worker, false);
      break;
    default:
      return;
  }
  target.busy = false;
}

void ChaosGroup::Tick() {
  for (Worker& worker : workers_) {
    if (!worker.slow) continue;
    worker.stopped = !worker.stopped;
    worker.process->Signal(worker.stopped ? SIGSTOP : SIGCONT);
  }
}

std::vector<std::string> ChaosGroup::Deaths() {
  std::vector<std::string> deaths;
  const auto look = [&](const std::string& name, testing::Process& process) {
    const std::optional<int> code = process.Wait(absl::ZeroDuration());
    if (!code || *code == 128 + SIGKILL) return false;
    const std::string said = process.Stderr();
    deaths.push_back(absl::StrCat(name, " ended with ", *code, ": ",
                                  said.substr(said.size() - std::min<size_t>(said.size(), 600))));
    return true;
  };
  if (!router_down_ && look("the router", *router_)) StartRouter();
  for (int i = 0; i < options_.workers; ++i) {
    if (look(absl::StrCat("worker ", i), worker(i))) StartWorker(i);
  }
  return deaths;
}

std::vector<std::string> ChaosGroup::StopCleanly(absl::Duration timeout) {
  std::vector<std::string> faults;
  const auto stop = [&](const std::string& name, testing::Process& process) {
    const auto code = process.Wait(timeout);
    if (!code) {
      faults.push_back(name + " does not end after SIGTERM");
    } else if (*code != 0) {
      faults.push_back(absl::StrCat(name, " ended with ", *code, " after SIGTERM"));
    }
  };
  for (Worker& worker : workers_) worker.process->Signal(SIGTERM);
  for (int i = 0; i < options_.workers; ++i) stop(absl::StrCat("worker ", i), worker(i));
  router_->Signal(SIGTERM);
  stop("the router", *router_);
  return faults;
}

}  // namespace bfio::chaos
