// Fixture for tests of requests from arrival to end.
//
// Purpose: a router with one group of one worker of four slots: a real scheduler, no sockets, and a clock
// that tests advance. Threads: one.
#ifndef BFIO_TESTS_UNIT_ROUTER_REQUESTS_REQUEST_LIFECYCLE_FIXTURE_H_
#define BFIO_TESTS_UNIT_ROUTER_REQUESTS_REQUEST_LIFECYCLE_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "router/requests/request_lifecycle.h"
#include "tests/unit/router/requests/recording_sink.h"

namespace bfio::router {

class RequestLifecycleTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }

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
    sinks_.clear();
    requests_ = std::make_unique<RequestLifecycle>(options, cluster_.get(), ids_.get(), tenants_.get(),
                                                   overload_.get(), now_);
  }

  void OpenEpoch(std::vector<core::ResidentRequest> resident = {},
                 std::vector<core::RequestSpec> recovered = {}) {
    core::EpochMember member;
    member.spec.slots = 4;
    member.spec.kv_tokens = 1000;
    member.resident = std::move(resident);
    member.recovered = std::move(recovered);
    const core::Outcome outcome = cluster_->Apply(core::OpenEpoch{0, {member}});
    step_ = 0;
    for (auto id = outcome.displaced.rbegin(); id != outcome.displaced.rend(); ++id)
      requests_->OnLost(*id, now_);
    GroupsView view = {.kv_tokens = 1000,
                       .max_sequence_tokens = 500,
                       .complete = true,
                       .logprobs = true,
                       .passes = engines_,
                       .ranks = {{0, 1}}};
    requests_->SetGroups(view);
    requests_->OnEpochOpened(now_);
  }

  // Opens an epoch of ranks with so much KV memory each.
  void OpenRanks(const std::vector<int64_t>& kv_tokens) {
    std::vector<core::EpochMember> members;
    for (const int64_t kv : kv_tokens) {
      core::EpochMember& member = members.emplace_back();
      member.spec.slots = 4;
      member.spec.kv_tokens = kv;
    }
    cluster_->Apply(core::OpenEpoch{0, std::move(members)});
    requests_->SetGroups({.kv_tokens = 1000,
                          .max_sequence_tokens = 1001,
                          .complete = true,
                          .passes = engines_,
                          .ranks = {{0, static_cast<int32_t>(kv_tokens.size())}}});
    requests_->OnEpochOpened(now_);
  }

  // The worker dies with the requests placed on it, and another worker takes its slot in the group.
  void Die() {
    requests_->OnWorkerDied(0, 0);
    OpenEpoch();
  }
  // The specification with which the request waits in the pool.
  core::RequestSpec WaitingSpec(core::RequestId id) const {
    const core::RequestPool& pool = cluster_->pool();
    EXPECT_TRUE(pool.Waits(id)) << id << " does not wait";
    if (!pool.Waits(id)) return {};
    return pool.views().Contains(id) ? pool.views().Spec(id) : pool.SpecForRank(id);
  }

  static ClientRequest Request(const std::string& name, uint32_t max_new_tokens = 10) {
    return {.request_id = name, .prompt = {11, 12, 13}, .prompt_tokens = 3, .max_new_tokens = max_new_tokens};
  }
  static ClientRequest ResumableRequest(const std::string& name, uint32_t max_new_tokens = 10) {
    ClientRequest request = Request(name, max_new_tokens);
    request.resumable = true;
    request.resume_token = "secret";
    return request;
  }
  static ClientRequest ComeBack(const std::string& name, uint32_t from) {
    return {.request_id = name, .resumable = true, .resume_token = "secret", .resume_from = from};
  }

  // A resume of a request that no worker holds: its client has `received` tokens; `proven`: with a valid
  // resume ticket.
  static ClientRequest Interrupted(const std::string& name, uint32_t received, bool proven) {
    ClientRequest request = {.request_id = name,
                             .tenant = "t",
                             .prompt = {11, 12, 13},
                             .prompt_tokens = 3,
                             .max_new_tokens = 10,
                             .resumable = true,
                             .resume_from = received};
    request.received.assign(received, 7);
    request.resume_proven = proven;
    return request;
  }

  RecordingSink& Arrive(ClientRequest request) {
    const core::RequestId id = ids_->Next();
    sinks_[id] = std::make_shared<RecordingSink>(id);
    auto ticket = request.resume_from ? TenantLimiter::Ticket() : *tenants_->Enter(request, now_);
    requests_->OnArrival({id, std::move(request), sinks_[id], std::move(ticket)}, now_);
    return *sinks_[id];
  }
  // A call of several outputs. REQUIRES: its tenant's limits admit it.
  std::vector<RecordingSink*> ArriveAll(const ClientRequest& request, uint32_t outputs) {
    auto tickets = *tenants_->EnterAll(request, outputs, now_);
    std::vector<Arrival> arrivals;
    std::vector<RecordingSink*> sinks;
    for (uint32_t i = 0; i < outputs; ++i) {
      const core::RequestId id = ids_->Next();
      sinks_[id] = std::make_shared<RecordingSink>(id);
      sinks.push_back(sinks_[id].get());
      arrivals.push_back({id, OutputOf(request, i), sinks_[id], std::move(tickets[i])});
    }
    requests_->OnCall(std::move(arrivals), now_);
    return sinks;
  }

  // Makes a plan, which the worker applies. Returns its assignments.
  std::vector<Assignment> Place() {
    std::vector<Assignment> assignments;
    const core::Outcome outcome = cluster_->Apply(core::MakePlan{0, false});
    if (!outcome.plan) return assignments;
    for (const core::Placement& placement : outcome.plan->placements) {
      if (auto made = requests_->OnPlaced(placement.id, 0, placement.wait_steps, now_))
        assignments.push_back(*made);
    }
    core::StepReport report = {.step = ++step_, .applied_plan = outcome.plan->apply_step};
    EXPECT_TRUE(cluster_->Apply(core::Report{0, 0, report}).status.ok());
    return assignments;
  }
  void Tokens(const RecordingSink& sink, std::vector<uint32_t> tokens) {
    requests_->OnTokens(sink.id(), tokens, {}, now_);
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::unique_ptr<core::Cluster> cluster_;
  std::unique_ptr<Tenants> tenants_;
  std::unique_ptr<OverloadControl> overload_;
  std::unique_ptr<RequestIds> ids_;
  std::map<core::RequestId, std::shared_ptr<RecordingSink>> sinks_;
  std::unique_ptr<RequestLifecycle> requests_;
  int64_t step_ = 0;
  // The workers of the next epoch are engines with an API of their own.
  bool engines_ = false;
};

}  // namespace bfio::router

#endif  // BFIO_TESTS_UNIT_ROUTER_REQUESTS_REQUEST_LIFECYCLE_FIXTURE_H_
