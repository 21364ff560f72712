// Requests from arrival to end, with a real scheduler and without sockets.
#include "router/requests/request_lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/retry_delay.h"
#include "common/base/spdlog.h"
#include "common/telemetry/log_fields.h"
#include "spdlog/sinks/sink.h"
#include "tests/unit/router/requests/recording_sink.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RequestLifecycleTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }

  // A router with one group of one worker of four slots.
  void Start(const RequestOptions& options, const OverloadOptions& overload = {},
             const std::string& limits = "") {
    core::SchedulerOptions scheduler;
    scheduler.max_waiting = overload.max_waiting;
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
    member.adopted = std::move(recovered);
    const core::Outcome outcome = cluster_->Apply(core::OpenEpoch{0, {member}});
    step_ = 0;
    for (auto id = outcome.displaced.rbegin(); id != outcome.displaced.rend(); ++id)
      requests_->OnLost(*id, now_);
    GroupsView view;
    view.kv_tokens = 1000;
    view.max_sequence_tokens = 500;
    view.complete = true;
    requests_->SetGroups(view);
    requests_->OnEpochOpened(now_);
  }

  // The worker dies with what is placed on it, and another takes its place.
  void Die() {
    requests_->OnWorkerDied(0, 0);
    OpenEpoch();
  }
  // As it waits in the pool.
  core::RequestSpec WaitingSpec(core::RequestId id) const {
    for (const core::PoolState::Waiting& waiting : cluster_->Save().pool.waiting) {
      if (waiting.spec.id == id) return waiting.spec;
    }
    ADD_FAILURE() << id << " does not wait";
    return {};
  }

  static ClientRequest Ask(const std::string& name, uint32_t max_new_tokens = 10) {
    ClientRequest request;
    request.request_id = name;
    request.prompt = {11, 12, 13};
    request.prompt_tokens = 3;
    request.max_new_tokens = max_new_tokens;
    return request;
  }
  static ClientRequest AskResumable(const std::string& name, uint32_t max_new_tokens = 10) {
    ClientRequest request = Ask(name, max_new_tokens);
    request.resumable = true;
    request.resume_token = "secret";
    return request;
  }
  static ClientRequest ComeBack(const std::string& name, uint32_t from) {
    ClientRequest request;
    request.request_id = name;
    request.resumable = true;
    request.resume_token = "secret";
    request.resume_from = from;
    return request;
  }

  RecordingSink& Arrive(ClientRequest request) {
    const core::RequestId id = ids_->Next();
    sinks_[id] = std::make_shared<RecordingSink>(id);
    auto ticket = request.resume_from ? TenantLimiter::Ticket() : *tenants_->Enter(request, now_);
    requests_->OnArrival(id, std::move(request), sinks_[id], std::move(ticket), now_);
    return *sinks_[id];
  }

  // The plan's assignments, once it has been applied by the worker.
  std::vector<Assignment> Place() {
    std::vector<Assignment> assignments;
    const core::Outcome outcome = cluster_->Apply(core::MakePlan{0, false});
    if (!outcome.plan) return assignments;
    for (const core::Placement& placement : outcome.plan->placements) {
      if (auto made = requests_->OnPlaced(placement.id, 0, placement.wait_steps, now_))
        assignments.push_back(*made);
    }
    core::StepReport report;
    report.step = ++step_;
    report.applied_plan = outcome.plan->apply_step;
    EXPECT_TRUE(cluster_->Apply(core::Report{0, 0, report}).status.ok());
    return assignments;
  }
  void Tokens(const RecordingSink& sink, std::vector<uint32_t> tokens) {
    requests_->OnTokens(sink.id(), tokens, now_);
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::unique_ptr<core::Cluster> cluster_;
  std::unique_ptr<Tenants> tenants_;
  std::unique_ptr<OverloadControl> overload_;
  std::unique_ptr<RequestIds> ids_;
  std::map<core::RequestId, std::shared_ptr<RecordingSink>> sinks_;
  std::unique_ptr<RequestLifecycle> requests_;
  int64_t step_ = 0;
};

TEST_F(RequestLifecycleTest, TokensAndFinishReachTheClient) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 3));
  EXPECT_EQ(cluster_->waiting(), 1);
  const std::vector<Assignment> assignments = Place();
  ASSERT_EQ(assignments.size(), 1u);
  EXPECT_EQ(assignments[0].id, sink.id());
  EXPECT_EQ(assignments[0].first_index, 0u);
  EXPECT_THAT(assignments[0].request->prompt, ElementsAre(11, 12, 13));
  now_ += absl::Seconds(2);
  Tokens(sink, {1});
  Tokens(sink, {2, 3});
  requests_->OnFinished(sink.id(), FinishReason::kLength, now_);
  EXPECT_THAT(sink.tokens, ElementsAre(1, 2, 3));
  ASSERT_TRUE(sink.finish.has_value());
  EXPECT_TRUE(sink.status->ok());
  EXPECT_EQ(sink.finish->completion_tokens, 3u);
  EXPECT_EQ(sink.finish->prompt_tokens, 3u);
  EXPECT_EQ(sink.finish->time_to_first_token, absl::Seconds(2));
  EXPECT_EQ(requests_->live(), 0);
  EXPECT_EQ(requests_->totals().completed, 1);
  EXPECT_EQ(overload_->committed_kv(), 0);
}

