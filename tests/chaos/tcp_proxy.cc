#include "tests/chaos/tcp_proxy.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "tests/testing/sockets.h"

namespace bfio::chaos {
namespace {

constexpr size_t kMaxBuffered = 1 << 20;
constexpr absl::Duration kProxyTick = absl::Milliseconds(5);

void Prepare(int fd) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

TcpProxy::TcpProxy(const std::string& host, std::string upstream, std::string own)
    : upstream_(std::move(upstream)),
      own_(std::move(own)),
      listener_(testing::BoundTo(host + ":0", SOCK_NONBLOCK)) {
  if (listen(listener_, 64) != 0) throw std::runtime_error("the proxy cannot listen on " + host);
  address_ = absl::StrCat(host, ":", testing::PortOf(listener_));
  thread_ = std::thread([this] { Run(); });
}

TcpProxy::~TcpProxy() {
  Set(stop_, true);
  thread_.join();
  for (Connection& connection : connections_) CloseBoth(connection, false);
  close(listener_);
}

void TcpProxy::CloseBoth(Connection& connection, bool reset) {
  for (int& fd : connection.ends) {
    if (fd < 0) continue;
    if (reset) {
      const linger now{1, 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
    close(fd);
    fd = -1;
  }
}

void TcpProxy::Accept() {
  for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
    // Blocking, because the router is on this machine: it accepts or refuses at once.
    const int up = testing::ConnectTo(upstream_, own_);
    if (up < 0) {
      close(fd);
      continue;
    }
    Prepare(fd);
    Prepare(up);
    Connection& connection = connections_.emplace_back();
    connection.ends[0] = fd;
    connection.ends[1] = up;
  }
}

void TcpProxy::Pump(Connection& connection, int from, absl::Time now) {
  Pipe& pipe = connection.pipes[from];
  char buffer[65536];
  while (!pipe.ended && pipe.buffered < kMaxBuffered) {
    const ssize_t got = read(connection.ends[from], buffer, sizeof(buffer));
    if (got < 0) {
      if (errno != EAGAIN && errno != EINTR) connection.broken = true;
      break;
    }
    if (got == 0) {
      pipe.ended = true;
      break;
    }
    pipe.chunks.push_back({now + delay_, std::string(buffer, static_cast<size_t>(got))});
    pipe.buffered += static_cast<size_t>(got);
  }
  while (!pipe.chunks.empty() && pipe.chunks.front().due <= now) {
    std::string& bytes = pipe.chunks.front().bytes;
    const ssize_t sent = send(connection.ends[1 - from], bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) connection.broken = true;
      break;
    }
    pipe.buffered -= static_cast<size_t>(sent);
    bytes.erase(0, static_cast<size_t>(sent));
    if (!bytes.empty()) break;
    pipe.chunks.pop_front();
  }
  if (pipe.ended && pipe.chunks.empty() && !pipe.shut) {
    shutdown(connection.ends[1 - from], SHUT_WR);
    pipe.shut = true;
  }
}

absl::Duration TcpProxy::Pause() const {
  absl::Duration pause = kProxyTick;
  const absl::Time now = MonotonicNow();
  for (const Connection& connection : connections_) {
    for (const Pipe& pipe : connection.pipes) {
      // Data that is overdue waits for its reader, not for a timer.
      if (!pipe.chunks.empty() && pipe.chunks.front().due > now)
        pause = std::min(pause, pipe.chunks.front().due - now);
    }
  }
  return pause;
}

void TcpProxy::Run() {
  std::vector<pollfd> set;
  for (;;) {
    set.assign(1, {listener_, POLLIN, 0});
    timespec pause;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      pause = absl::ToTimespec(Pause());
      for (Connection& connection : connections_) {
        for (int end = 0; end < 2; ++end) {
          const Pipe& pipe = connection.pipes[end];
          if (!stalled_ && !connection.black_hole && !pipe.ended && pipe.buffered < kMaxBuffered)
            set.push_back({connection.ends[end], POLLIN, 0});
        }
      }
    }
    ppoll(set.data(), set.size(), &pause, nullptr);
    std::lock_guard lock(mutex_);
    if (std::exchange(black_hole_, false))
      for (Connection& connection : connections_) connection.black_hole = true;
    Accept();
    const absl::Time now = MonotonicNow();
    for (auto it = connections_.begin(); it != connections_.end();) {
      Connection& connection = *it;
      if (cut_) connection.broken = true;
      if (half_close_) {  // as if the worker had no more data to send
        shutdown(connection.ends[1], SHUT_WR);
        connection.pipes[0].ended = connection.pipes[0].shut = true;
        connection.pipes[0].chunks.clear();
      }
      const bool carries = !stalled_ && !connection.black_hole;
      for (int end = 0; end < 2 && carries && !connection.broken; ++end) Pump(connection, end, now);
      const bool over = connection.broken || (connection.pipes[0].shut && connection.pipes[1].shut);
      if (over) CloseBoth(connection, connection.broken);
      it = over ? connections_.erase(it) : std::next(it);
    }
    cut_ = half_close_ = false;
  }
}

namespace {

// Runs a shell command; returns its exit code and output.
std::pair<int, std::string> Run(const std::string& command) {
  FILE* const pipe = popen(absl::StrCat("(", command, ") 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  std::string said;
  char buffer[256];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) said += buffer;
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, said};
}

// Removes namespaces and links of runs that were killed; their names contain the id of the process.
void RemoveOrphans() {
  Run("for ns in $(ip netns list | sed -n 's/^\\(bfio[0-9]*w[0-9]*\\).*/\\1/p'); do "
      "pid=${ns#bfio}; [ -d /proc/${pid%w*} ] || ip netns del $ns; done; "
      "for link in $(ip -o link show type bridge | sed -n 's/^[0-9]*: \\(bfio[0-9]*\\):.*/\\1/p'); do "
      "[ -d /proc/${link#bfio} ] || ip link del $link; done");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Create(int workers) {
  RemoveOrphans();
  const int pid = getpid();
  // Names contain the process id, because several runs may share a machine. Names of interfaces have at most
  // 15 characters.
  std::unique_ptr<Network> network(new Network(absl::StrCat("bfio", pid), 16 + pid % 200, workers));
  const std::string bridge = network->tag_;
  std::string script =
      absl::StrCat("set -e; ip link add ", bridge, " type bridge; ip addr add ", network->host_address(),
                   "/24 dev ", bridge, "; ip link set ", bridge, " up; ");
  for (int worker = 0; worker < workers; ++worker) {
    const std::string ns = network->Namespace(worker), inside = absl::StrCat("ip -n ", ns, " ");
    absl::StrAppend(&script, "ip netns add ", ns, "; ip link add ", ns, " type veth peer name eth0 netns ",
                    ns, "; ip link set ", ns, " master ", bridge, " up; ", inside, "addr add ",
                    network->worker_address(worker), "/24 dev eth0; ", inside, "link set eth0 up; ", inside,
                    "link set lo up; ");
  }
  const auto [code, said] = Run(script);
  if (code != 0) return absl::UnavailableError(absl::StrCat("no network namespaces here: ", said));
  return network;
}

Network::Network(std::string tag, int subnet, int workers)
    : tag_(std::move(tag)), subnet_(subnet), workers_(workers) {}

Network::~Network() {
  std::string script;
  for (int worker = 0; worker < workers_; ++worker)
    absl::StrAppend(&script, "ip netns del ", Namespace(worker), "; ");
  Run(absl::StrCat(script, "ip link del ", tag_));
}

std::string Network::Namespace(int worker) const {
  return absl::StrCat(tag_, "w", worker);
}
std::string Network::host_address() const {
  return absl::StrCat("10.77.", subnet_, ".1");
}
std::string Network::worker_address(int worker) const {
  return absl::StrCat("10.77.", subnet_, ".", 10 + worker);
}
std::vector<std::string> Network::Wrapper(int worker) const {
  return {"ip", "netns", "exec", Namespace(worker)};
}

void Network::Partition(int a, int b, bool apart) {
  const std::string verb = apart ? " route add blackhole " : " route del blackhole ";
  Run(absl::StrCat("ip -n ", Namespace(a), verb, worker_address(b), "/32; ip -n ", Namespace(b), verb,
                   worker_address(a), "/32"));
}

void Network::Isolate(int worker, bool alone) {
  // The bridge's end is set down: the worker's own interface stays up, so that its sockets see silence and no
  // error.
  Run(absl::StrCat("ip link set ", Namespace(worker), alone ? " down" : " up"));
}

}  // namespace bfio::chaos
