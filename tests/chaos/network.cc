#include "tests/chaos/network.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::chaos {
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