TEST_F(RequestLifecycleTest, TokensBeyondTheLimitAreCutOff) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 2));
  Place();
  Tokens(sink, {1, 2, 3, 4});
  EXPECT_THAT(sink.tokens, ElementsAre(1, 2));
}

TEST_F(RequestLifecycleTest, AnEarlyEndByLengthIsAnError) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 3));
  Place();
  Tokens(sink, {1});
  requests_->OnFinished(sink.id(), FinishReason::kLength, now_);
  EXPECT_TRUE(absl::IsInternal(*sink.status));
  EXPECT_EQ(requests_->totals().tokens_lost, 2);
}

TEST_F(RequestLifecycleTest, ALiveRequestIdIsTakenOnce) {
  OpenEpoch();
  RecordingSink& first = Arrive(Ask("a"));
  RecordingSink& second = Arrive(Ask("a"));
  EXPECT_TRUE(absl::IsAlreadyExists(*second.status));
  EXPECT_TRUE(first.open());
  EXPECT_EQ(requests_->live(), 1);
}

TEST_F(RequestLifecycleTest, TenantsHaveNoRequestIdsInCommon) {
  OpenEpoch();
  ClientRequest request = AskResumable("a");
  request.tenant = "acme";
  RecordingSink& first = Arrive(request);
  request.tenant = "zeta";
  RecordingSink& second = Arrive(request);
  EXPECT_TRUE(first.open() && second.open());
  // Whatever one says, it reaches its own.
  EXPECT_FALSE(requests_->Abort("beta", "a", "secret", now_));
  ClientRequest back = ComeBack("a", 0);
  EXPECT_EQ(*Arrive(back).status, absl::NotFoundError("no request a to go on with"));
  back.tenant = "zeta";
  EXPECT_TRUE(Arrive(back).open());
  EXPECT_TRUE(absl::IsAborted(*second.status)) << "taken over";
  EXPECT_TRUE(requests_->Abort("zeta", "a", "secret", now_));
  EXPECT_FALSE(requests_->Abort("zeta", "a", "secret", now_));
  EXPECT_TRUE(first.open());
  // The id is free again for the one, and not for the other.
  EXPECT_TRUE(Arrive([] {
                ClientRequest again = Ask("a");
                again.tenant = "zeta";
                return again;
              }())
                  .open());
  HeldRequest held;
  held.id = 1000;
  held.request = AskResumable("a", 4);
  held.request.tenant = "acme";
  const std::vector<HeldActive> active = {{1000, 3, 0}, {1001, 3, 0}};
  EXPECT_THAT(requests_->Recover("w", {held}, active), IsEmpty());
  held.request.tenant = "delta";
  EXPECT_EQ(requests_->Recover("w", {held}, active).size(), 1u);
}

TEST_F(RequestLifecycleTest, ARequestThatNoWorkerCanHoldIsRefused) {
  OpenEpoch();
  EXPECT_TRUE(absl::IsInvalidArgument(*Arrive(Ask("a", 498)).status));
  EXPECT_TRUE(Arrive(Ask("b", 497)).open());
}

TEST_F(RequestLifecycleTest, ACancelledRequestLeavesPoolOrWorker) {
  OpenEpoch();
  RecordingSink& waiting = Arrive(Ask("a"));
  requests_->OnCancel(waiting.id(), false, now_);
  EXPECT_EQ(cluster_->waiting(), 0);
  EXPECT_TRUE(absl::IsCancelled(*waiting.status));
  RecordingSink& placed = Arrive(Ask("b"));
  Place();
  requests_->OnCancel(placed.id(), false, now_);
  const core::Outcome outcome = cluster_->Apply(core::MakePlan{0, false});
  ASSERT_TRUE(outcome.plan.has_value());
  ASSERT_EQ(outcome.plan->drops.size(), 1u);
  EXPECT_EQ(outcome.plan->drops[0].id, placed.id());
  EXPECT_EQ(requests_->totals().cancelled, 2);
}

// What is logged while it lives.
class CapturedLog final : public spdlog::sinks::sink {
 public:
  struct Line {
    std::string text;
    std::map<std::string, std::string> fields;
  };
  static std::shared_ptr<CapturedLog> Install() {
    auto log = std::make_shared<CapturedLog>();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("captured", log));
    return log;
  }
  void log(const spdlog::details::log_msg& msg) override {
    Line line{std::string(msg.payload.data(), msg.payload.size()), {}};
    for (const LogField& field : ScopedLogFields::Current())
      line.fields.emplace(std::string(field.name), field.text);
    lines.push_back(std::move(line));
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

  std::vector<Line> lines;
};

