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
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "tests/chaos/memory_watch.h"

namespace bfio::chaos {
namespace {

constexpr char kSmallDisk[] = "size=3m", kDiskName[] = "bfio-disk-";
constexpr absl::Duration kStart = absl::Seconds(30 * testing::kSlowdown);

// Unmounts disks of runs that were killed; the name of a disk contains the id of its process.
void UnmountOrphans() {
  std::ifstream mounts("/proc/mounts");
  for (std::string line; std::getline(mounts, line);) {
    if (!absl::StartsWith(line, kDiskName)) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (!std::filesystem::exists(absl::StrCat("/proc/", words[0].substr(std::strlen(kDiskName)))))
      umount2(words[1].c_str(), MNT_DETACH);
  }
}

// Adds the wrapper for the clock; none where programs cannot have their own clock.
void AppendClock(const testing::WallClock& clock, std::vector<std::string>& wrapper) {
  if (!testing::WallClock::WhyNot().empty()) return;
  const std::vector<std::string> words = clock.Wrapper();
  wrapper.insert(wrapper.end(), words.begin(), words.end());
}

// TCP ports over IPv4 on which a process listens, according to the kernel, in the process's own network
// namespace. Empty when the process is gone.
std::vector<int> ListeningPorts(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (absl::StartsWith(target, "socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<int> ports;
  std::ifstream table(absl::StrCat("/proc/", pid, "/net/tcp"));
  std::string line;
  std::getline(table, line);  // headings
  while (std::getline(table, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    constexpr char kListen[] = "0A";
    if (fields.size() < 10 || fields[3] != kListen || inodes.count(fields[9]) == 0) continue;
    ports.push_back(static_cast<int>(std::stoul(fields[1].substr(fields[1].find(':') + 1), nullptr, 16)));
  }
  return ports;
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
  if (std::string why = testing::EtcdServer::WhyNot(); why.empty()) {
    means.etcd = std::make_unique<testing::EtcdServer>();
  } else {
    means.impossible[FaultKind::kSlowEtcd] = std::move(why);
  }
  if (!sim_engine) {
    means.impossible[FaultKind::kPoisonedRequest] =
        "the sim engine has a poisoned token, the checkpoint none";
  }
  return means;
}

void ReleaseMeans(Means& means) {
  if (!means.small_disk.empty()) umount2(means.small_disk.c_str(), MNT_DETACH);
}

ChaosGroup::ChaosGroup(GroupOptions options, const Means& means)
    : options_(std::move(options)), means_(means) {
  if (means_.etcd) etcd_link_ = std::make_unique<TcpProxy>("127.0.0.1", means_.etcd->address());
  for (int i = 0; i < options_.workers; ++i) {
    Worker& worker = workers_.emplace_back();
    worker.link =
        std::make_unique<TcpProxy>(host(), serves() ? worker.port.address() : worker_port_.address());
    worker.log = std::make_unique<testing::LogPipe>();
  }
  StartRouter();
  for (int i = 0; i < options_.workers; ++i) StartWorker(i);
}

ChaosGroup::~ChaosGroup() = default;

void ChaosGroup::StartRouter() {
  handed_over_ += std::exchange(handed_over_to_last_, 0);
  std::vector<std::string> args = {
      absl::StrCat("--listen=", address()), absl::StrCat("--worker_listen=", worker_port_.address()),
      absl::StrCat("--admin_listen=", admin_address()), absl::StrCat("--http_listen=", http_port_.address()),
      absl::StrCat("--workers=", serves() ? 1 : options_.workers)};
  std::string servers;
  for (const Worker& worker : workers_)
    absl::StrAppend(&servers, servers.empty() ? "--engines=" : ",", "vllm://", worker.link->address());
  if (serves()) {
    args.push_back(servers);
    args.push_back(absl::StrCat("--hand_over=", router_starts_ % 2 == 0 ? "all" : "by_cost"));
  }
  if (!options_.engine.empty()) {
    args.push_back(absl::StrCat("--engines=http://", options_.engine));
    args.push_back(absl::StrCat("--picker_listen=", picker_port_.address()));
  }
  if (etcd_link_) {
    EndLease();
    args.push_back(absl::StrCat("--election_etcd=http://", etcd_link_->address()));
  }
  if (!means_.small_disk.empty()) {
    args.push_back(absl::StrCat("--decision_log=", means_.small_disk, "/decisions", router_starts_));
    const std::string config = absl::StrCat(testing::TestDirectory(), "/decisions.yaml");
    std::ofstream(config) << "decision_log_mb: 1\n";
    args.push_back("--config=" + config);
  }
  ++router_starts_;
  args.insert(args.end(), options_.router_flags.begin(), options_.router_flags.end());
  std::vector<std::string> wrapper = router_log_.wrapper();
  AppendClock(router_clock_, wrapper);
  router_ = std::make_unique<testing::Process>("bfio_router", args, wrapper);
  router_down_ = false;
  router_->WaitForOutput("waiting for", kStart);
  if (admin_ == nullptr)
    admin_ = v1::Admin::NewStub(grpc::CreateChannel(admin_address(), grpc::InsecureChannelCredentials()));
}

void ChaosGroup::EndLease() {
  constexpr char kElectionKey[] = "/bfio/router";
  router::EtcdOptions options = {.endpoints = {means_.etcd->endpoint()}};
  const auto etcd = router::Etcd::Create(options);
  if (!etcd.ok()) return;
  const auto owner = (*etcd)->Read(kElectionKey);
  if (owner.ok() && owner->lease != 0) (*etcd)->Revoke(owner->lease).IgnoreError();
}

std::vector<std::string> ChaosGroup::WorkerFlags(int i) const {
  const Worker& worker = workers_[static_cast<size_t>(i)];
  if (serves()) {
    return {absl::StrCat("--listen=", worker.port.address()),
            absl::StrCat("--kv_directory=", testing::TestDirectory()),
            absl::StrCat("--kv_role=", i < options_.prefill_servers ? "kv_producer" : "kv_consumer")};
  }
  std::vector<std::string> args = {absl::StrCat("--router=", worker.link->address()),
                                   absl::StrCat("--worker_id=w", i)};
  if (means_.network) {
    args.push_back(absl::StrCat("--barrier_host=", worker_host(i)));
    args.push_back("--insecure");
  }
  return args;
}

void ChaosGroup::StartWorker(int i) {
  Worker& worker = workers_[static_cast<size_t>(i)];
  std::vector<std::string> args = WorkerFlags(i);
  if (!means_.small_disk.empty()) {
    args.push_back(absl::StrCat("--step_log=", means_.small_disk, "/steps", i));
  }
  args.insert(args.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  if (worker.clock == nullptr) worker.clock = std::make_unique<testing::WallClock>();
  std::vector<std::string> wrapper = worker.log->wrapper();
  if (means_.network) {
    const std::vector<std::string> words = means_.network->Wrapper(i);
    wrapper.insert(wrapper.end(), words.begin(), words.end());
  }
  AppendClock(*worker.clock, wrapper);
  worker.process =
      std::make_unique<testing::Process>(serves() ? "bfio_test_engine" : "bfio_worker", args, wrapper);
  ++worker.starts;
}

std::vector<std::string> ChaosGroup::OtherModelFlags(const std::string& id) const {
  std::vector<std::string> flags = {absl::StrCat("--router=", worker_port_.address()),
                                    absl::StrCat("--worker_id=", id)};
  if (means_.network) {
    flags.push_back(absl::StrCat("--barrier_host=", host()));
    flags.push_back("--insecure");
  }
  for (const auto* more : {&options_.worker_flags, &options_.other_model_flags})
    flags.insert(flags.end(), more->begin(), more->end());
  return flags;
}

std::vector<std::string> ChaosGroup::barrier_addresses() const {
  std::vector<std::string> addresses;
  for (int i = 0; i < options_.workers; ++i) {
    const pid_t pid = workers_[static_cast<size_t>(i)].process->pid();
    for (const int port : ListeningPorts(pid)) addresses.push_back(absl::StrCat(worker_host(i), ":", port));
  }
  return addresses;
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

std::optional<GroupView> ChaosGroup::Observe(std::vector<std::string>& broken) {
  if (router_down_) return std::nullopt;
  const auto state = State();
  if (!state.ok()) return std::nullopt;
  for (auto& [kind, under_way] : attacks_) {
    if (under_way.told) continue;
    const std::string found = under_way.attack->Check(*state);
    under_way.told = !found.empty();
    if (under_way.told) broken.push_back(absl::StrCat(NameOf(kind), ": ", found));
  }
  const v1::RequestTotals& requests = state->requests();
  handed_over_to_last_ = static_cast<int64_t>(requests.handed_over()) -
                         static_cast<int64_t>(requests.hand_offs_failed() + requests.hand_offs_expired());
  GroupView view = {.router = router_->pid()};
  view.router_kib = ResidentKib(view.router);
  std::string group;
  for (const v1::WorkerState& worker : state->workers()) {
    if (!absl::StartsWith(worker.worker_id(), "w") || worker.phase() != v1::WORKER_PHASE_SERVING) continue;
    if (group.empty()) group = worker.group();
    view.serving += worker.group() == group;
  }
  for (const v1::GroupState& other : state->groups()) {
    if (other.name() == group) view.epoch = other.epoch();
  }
  return view;
}

bool ChaosGroup::Begin(const Fault& fault) {
  if (IsHarmless(fault.kind)) {
    if (attacks_.contains(fault.kind) || router_down_) return false;
    std::unique_ptr<Attack> attack = MakeAttack(fault, *this);
    if (attack == nullptr) return false;
    attacks_[fault.kind].attack = std::move(attack);
    return true;
  }
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
    default: return BeginAtWorker(fault, target);
  }
}

bool ChaosGroup::BeginAtWorker(const Fault& fault, Worker& target) {
  if (target.busy) return false;
  // At least half of the group stays undisturbed.
  const auto busy = std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.busy; });
  if (2 * busy >= options_.workers) return false;
  switch (fault.kind) {
    case FaultKind::kKillWorker: KillWorker(fault.worker); break;
    case FaultKind::kPauseShort:
    case FaultKind::kPauseLong: target.process->Signal(SIGSTOP); break;
    case FaultKind::kSlowWorker: target.slow = true; break;
    case FaultKind::kCutLink: target.link->Cut(); return true;
    case FaultKind::kHalfCloseLink: target.link->HalfClose(); return true;
    case FaultKind::kStallLink: target.link->Stall(true); break;
    case FaultKind::kDelayLink: target.link->Delay(absl::Milliseconds(20 + fault.detail % 180)); break;
    case FaultKind::kPartitionPeers: {
      const int hub = Hub();
      if (hub < 0 || workers_[static_cast<size_t>(hub)].busy) return false;
      const std::pair<int, int> apart(hub, hub == fault.worker ? fault.peer : fault.worker);
      apart_[fault.worker] = apart;
      means_.network->Partition(apart.first, apart.second, true);
      break;
    }
    case FaultKind::kIsolateWorker: means_.network->Isolate(fault.worker, true); break;
    default: return false;
  }
  target.busy = true;
  return true;
}

void ChaosGroup::End(const Fault& fault) {
  if (IsHarmless(fault.kind)) {
    attacks_.erase(fault.kind);
    return;
  }
  Worker& target = workers_[static_cast<size_t>(fault.worker)];
  switch (fault.kind) {
    case FaultKind::kKillRouter: StartRouter(); return;
    case FaultKind::kFullDisk:
      std::filesystem::remove(means_.small_disk + "/filler");
      disk_full_ = false;
      return;
    case FaultKind::kKillWorker: StartWorker(fault.worker); break;
    case FaultKind::kPauseShort:
    case FaultKind::kPauseLong: target.process->Signal(SIGCONT); break;
    case FaultKind::kSlowWorker:
      target.slow = target.stopped = false;
      target.process->Signal(SIGCONT);
      break;
    case FaultKind::kStallLink: target.link->Stall(false); break;
    case FaultKind::kDelayLink: target.link->Delay(absl::ZeroDuration()); break;
    case FaultKind::kPartitionPeers:
      means_.network->Partition(apart_[fault.worker].first, apart_[fault.worker].second, false);
      break;
    case FaultKind::kIsolateWorker: means_.network->Isolate(fault.worker, false); break;
    default: return;
  }
  target.busy = false;
}

void ChaosGroup::Tick() {
  for (Worker& worker : workers_) {
    if (!worker.slow) continue;
    worker.stopped = !worker.stopped;
    worker.process->Signal(worker.stopped ? SIGSTOP : SIGCONT);
  }
  ReadLogs();
}

void ChaosGroup::ReadLogs() {
  router_log_.Read();
  for (Worker& worker : workers_) worker.log->Read();
}

std::vector<std::string> ChaosGroup::Deaths() {
  std::vector<std::string> deaths;
  const auto look = [&](const std::string& name, testing::Process& process, testing::LogPipe& log) {
    const std::optional<int> code = process.Wait(absl::ZeroDuration());
    if (!code || *code == 128 + SIGKILL) return false;
    const std::string& said = log.Read();
    deaths.push_back(absl::StrCat(name, " ended with ", *code, ": ",
                                  said.substr(said.size() - std::min<size_t>(said.size(), 600))));
    return true;
  };
  if (!router_down_ && look("the router", *router_, router_log_)) StartRouter();
  for (int i = 0; i < options_.workers; ++i) {
    if (look(absl::StrCat("worker ", i), worker(i), worker_log(i))) StartWorker(i);
  }
  return deaths;
}

std::vector<std::string> ChaosGroup::StopCleanly(absl::Duration timeout) {
  std::vector<std::string> faults;
  const auto stop = [&](const std::string& name, testing::Process& process) {
    const absl::Time deadline = MonotonicNow() + timeout;
    std::optional<int> code;
    while (!(code = process.Wait(absl::Milliseconds(20))) && MonotonicNow() < deadline) ReadLogs();
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
