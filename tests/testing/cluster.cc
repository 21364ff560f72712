#include "tests/testing/cluster.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"

namespace bfio::testing {
namespace {

// The channel of the admin stubs. A test that waits for other events does not poll its connections and
// answers no pings, so the router may close them. The first call afterwards then fails without a fault of the
// router, and is tried again.
std::shared_ptr<grpc::Channel> AdminChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetServiceConfigJSON(R"({"methodConfig": [{"name": [{}], "retryPolicy": {
      "maxAttempts": 3, "initialBackoff": "0.1s", "maxBackoff": "0.1s", "backoffMultiplier": 1,
      "retryableStatusCodes": ["UNAVAILABLE"]}}]})");
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

}  // namespace

size_t Serving(const v1::ClusterState& state) {
  size_t serving = 0;
  for (const v1::WorkerState& worker : state.workers()) serving += worker.phase() == v1::WORKER_PHASE_SERVING;
  return serving;
}

uint32_t Running(const v1::ClusterState& state) {
  uint32_t running = 0;
  for (const v1::WorkerState& worker : state.workers())
    running += worker.active_requests() + worker.inflight_requests();
  return running;
}

Cluster::Cluster(const ClusterOptions& options) : options_(options) {
  if (!StartRouter()) {
    ADD_FAILURE() << "the router did not start: " << router_->Stderr();
    return;
  }
  inference_ = v1::Inference::NewStub(grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()));
  admin_ = v1::Admin::NewStub(AdminChannel(admin_address()));
  for (int i = 0; i < options.worker_processes; ++i) StartWorker();
  ok_ = WaitFor("the first epoch", [&](const v1::ClusterState& state) {
    return Serving(state) >= static_cast<size_t>(ranks());
  });
}

void Cluster::KillRouter() {
  router_->Signal(SIGKILL);
  EXPECT_TRUE(router_->Wait(kSlowdown * absl::Seconds(30)).has_value());
}

void Cluster::StartRouterAgain() {
  EXPECT_TRUE(StartRouter()) << router_->Stderr();
}

bool Cluster::StartRouter() {
  std::vector<std::string> args = {
      absl::StrCat("--listen=", address()), absl::StrCat("--admin_listen=", admin_address()),
      absl::StrCat("--workers=", ranks() / options_.groups), absl::StrCat("--groups=", options_.groups)};
  args.insert(args.end(), options_.router_flags.begin(), options_.router_flags.end());
  router_ = std::make_unique<Process>("bfio_router", args);
  return router_->WaitForOutput("waiting for", kSlowdown * absl::Seconds(30));
}

int Cluster::ranks() const {
  return options_.ranks > 0 ? options_.ranks : options_.worker_processes * options_.ranks_per_process;
}

void Cluster::StartWorker(int which) {
  const size_t place = which < 0 ? workers_.size() : static_cast<size_t>(which);
  std::vector<std::string> args = {absl::StrCat("--router=", address())};
  if (options_.ranks_per_process > 1)
    args.push_back(absl::StrCat("--ranks-per-process=", options_.ranks_per_process));
  args.insert(args.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  if (place < options_.more_flags.size()) {
    args.insert(args.end(), options_.more_flags[place].begin(), options_.more_flags[place].end());
  }
  workers_.emplace_back("bfio_worker", args);
}

absl::StatusOr<v1::ClusterState> Cluster::TryState() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10 * kSlowdown));
  v1::ClusterState state;
  const grpc::Status status = admin_->GetClusterState(&context, v1::GetClusterStateRequest(), &state);
  if (!status.ok())
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  return state;
}

v1::ClusterState Cluster::State() {
  absl::StatusOr<v1::ClusterState> state = TryState();
  EXPECT_TRUE(state.ok()) << "the router does not answer: " << state.status() << "\n" << router_->Stderr();
  return state.ok() ? *std::move(state) : v1::ClusterState();
}

bool Cluster::WaitFor(const std::string& what, const std::function<bool(const v1::ClusterState&)>& done) {
  const absl::Time deadline = MonotonicNow() + kSlowdown * absl::Seconds(30);
  v1::ClusterState state;
  do {
    // A router that restarts does not respond for a while.
    const absl::StatusOr<v1::ClusterState> now = TryState();
    if (now.ok() && done(*now)) return true;
    if (now.ok()) state = *now;
    absl::SleepFor(absl::Milliseconds(5));
  } while (MonotonicNow() < deadline);
  ADD_FAILURE() << "waited in vain for " << what << "; state: " << state.ShortDebugString()
                << "\nrouter: " << router_->Stderr();
  return false;
}

bool Cluster::WaitUntilIdle() {
  return WaitFor("all requests to end", [](const v1::ClusterState& state) {
    return state.waiting_requests() + Running(state) == 0;
  });
}

void Cluster::StopCleanly() {
  for (Process& worker : workers_) worker.Signal(SIGTERM);
  for (Process& worker : workers_) {
    EXPECT_EQ(worker.Wait(kSlowdown * absl::Seconds(40)), 0) << "worker: " << worker.Stderr();
  }
  router_->Signal(SIGTERM);
  EXPECT_EQ(router_->Wait(kSlowdown * absl::Seconds(40)), 0) << "router: " << router_->Stderr();
}

}  // namespace bfio::testing