TEST_F(RequestLifecycleTest, ClientsCannotFillTheLog) {
  const std::shared_ptr<CapturedLog> log = CapturedLog::Install();
  OpenEpoch();
  const auto abandon = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ClientRequest request = AskResumable(absl::StrCat("r", i));
      request.tenant = "acme";
      requests_->OnCancel(Arrive(request).id(), false, now_);
    }
    now_ += absl::Seconds(30);
    requests_->OnTimer(now_);
    EXPECT_EQ(requests_->live(), 0);
  };
  abandon(100);
  ASSERT_EQ(log->lines.size(), 10u);
  EXPECT_EQ(log->lines[0].text, "request r0 of tenant acme: no client has resumed it");
  EXPECT_EQ(log->lines[0].fields["request_id"], "r0");
  EXPECT_EQ(log->lines[0].fields["tenant"], "acme");
  // Another kind of line has a share of its own, and the next of this kind tells of those that were left out.
  RecordingSink& sink = Arrive(Ask("other"));
  Place();
  requests_->OnRejected(sink.id(), absl::InternalError("no logits"), now_);
  ASSERT_EQ(log->lines.size(), 11u);
  EXPECT_EQ(log->lines[10].text, "request other: its worker could not go on with it: no logits");
  EXPECT_EQ(log->lines[10].fields["rank"], "0");
  abandon(1);
  EXPECT_THAT(log->lines.back().text, HasSubstr("no client has resumed it; 90 more"));
}

TEST_F(RequestLifecycleTest, AnAbortNeedsTheRightTenantAndSecret) {
  OpenEpoch();
  ClientRequest request = AskResumable("a");
  request.tenant = "t";
  RecordingSink& sink = Arrive(request);
  EXPECT_FALSE(requests_->Abort("t", "a", "wrong", now_));
  EXPECT_FALSE(requests_->Abort("other", "a", "secret", now_));
  EXPECT_FALSE(requests_->Abort("", "a", "secret", now_));
  EXPECT_FALSE(requests_->Abort("t", "b", "secret", now_));
  EXPECT_TRUE(sink.open());
  EXPECT_TRUE(requests_->Abort("t", "a", "secret", now_));
  EXPECT_EQ(sink.finish->reason, FinishReason::kAbort);
}

TEST_F(RequestLifecycleTest, ALostRequestGoesOnWhereItsClientIs) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 5));
  RecordingSink& young = Arrive(Ask("young"));
  requests_->OnCancel(young.id(), false, now_);
  Place();
  Tokens(sink, {1, 2});
  OpenEpoch();  // its worker is another process
  Arrive(Ask("b"));
  const std::vector<Assignment> assignments = Place();
  ASSERT_EQ(assignments.size(), 2u);
  EXPECT_EQ(assignments[0].id, sink.id()) << "it goes before those that have not begun";
  EXPECT_EQ(assignments[0].first_index, 2u);
  EXPECT_THAT(*assignments[0].history, ElementsAre(1, 2));
  Tokens(sink, {3, 4, 5});
  requests_->OnFinished(sink.id(), FinishReason::kLength, now_);
  EXPECT_THAT(sink.tokens, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(sink.finish->completion_tokens, 5u);
  EXPECT_EQ(requests_->totals().replayed, 1);
}

TEST_F(RequestLifecycleTest, WhatThreeWorkersDieOfIsEndedAndRunsAloneBefore) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a"));
  Place();
  Die();
  EXPECT_EQ(WaitingSpec(sink.id()).steps_alone, 0) << "one death may be anybody's";
  Place();
  Die();
  EXPECT_GT(WaitingSpec(sink.id()).steps_alone, 0);
  Place();
  EXPECT_TRUE(sink.open());
  Die();
  EXPECT_EQ(*sink.status, absl::InternalError("3 workers died with this request on them, one after another"));
  EXPECT_EQ(requests_->totals().suspects_ended, 1);
  EXPECT_EQ(requests_->totals().replays_refused, 1);
  EXPECT_EQ(requests_->totals().failed, 1);
  EXPECT_EQ(cluster_->waiting(), 0);
}

TEST_F(RequestLifecycleTest, OnlyDeathsWhileItWasPlacedCount) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a"));
  for (int i = 0; i < 10; ++i) {
    // It waits as the worker dies, and is lost for another reason: its plan had not arrived.
    requests_->OnWorkerDied(0, 0);
    Place();
    requests_->OnWorkerDied(0, 1);
    OpenEpoch();
  }
  EXPECT_TRUE(sink.open());
  EXPECT_EQ(WaitingSpec(sink.id()).steps_alone, 0);
  EXPECT_EQ(requests_->totals().replayed, 10);
}

TEST_F(RequestLifecycleTest, TokensClearASuspectAloneOrNot) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 480));
  const std::vector<uint32_t> enough(Suspicion::kTokensThatClear, 7);
  for (int i = 0; i < 6; ++i) {
    Place();
    Die();
    Place();
    Tokens(sink, enough);
    Die();
    EXPECT_EQ(WaitingSpec(sink.id()).steps_alone, 0) << "a worker that flaps makes no suspects";
  }
  Place();
  Die();
  ASSERT_GT(WaitingSpec(sink.id()).steps_alone, 0);
  Place();
  Tokens(sink, enough);
  requests_->OnPreempted(sink.id(), now_);
  EXPECT_TRUE(sink.open());
}

TEST_F(RequestLifecycleTest, WhatKillsLateEachTimeIsEndedInTheEnd) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 480));
  int deaths = 0;
  for (; sink.open() && deaths < 100; ++deaths) {
    Place();
    Tokens(sink, {7});
    Tokens(sink, std::vector<uint32_t>(deaths < 10 ? Suspicion::kTokensThatClear : 1, 7));
    Die();
  }
  EXPECT_LE(deaths, Suspicion::kMost);
  EXPECT_TRUE(absl::IsInternal(*sink.status));
}

