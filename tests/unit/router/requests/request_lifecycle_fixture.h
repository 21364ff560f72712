// Fixture for tests of requests from arrival to end.
//
// Purpose: a router with one group of one worker of four slots: a real scheduler, no sockets, and a clock
// that tests advance. The test says what workers report; for workers and groups that follow their protocols,
// see tests/testing/world.h. Threads: one.
#pragma once

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/retry_delay.h"
#include "router/requests/request_lifecycle.h"
#include "tests/testing/client.h"

namespace bfio::router {

class RequestLifecycleTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }
  void TearDown() override { EXPECT_THAT(broken_, ::testing::IsEmpty()); }

  // Makes a router with one group, without an epoch and without requests.
  void Start(const RequestOptions& options, const OverloadOptions& overload = {},
             const std::string& limits = "") {
    core::SchedulerOptions scheduler = {.max_waiting = overload.max_waiting};
    requests_.reset();
    cluster_ = std::make_unique<core::Cluster>(scheduler, core::PolicySetting{"fcfs", {}});
    ASSERT_TRUE(cluster_->Apply(core::AddGroup{0, core::GroupKind::kBarrier}).status.ok());
    tenants_ = std::make_unique<Tenants>(*ParseTenantLimits(limits));
    overload_ = std::make_unique<OverloadControl>(overload);
    ids_ = std::make_unique<RequestIds>(core::RequestId{1});
    clients_.clear();
    requests_ =
        std::make_unique<RequestLifecycle>(options, cluster_.get(), tenants_.get(), overload_.get(), now_);
  }

  // Opens an epoch of a worker; requests that it does not hold have lost their worker.
  void OpenEpoch(std::vector<core::ResidentRequest> resident = {},
                 std::vector<core::RequestSpec> recovered = {}) {
    core::EpochMember member = {.spec = {.slots = 4, .kv_tokens = 1000},
                                .resident = std::move(resident),
                                .recovered = std::move(recovered)};
    Open({member}, 0);
    requests_->SetGroups({.capacities = {Capacity()}, .complete = true, .ranks = {{0, 1}}});
    requests_->OnEpochOpened(now_);
  }
  GroupCapacity Capacity(int64_t kv_tokens = 1000, int64_t sequence_tokens = 500) const {
    return {
        .kv_tokens = kv_tokens, .sequence_tokens = {sequence_tokens}, .logprobs = true, .passes = engines_};
  }
  void Open(std::vector<core::EpochMember> members, uint32_t model) {
    const core::Outcome outcome = cluster_->Apply(core::OpenEpoch{0, std::move(members), model});
    model_ = model;
    step_ = 0;
    for (auto id = outcome.displaced.rbegin(); id != outcome.displaced.rend(); ++id)
      requests_->OnLost(*id, now_);
  }
  // The worker dies with the requests placed on it, and another worker takes its slot in the group.
  void Die() {
    requests_->OnWorkerDied(0, 0);
    OpenEpoch();
  }
  // The specification with which the request waits in the pool.
  core::RequestSpec WaitingSpec(const Client& client) const {
    const core::RequestPool& pool = cluster_->pool();
    EXPECT_TRUE(pool.Waits(client.id())) << client.id() << " does not wait";
    return pool.Waits(client.id()) ? pool.Spec(client.id()) : core::RequestSpec();
  }

  static ClientRequest Request(const std::string& name, uint32_t max_new_tokens = 10,
                               const std::string& tenant = "") {
    return {.request_id = name,
            .tenant = tenant,
            .prompt = {11, 12, 13},
            .prompt_tokens = 3,
            .max_new_tokens = max_new_tokens};
  }
  static ClientRequest ResumableRequest(const std::string& name, uint32_t max_new_tokens = 10,
                                        const std::string& tenant = "") {
    ClientRequest request = Request(name, max_new_tokens, tenant);
    request.resumable = true;
    request.resume_token = "secret";
    return request;
  }
  static ClientRequest ComeBack(const std::string& name, uint32_t from, const std::string& tenant = "") {
    return {.request_id = name,
            .tenant = tenant,
            .resumable = true,
            .resume_token = "secret",
            .resume_from = from};
  }
  // A resume of a request that no worker holds: its client has `received` tokens; `proven`: with a valid
  // resume ticket.
  static ClientRequest Interrupted(const std::string& name, uint32_t received, bool proven,
                                   const std::string& model = "") {
    ClientRequest request = Request(name, 10, "t");
    request.resumable = true;
    request.resume_from = received;
    request.received.assign(received, 7);
    request.resume_proven = proven;
    request.model = model;
    return request;
  }

  Client& NewClient(const ClientRequest& request) {
    const core::RequestId id = ids_->Next();
    clients_[id] = std::make_shared<Client>(id, request.resume_from.value_or(0), &broken_);
    return *clients_[id];
  }
  Client& Arrive(ClientRequest request) {
    Client& client = NewClient(request);
    auto ticket = request.resume_from ? TenantLimiter::Ticket() : *tenants_->Enter(request, now_);
    requests_->OnArrival({client.id(), std::move(request), clients_[client.id()], std::move(ticket)}, now_);
    return client;
  }
  // A request that runs on the worker of a new epoch.
  Client& Running(ClientRequest request) {
    OpenEpoch();
    Client& client = Arrive(std::move(request));
    Place();
    return client;
  }
  // A call of several outputs. REQUIRES: its tenant's limits admit it.
  std::vector<Client*> ArriveAll(const ClientRequest& request, uint32_t outputs) {
    auto tickets = *tenants_->EnterAll(request, outputs, now_);
    std::vector<Arrival> arrivals;
    std::vector<Client*> clients;
    for (uint32_t i = 0; i < outputs; ++i) {
      Client& client = *clients.emplace_back(&NewClient(request));
      arrivals.push_back({client.id(), OutputOf(request, i), clients_[client.id()], std::move(tickets[i])});
    }
    requests_->OnCall(std::move(arrivals), now_);
    return clients;
  }

  // Makes a plan, which the worker applies. Returns its assignments.
  std::vector<Assignment> Place() {
    std::vector<Assignment> assignments;
    const core::Outcome outcome = cluster_->Apply(core::MakePlan{0, false});
    if (!outcome.plan) return assignments;
    for (const core::Placement& placement : outcome.plan->placements) {
      if (auto made = requests_->OnPlaced(placement.id, 0, placement.wait_steps, now_, model_))
        assignments.push_back(*made);
    }
    core::StepReport report = {.step = ++step_, .applied_plan = outcome.plan->apply_step};
    EXPECT_TRUE(cluster_->Apply(core::Report{0, 0, report}).status.ok());
    return assignments;
  }
  // Requests that the next plan drops.
  std::vector<core::RequestId> Dropped() {
    std::vector<core::RequestId> ids;
    const core::Outcome outcome = cluster_->Apply(core::MakePlan{0, false});
    if (outcome.plan) {
      for (const core::Drop& drop : outcome.plan->drops) ids.push_back(drop.id);
    }
    return ids;
  }
  void Tokens(const Client& client, std::vector<uint32_t> tokens, const Logprobs& logprobs = {}) {
    requests_->OnTokens(client.id(), tokens, logprobs.view(), now_);
  }
  void Finish(const Client& client, FinishReason reason = FinishReason::kLength) {
    requests_->OnFinished(client.id(), reason, now_);
  }
  void Reject(const Client& client, const absl::Status& why = absl::ResourceExhaustedError("no KV")) {
    requests_->OnRejected(client.id(), why, now_);
  }
  void Cancel(const Client& client, bool timed_out = false) {
    requests_->OnCancel(client.id(), timed_out, now_);
  }
  bool Abort(const std::string& name, const std::string& secret = "", const std::string& tenant = "") {
    return requests_->Abort(tenant, name, secret, now_);
  }
  void PassTime(absl::Duration time) {
    now_ += time;
    requests_->OnTimer(now_);
  }
  std::vector<core::RequestSpec> Recover(HeldRequest held, const std::vector<HeldActive>& active,
                                         const std::string& worker = "w") {
    requests_->SetTime(now_);
    return requests_->Recover({worker, 1000, active}, {std::move(held)});
  }
  const RequestTotals& totals() const { return requests_->totals(); }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::vector<std::string> broken_;
  std::unique_ptr<core::Cluster> cluster_;
  std::unique_ptr<Tenants> tenants_;
  std::unique_ptr<OverloadControl> overload_;
  std::unique_ptr<RequestIds> ids_;
  std::map<core::RequestId, std::shared_ptr<Client>> clients_;
  std::unique_ptr<RequestLifecycle> requests_;
  int64_t step_ = 0;
  // The model of the epoch; whether the workers of the next epoch are engines with an API of their own.
  uint32_t model_ = 0;
  bool engines_ = false;
};

// The status of a client's stream that has ended; then also with a delay for the next try.
MATCHER_P2(EndsWith, code, part, "") {
  if (arg.open()) return false;
  *result_listener << *arg.status;
  return arg.status->code() == code && std::string(arg.status->message()).find(part) != std::string::npos;
}
MATCHER_P2(EndsForNow, code, part, "") {
  return ExplainMatchResult(EndsWith(code, part), arg, result_listener) &&
         GetRetryDelay(*arg.status).has_value();
}

}  // namespace bfio::router
