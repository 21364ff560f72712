// A router and its workers as real processes on free loopback ports.
//
// Purpose: integration tests that use the programs as users do.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bfio/v1/admin.grpc.pb.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "tests/testing/process.h"
#include "tests/testing/request_stream.h"
#include "tests/testing/sockets.h"

namespace bfio::testing {

struct ClusterOptions {
  int worker_processes = 2;
  int ranks_per_process = 1;
  std::vector<std::string> router_flags;
  // The sim engine is fast in tests: half a millisecond per step.
  std::vector<std::string> worker_flags = {"--c=0.0005", "--tl=0", "--slots=16"};
  // Additional flags of worker i; later workers have none.
  std::vector<std::vector<std::string>> more_flags;
  // Number of ranks in the first epochs of all groups together; 0: one for each process's rank.
  int ranks = 0;
  // Number of groups into which the ranks are divided.
  int groups = 1;
};

// Workers that serve; requests placed on workers.
size_t Serving(const v1::ClusterState& state);
uint32_t Running(const v1::ClusterState& state);

class Cluster {
 public:
  // Starts all processes and waits until the first epoch serves. Errors fail the test through ADD_FAILURE and
  // leave `ok()` false.
  explicit Cluster(const ClusterOptions& options);

  bool ok() const { return ok_; }
  const std::string& address() const { return port_.address(); }
  const std::string& admin_address() const { return admin_port_.address(); }
  v1::Inference::Stub& inference() { return *inference_; }
  v1::Admin::Stub& admin() { return *admin_; }
  Process& router() { return *router_; }
  std::vector<Process>& workers() { return workers_; }

  // Starts a worker with the flags of worker `which`; without `which` with those of the next.
  void StartWorker(int which = -1);
  // Kills the router, and starts another on the same ports with the original flags, as a supervisor would.
  void KillRouter();
  void StartRouterAgain();
  // Fails the test when the router does not respond.
  v1::ClusterState State();
  // Polls State until `done` holds. After 30 s (more in slow builds) it fails the test with the last state
  // and returns false.
  bool WaitFor(const std::string& what, const std::function<bool(const v1::ClusterState&)>& done);
  // Waits until no request waits or is on a worker.
  bool WaitUntilIdle();
  // Sends SIGTERM to all processes; checks that each exits with 0.
  void StopCleanly();

 private:
  // Starts the router on its ports; true when it waits for workers.
  bool StartRouter();
  absl::StatusOr<v1::ClusterState> TryState();
  int ranks() const;

  const ClusterOptions options_;
  bool ok_ = false;
  const HeldPort port_, admin_port_;
  std::unique_ptr<Process> router_;
  std::vector<Process> workers_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

}  // namespace bfio::testing