TEST(Suspicion, EndsAfterSoManyDeathsInAll) {
  Suspicion suspicion;
  for (int i = 1; i < Suspicion::kMost; ++i) {
    suspicion.OnTokens(Suspicion::kTokensThatClear);
    suspicion.OnDeath();
    EXPECT_FALSE(suspicion.runs_alone() || suspicion.guilty());
  }
  suspicion.OnTokens(Suspicion::kTokensThatClear);
  suspicion.OnDeath();
  EXPECT_TRUE(suspicion.guilty());
}

TEST_F(RequestLifecycleTest, ALostFinishIsReconstructed) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a", 2));
  Place();
  Tokens(sink, {1, 2});
  OpenEpoch();
  ASSERT_TRUE(sink.finish.has_value());
  EXPECT_EQ(sink.finish->reason, FinishReason::kLength);
}

TEST_F(RequestLifecycleTest, AResumableRequestOutlivesItsStream) {
  OpenEpoch();
  RecordingSink& first = Arrive(AskResumable("a", 4));
  Place();
  Tokens(first, {1, 2});
  requests_->OnCancel(first.id(), false, now_);
  EXPECT_EQ(requests_->live(), 1);
  requests_->OnTokens(first.id(), std::vector<uint32_t>{3}, now_);
  RecordingSink& other = Arrive([] {
    ClientRequest request = ComeBack("a", 0);
    request.resume_token = "guess";
    return request;
  }());
  EXPECT_TRUE(absl::IsNotFound(*other.status)) << "as if there were no such request";
  RecordingSink& second = Arrive(ComeBack("a", 1));
  EXPECT_EQ(second.first_index, 1u);
  EXPECT_THAT(second.tokens, ElementsAre(2, 3));
  requests_->OnTokens(first.id(), std::vector<uint32_t>{4}, now_);
  requests_->OnFinished(first.id(), FinishReason::kLength, now_);
  EXPECT_THAT(second.tokens, ElementsAre(2, 3, 4));
  EXPECT_TRUE(second.finish.has_value());
  // The end may have been missed, too.
  RecordingSink& third = Arrive(ComeBack("a", 3));
  EXPECT_THAT(third.tokens, ElementsAre(4));
  EXPECT_TRUE(third.finish.has_value());
}

TEST_F(RequestLifecycleTest, ARequestWithoutAClientEndsInTime) {
  OpenEpoch();
  RecordingSink& sink = Arrive(AskResumable("a"));
  Place();
  requests_->OnCancel(sink.id(), false, now_);
  now_ += absl::Seconds(29);
  requests_->OnTimer(now_);
  EXPECT_EQ(requests_->live(), 1);
  now_ = requests_->next_deadline();
  requests_->OnTimer(now_);
  EXPECT_EQ(requests_->live(), 0);
  EXPECT_EQ(requests_->totals().resume_expired, 1);
  EXPECT_TRUE(sink.broken_off) << "an ended stream does not wait for its client for ever";
}

TEST_F(RequestLifecycleTest, ASlowReaderIsCutOff) {
  OpenEpoch();
  RecordingSink& plain = Arrive(Ask("a"));
  RecordingSink& resumable = Arrive(AskResumable("b"));
  Place();
  plain.stuck = resumable.stuck = true;
  Tokens(plain, {1});
  Tokens(resumable, {1});
  EXPECT_TRUE(absl::IsResourceExhausted(*plain.status));
  EXPECT_TRUE(absl::IsResourceExhausted(*resumable.status));
  EXPECT_EQ(requests_->totals().slow_readers, 2);
  EXPECT_EQ(requests_->live(), 1) << "the resumable one waits for its client";
}

TEST_F(RequestLifecycleTest, WhatIsTooLargeToKeepIsNotReplayed) {
  RequestOptions options;
  options.resume.request_bytes = 20;  // a prompt of three and two tokens
  Start(options);
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a"));
  Place();
  Tokens(sink, {1, 2});
  EXPECT_EQ(requests_->kept_bytes(), 20);
  Tokens(sink, {3});
  EXPECT_EQ(requests_->kept_bytes(), 0);
  OpenEpoch();
  EXPECT_TRUE(absl::IsUnavailable(*sink.status));
  EXPECT_THAT(sink.status->message(), HasSubstr("too large"));
}

TEST_F(RequestLifecycleTest, EndedRequestsMakeWayForLiveOnes) {
  RequestOptions options;
  options.resume.budget_bytes = 30;
  Start(options);
  OpenEpoch();
  RecordingSink& ended = Arrive(AskResumable("ended", 1));
  Place();
  Tokens(ended, {1});
  requests_->OnFinished(ended.id(), FinishReason::kLength, now_);
  EXPECT_EQ(requests_->kept_bytes(), 16);
  RecordingSink& live = Arrive(AskResumable("live", 4));
  Place();
  Tokens(live, {1});
  EXPECT_EQ(requests_->kept_bytes(), 16);
  EXPECT_TRUE(absl::IsNotFound(*Arrive(ComeBack("ended", 0)).status));
  EXPECT_TRUE(Arrive(ComeBack("live", 0)).open());
}

TEST_F(RequestLifecycleTest, RefusalsForWantOfKvArePutUpWithForAWhile) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a"));
  const absl::Status full = absl::ResourceExhaustedError("no KV");
  for (int i = 0; i < 15; ++i) requests_->OnRejected(sink.id(), full, now_);
  EXPECT_TRUE(sink.open());
  requests_->OnRejected(sink.id(), full, now_);
  EXPECT_TRUE(absl::IsUnavailable(*sink.status));
  EXPECT_EQ(GetRetryDelay(*sink.status), absl::Seconds(1));
  RecordingSink& broken = Arrive(Ask("b"));
  requests_->OnRejected(broken.id(), absl::InternalError("the logits are not finite"), now_);
  EXPECT_TRUE(absl::IsInternal(*broken.status));
}

TEST_F(RequestLifecycleTest, APreemptedRequestGoesBackWithWhatItHas) {
  OpenEpoch();
  RecordingSink& sink = Arrive(Ask("a"));
  Place();
  Tokens(sink, {7});
  core::StepReport report;
  report.step = ++step_;
  const std::vector<core::RequestId> preempted = {sink.id()};
  report.preempted = preempted;
  ASSERT_TRUE(cluster_->Apply(core::Report{0, 0, report}).status.ok());
  requests_->OnPreempted(sink.id(), now_);
  EXPECT_EQ(cluster_->waiting(), 1);
  const std::vector<Assignment> again = Place();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first_index, 1u);
}

TEST_F(RequestLifecycleTest, BytesAndKvOfWaitingRequestsAreBounded) {
  OverloadOptions overload;
  overload.max_waiting_bytes = 30;
  overload.max_waiting_kv = 1;
  Start({}, overload);
  OpenEpoch();
  EXPECT_TRUE(Arrive(Ask("a")).open());
  EXPECT_TRUE(Arrive(Ask("b")).open());
  RecordingSink& third = Arrive(Ask("c"));
  EXPECT_TRUE(absl::IsResourceExhausted(*third.status));
  EXPECT_TRUE(GetRetryDelay(*third.status).has_value());
  Place();
  Tokens(*sinks_.begin()->second, {1});
  EXPECT_TRUE(Arrive(Ask("d")).open()) << "a request that has begun waits no more";
  EXPECT_EQ(requests_->totals().refused_memory, 1);
  // 2,000 tokens of KV: the group's 1,000, and as many that wait.
  for (int i = 0; i < 20; ++i) {
    ClientRequest large = Ask(absl::StrCat("large", i), 400);
    large.prompt.clear();
    Arrive(large);
  }
  EXPECT_EQ(overload_->committed_kv(), 3 * 13 + 4 * 403);
}

TEST_F(RequestLifecycleTest, AFullPoolRefuses) {
  OverloadOptions overload;
  overload.max_waiting = 2;
  Start({}, overload);
  Arrive(Ask("a"));
  Arrive(Ask("b"));
  EXPECT_TRUE(absl::IsResourceExhausted(*Arrive(Ask("c")).status));
  EXPECT_EQ(requests_->totals().refused_pool_full, 1);
  EXPECT_TRUE(overload_->CheckPool().ok());
  overload_->SetWaiting(cluster_->waiting());
  EXPECT_TRUE(absl::IsResourceExhausted(overload_->CheckPool()));
  EXPECT_EQ(overload_->refused_early(), 1);
}

TEST_F(RequestLifecycleTest, ATenantsTicketIsGivenBackAtTheEnd) {
  Start({}, {}, "t:concurrent=1");
  ClientRequest request = Ask("a");
  request.tenant = "t";
  RecordingSink& sink = Arrive(request);
  EXPECT_TRUE(absl::IsResourceExhausted(tenants_->Enter(request, now_).status()));
  EXPECT_EQ(tenants_->refused(), 1);
  requests_->OnCancel(sink.id(), false, now_);
  EXPECT_TRUE(tenants_->Enter(request, now_).ok());
}

TEST_F(RequestLifecycleTest, AParentsDeadlineEndsItsCalls) {
  OpenEpoch();
  ClientRequest call = Ask("a");
  call.parent_id = "p";
  call.parent_timeout = absl::Seconds(5);
  RecordingSink& first = Arrive(call);
  call.request_id = "b";
  call.parent_timeout.reset();
  RecordingSink& second = Arrive(call);
  now_ += absl::Seconds(5);
  EXPECT_LE(requests_->next_deadline(), now_);
  requests_->OnTimer(now_);
  EXPECT_TRUE(absl::IsDeadlineExceeded(*first.status));
  EXPECT_TRUE(absl::IsDeadlineExceeded(*second.status));
  EXPECT_EQ(requests_->totals().agent_calls, 2);
}

TEST_F(RequestLifecycleTest, ACallThatCannotMeetItsParentsDeadlineIsRefused) {
  OpenEpoch();
  GroupsView view;
  view.max_sequence_tokens = 500;
  view.shortest_step = absl::Seconds(1);
  requests_->SetGroups(view);
  ClientRequest call = Ask("a");
  call.ignore_eos = true;
  call.parent_id = "p";
  call.parent_timeout = absl::Seconds(9);
  EXPECT_TRUE(absl::IsDeadlineExceeded(*Arrive(call).status)) << "ten tokens take ten seconds";
  call.request_id = "b";
  call.parent_timeout = absl::Seconds(11);
  EXPECT_TRUE(Arrive(call).open());
}

TEST_F(RequestLifecycleTest, EarlyResumesWaitForTheWorkersThatMayHoldThem) {
  RecordingSink& early = Arrive(ComeBack("a", 1));
  EXPECT_TRUE(early.open());
  HeldRequest held;
  held.id = 1000;
  held.request = AskResumable("a", 4);
  held.tokens = {5, 6};
  const std::vector<HeldActive> active = {{1000, 5, 2}};
  requests_->SetTime(now_);
  const std::vector<core::RequestSpec> recovered = requests_->Recover("w", {held}, active);
  ASSERT_EQ(recovered.size(), 1u);
  EXPECT_EQ(recovered[0].prefill_tokens, 5);
  EXPECT_EQ(recovered[0].max_new_tokens, 2);
  OpenEpoch({{1000, 5}}, recovered);
  EXPECT_TRUE(early.open());
  EXPECT_EQ(early.first_index, 1u);
  EXPECT_THAT(early.tokens, ElementsAre(6));
  EXPECT_EQ(requests_->totals().adopted, 1);
  EXPECT_GT(ids_->Next(), 1000u) << "no id is given out twice";
}

TEST_F(RequestLifecycleTest, OneTenantsEarlyResumesBlockNoOther) {
  RequestOptions options;
  options.resume.max_early = 8;
  Start(options);
  const auto come_back = [&](const std::string& tenant, int n) -> RecordingSink& {
    ClientRequest request = ComeBack(absl::StrCat("r", n), 1);
    request.tenant = tenant;
    return Arrive(request);
  };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(come_back("flood", i).open());
  const absl::Status refused = *come_back("flood", 4).status;
  EXPECT_TRUE(absl::IsUnavailable(refused)) << "not that there is no such request: it may come yet";
  EXPECT_TRUE(GetRetryDelay(refused).has_value());
  EXPECT_TRUE(come_back("acme", 1).open());
  EXPECT_TRUE(come_back("acme", 2).open());
  EXPECT_FALSE(come_back("acme", 3).open());
  EXPECT_TRUE(come_back("zeta", 1).open());
  EXPECT_EQ(requests_->totals().resume_refused, 2);
}

TEST_F(RequestLifecycleTest, EarlyResumesAreAnsweredWhenPatienceEnds) {
  RecordingSink& bare = Arrive(ComeBack("a", 1));
  ClientRequest whole = AskResumable("b");
  whole.resume_from = 2;
  whole.received = {1, 2};
  RecordingSink& with_prompt = Arrive(whole);
  now_ = requests_->next_deadline();
  requests_->OnTimer(now_);
  EXPECT_TRUE(absl::IsNotFound(*bare.status));
  EXPECT_TRUE(with_prompt.open()) << "it starts anew";
  EXPECT_EQ(requests_->totals().restarted, 1);
  OpenEpoch();
  const std::vector<Assignment> assignments = Place();
  ASSERT_EQ(assignments.size(), 1u);
  EXPECT_EQ(assignments[0].first_index, 1u) << "the last token is made again";
}

// Of a request that no worker holds: its client has it up to `received` tokens.
ClientRequest Interrupted(const std::string& name, uint32_t received, bool proven) {
  ClientRequest request;
  request.request_id = name;
  request.tenant = "t";
  request.prompt = {11, 12, 13};
  request.prompt_tokens = 3;
  request.max_new_tokens = 10;
  request.resumable = true;
  request.resume_from = received;
  request.received.assign(received, 7);
  request.resume_proven = proven;
  return request;
}

TEST_F(RequestLifecycleTest, OnlyAProvenResumeGoesAheadOfItsTenantsLimits) {
  Start({}, {}, "t:concurrent=1");
  OpenEpoch();
  RecordingSink& waiting = Arrive(Ask("waiting"));
  RecordingSink& first = Arrive(Interrupted("a", 3, false));
  EXPECT_TRUE(first.open()) << "it counts like any other";
  RecordingSink& second = Arrive(Interrupted("b", 3, false));
  EXPECT_TRUE(absl::IsResourceExhausted(*second.status));
  EXPECT_EQ(tenants_->refused(), 1);
  RecordingSink& proven = Arrive(Interrupted("c", 3, true));
  EXPECT_TRUE(proven.open());
  EXPECT_GT(WaitingSpec(proven.id()).priority, 100);
  EXPECT_EQ(WaitingSpec(first.id()).priority, 0);
  const std::vector<Assignment> assignments = Place();
  ASSERT_EQ(assignments.size(), 3u);
  EXPECT_EQ(assignments[0].id, proven.id());
  EXPECT_EQ(assignments[1].id, waiting.id());
}

TEST_F(RequestLifecycleTest, WhatAClientOnlyClaimsToHaveIsPromptToTheScheduler) {
  OpenEpoch();
  RecordingSink& claimed = Arrive(Interrupted("a", 3, false));
  RecordingSink& proven = Arrive(Interrupted("b", 3, true));
  EXPECT_EQ(WaitingSpec(claimed.id()).generated_tokens, 0) << "its tenant pays for all of the prompt";
  EXPECT_EQ(WaitingSpec(proven.id()).generated_tokens, 2);
  EXPECT_EQ(WaitingSpec(claimed.id()).prefill_tokens, 5);
  Place();
  Tokens(claimed, {1, 2});
  Die();
  EXPECT_EQ(WaitingSpec(claimed.id()).generated_tokens, 2);
  EXPECT_EQ(WaitingSpec(claimed.id()).prefill_tokens, 7);
}

TEST_F(RequestLifecycleTest, AProofIsGoodOnceAndSoonAfterTheStart) {
  Start({}, {}, "t:concurrent=1");
  OpenEpoch();
  RecordingSink& taken = Arrive([] {
    ClientRequest request = Ask("taken");
    request.tenant = "t";
    return request;
  }());
  RecordingSink& first = Arrive(Interrupted("a", 2, true));
  ASSERT_TRUE(first.open());
  ASSERT_TRUE(requests_->Abort("t", "a", "", now_));
  EXPECT_TRUE(absl::IsResourceExhausted(*Arrive(Interrupted("a", 2, true)).status)) << "shown again";
  now_ += absl::Seconds(30);
  EXPECT_TRUE(Arrive(Interrupted("b", 2, true)).open());
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(absl::IsResourceExhausted(*Arrive(Interrupted("c", 2, true)).status)) << "too late";
  EXPECT_TRUE(taken.open());
}

TEST_F(RequestLifecycleTest, HeldRequestsWhoseTokensDisagreeAreNotRecovered) {
  HeldRequest held;
  held.id = 1000;
  held.request = AskResumable("a", 4);
  held.tokens = {5, 6};
  EXPECT_THAT(requests_->Recover("w", {held}, std::vector<HeldActive>{{1000, 5, 3}}), IsEmpty());
  EXPECT_EQ(requests_->totals().tokens_lost, 1);
  EXPECT_THAT(requests_->Recover("w", {held}, {}), IsEmpty()) << "the worker does not run it";
  EXPECT_EQ(requests_->live(), 0);
}

TEST_F(RequestLifecycleTest, AnEndedHeldRequestWaitsForItsClient) {
  HeldRequest held;
  held.id = 1000;
  held.request = AskResumable("a", 2);
  held.tokens = {5, 6};
  held.ended = FinishReason::kLength;
  EXPECT_THAT(requests_->Recover("w", {held}, {}), IsEmpty());
  RecordingSink& sink = Arrive(ComeBack("a", 0));
  EXPECT_THAT(sink.tokens, ElementsAre(5, 6));
  EXPECT_TRUE(sink.finish.has_value());
}

TEST_F(RequestLifecycleTest, ADrainRefusesNewRequestsAndEndsTheRest) {
  RecordingSink& early = Arrive(ComeBack("early", 0));
  OpenEpoch();
  RecordingSink& live = Arrive(Ask("a"));
  requests_->BeginDrain(now_);
  EXPECT_FALSE(early.open());
  EXPECT_TRUE(absl::IsUnavailable(*Arrive(Ask("b")).status));
  EXPECT_TRUE(live.open());
  requests_->EndAll(now_);
  EXPECT_TRUE(absl::IsUnavailable(*live.status));
  EXPECT_EQ(requests_->live(), 0);
}

TEST_F(RequestLifecycleTest, ARequestThatFitsNoWorkerAnyMoreEnds) {
  RecordingSink& sink = Arrive(Ask("a", 900));  // before any worker is known
  OpenEpoch();
  EXPECT_TRUE(absl::IsUnavailable(*sink.status));
  EXPECT_THAT(sink.status->message(), HasSubstr("at most 500"));
}

// --- models ---

class RequestModelsTest : public RequestLifecycleTest {
 protected:
  // An epoch of that model in which no worker holds anything.
  void Serve(uint32_t model) {
    core::EpochMember member;
    member.spec.slots = 4;
    member.spec.kv_tokens = 1000;
    model_ = model;
    const core::Outcome outcome = cluster_->Apply(core::OpenEpoch{0, {member}, model});
    step_ = 0;
    for (auto id = outcome.displaced.rbegin(); id != outcome.displaced.rend(); ++id)
      requests_->OnLost(*id, now_);
  }
  void Know(const std::vector<uint32_t>& models) {
    GroupsView view;
    view.kv_tokens = 1000;
    view.max_sequence_tokens = 500;
    for (const uint32_t model : models) view.models[model] = absl::StrCat("digest ", model);
    requests_->SetGroups(view);
  }
  // Those that the next plan places.
  std::vector<core::RequestId> PlaceThere() {
    std::vector<core::RequestId> ids;
    const core::Outcome outcome = cluster_->Apply(core::MakePlan{0, false});
    for (const core::Placement& placement :
         outcome.plan ? outcome.plan->placements : std::vector<core::Placement>()) {
      ids.push_back(placement.id);
      EXPECT_TRUE(requests_->OnPlaced(placement.id, 0, placement.wait_steps, now_, model_).has_value());
    }
    return ids;
  }

  uint32_t model_ = 0;
};

TEST_F(RequestModelsTest, WhatHasBegunWaitsForItsModelAndWhatHasNotGoesAnywhere) {
  Know({1, 2});
  Serve(1);
  RecordingSink& begun = Arrive(Ask("begun"));
  RecordingSink& placed = Arrive(Ask("placed"));
  EXPECT_EQ(PlaceThere().size(), 2u);
  Tokens(begun, {5, 6});
  Serve(2);
  EXPECT_THAT(PlaceThere(), ElementsAre(placed.id()));
  EXPECT_TRUE(begun.open());
  EXPECT_EQ(cluster_->waiting(), 1);
  Serve(1);
  EXPECT_THAT(PlaceThere(), testing::Contains(begun.id()));
  Tokens(begun, {7});
  EXPECT_THAT(begun.tokens, ElementsAre(5, 6, 7));
}

TEST_F(RequestModelsTest, ARequestWhoseModelIsGoneEndsWithAStatus) {
  Know({1, 2});
  Serve(1);
  RecordingSink& begun = Arrive(Ask("begun"));
  RecordingSink& fresh = Arrive(Ask("fresh"));
  EXPECT_EQ(PlaceThere().size(), 2u);
  Tokens(begun, {5, 6});
  Serve(2);
  Know({2});
  EXPECT_TRUE(absl::IsFailedPrecondition(*begun.status)) << *begun.status;
  EXPECT_THAT(begun.status->message(), HasSubstr("2 of its tokens are delivered"));
  EXPECT_TRUE(fresh.open());
  EXPECT_EQ(cluster_->waiting(), 1);
  EXPECT_EQ(requests_->totals().replays_refused, 1);
}

TEST_F(RequestModelsTest, ARequestThatLosesItsWorkerAfterItsModelEndsAtOnce) {
  Know({1});
  Serve(1);
  RecordingSink& begun = Arrive(Ask("begun"));
  EXPECT_EQ(PlaceThere().size(), 1u);
  Tokens(begun, {5});
  Know({2});
  EXPECT_TRUE(begun.open()) << "its worker may go on with it";
  Serve(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(*begun.status));
  EXPECT_EQ(requests_->totals().replayed, 0);
}

TEST_F(RequestModelsTest, AStreamGetsTheModelBeforeItsTokens) {
  Know({1, 2});
  Serve(1);
  RecordingSink& first = Arrive(AskResumable("a"));
  RecordingSink& once = Arrive(Ask("b"));
  EXPECT_EQ(PlaceThere().size(), 2u);
  EXPECT_EQ(first.model, "") << "another may yet make them";
  Tokens(first, {5});
  Tokens(once, {5});
  EXPECT_EQ(first.model, "digest 1");
  EXPECT_EQ(once.model, "") << "its client cannot come back";
  RecordingSink& second = Arrive(ComeBack("a", 0));
  EXPECT_EQ(second.model, "digest 1");
  EXPECT_THAT(second.tokens, ElementsAre(5));
}

TEST_F(RequestModelsTest, WhatIsStartedAgainByATicketGoesOnWithTheTicketsModelAlone) {
  Know({1, 2});
  now_ += absl::Hours(1);  // every worker that could have brought it has come
  requests_->OnTimer(now_);
  ClientRequest claimed = Interrupted("a", 3, true);
  claimed.model = "digest 2";
  RecordingSink& bound = Arrive(claimed);
  // Its client has tokens, too, which it does not show.
  claimed = Interrupted("b", 0, true);
  claimed.resume_from = 2;
  claimed.model = "digest 2";
  RecordingSink& anew = Arrive(claimed);
  // Nothing has been made: any model may begin.
  claimed = Interrupted("c", 0, true);
  claimed.model = "digest 9";
  RecordingSink& free = Arrive(claimed);
  EXPECT_EQ(WaitingSpec(bound.id()).model, 2u);
  EXPECT_EQ(WaitingSpec(anew.id()).model, 2u);
  EXPECT_EQ(WaitingSpec(free.id()).model, 0u);
  Serve(1);
  EXPECT_THAT(PlaceThere(), ElementsAre(free.id()));
  Serve(2);
  EXPECT_THAT(PlaceThere(), testing::IsSupersetOf({bound.id(), anew.id()}));
  EXPECT_EQ(bound.model, "digest 2") << "its next ticket says the same";
  Know({1});
  Serve(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(*bound.status));
  EXPECT_TRUE(absl::IsFailedPrecondition(*anew.status));
}

TEST_F(RequestModelsTest, WhatCannotGoOnWithItsModelIsRefusedAtOnce) {
  Know({1});
  now_ += absl::Hours(1);
  requests_->OnTimer(now_);
  ClientRequest claimed = Interrupted("a", 3, true);
  claimed.model = "digest 2";
  const RecordingSink& gone = Arrive(claimed);
  EXPECT_TRUE(absl::IsFailedPrecondition(*gone.status));
  EXPECT_THAT(gone.status->message(), HasSubstr("3 of its tokens are delivered"));
  EXPECT_EQ(requests_->totals().resume_refused, 1);
}

TEST_F(RequestModelsTest, WhatAWorkerBringsIsOfItsModel) {
  Know({3, 4});
  HeldRequest held;
  held.id = 1000;
  held.request = AskResumable("a", 9);
  held.tokens = {5, 6};
  held.model = 3;
  requests_->SetTime(now_);
  const auto recovered = requests_->Recover("w", {held}, std::vector<HeldActive>{{1000, 5, 2}});
  ASSERT_EQ(recovered.size(), 1u);
  EXPECT_EQ(recovered[0].model, 3u);
}

}  // namespace
}  // namespace bfio::router
