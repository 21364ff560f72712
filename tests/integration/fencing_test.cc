// A rank that was removed from its group can no longer act for it, neither in the barrier nor towards the
// router.
#include <gtest/gtest.h>
#include <signal.h>

#include <deque>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/cluster.h"
#include "tests/testing/scripted_worker.h"
#include "worker/barrier/star/star_endpoint.h"

namespace bfio::testing {
namespace {

constexpr absl::Duration kDetection = absl::Seconds(kSlowdown);

size_t Serving(const v1::ClusterState& state) {
  size_t serving = 0;
  for (const v1::WorkerState& worker : state.workers()) serving += worker.phase() == v1::WORKER_PHASE_SERVING;
  return serving;
}

ClusterOptions Options(int workers) {
  ClusterOptions options;
  options.worker_processes = workers;
  options.router_flags = {absl::StrCat("--step_timeout=", absl::FormatDuration(kDetection))};
  options.worker_flags = {absl::StrCat("--c=", 0.008 * kSlowdown), "--tl=0", "--slots=8"};
  return options;
}

std::vector<GenerateResult> GenerateMany(Cluster& cluster, int count, uint32_t output,
                                         const std::function<void()>& meanwhile) {
  std::vector<GenerateResult> results(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      v1::GenerateRequest request = SyntheticRequest(10 + static_cast<uint32_t>(i), output);
      request.mutable_sampling()->set_seed(100 + static_cast<uint64_t>(i));
      results[static_cast<size_t>(i)] = Generate(cluster.inference(), request);
    });
  }
  meanwhile();
  for (std::thread& thread : threads) thread.join();
  return results;
}

// The rank is stopped in the middle of a step and continued in a later epoch of the others, with requests of
// its own whose tokens others now generate.
TEST(Fencing, ReportsOfAResumedRankAreIgnored) {
  Cluster cluster(Options(3));
  ASSERT_TRUE(cluster.ok());
  const auto reference = GenerateMany(cluster, 18, 200, [] {});
  for (int round = 0; round < 2; ++round) {
    // In the second round rank 0, the hub of the barrier.
    Process& victim = cluster.workers()[round == 0 ? 1 : 0];
    const auto results = GenerateMany(cluster, 18, 200, [&] {
      ASSERT_TRUE(cluster.WaitFor("requests everywhere", [](const v1::ClusterState& s) {
        return s.workers_size() == 3 && s.workers(0).active_requests() > 0 &&
               s.workers(1).active_requests() > 0 && s.workers(2).active_requests() > 0;
      }));
      victim.Signal(SIGSTOP);
      EXPECT_TRUE(cluster.WaitFor("the others to go on", [](const v1::ClusterState& s) {
        return Serving(s) == 2 && s.requests().replayed() > 0;
      }));
      victim.Signal(SIGCONT);
    });
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(results[i].status.ok()) << results[i].status.error_message();
      EXPECT_TRUE(results[i].contiguous);
      EXPECT_EQ(results[i].tokens, reference[i].tokens);
    }
    EXPECT_TRUE(
        cluster.WaitFor("it to come back", [](const v1::ClusterState& s) { return Serving(s) == 3; }));
  }
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.requests().failed(), 0u);
  EXPECT_EQ(state.requests().tokens_lost(), 0u);
  EXPECT_EQ(state.requests().tokens_duplicated(), 0u);
  cluster.StopCleanly();
}

// A rank of a past epoch is not admitted by rank 0, and does not delay ranks that join after it.
TEST(Fencing, TheBarrierRefusesRanksOfAnOldEpoch) {
  Cluster cluster(Options(2));
  ASSERT_TRUE(cluster.ok());
  // A third worker receives the address of the barrier, and sends nothing.
  v1::Epoch epoch;
  {
    ScriptedWorker outsider(cluster.address(), "outsider");
    outsider.SayHello();
    v1::RouterMessage message;
    ASSERT_TRUE(outsider.ReadUntil(v1::RouterMessage::kEpoch, message));
    epoch = message.epoch();
    EXPECT_EQ(outsider.End().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  ASSERT_TRUE(
      cluster.WaitFor("the others to go on", [](const v1::ClusterState& s) { return Serving(s) == 2; }));
  ASSERT_GT(cluster.State().epoch(), epoch.epoch());
  auto endpoint = worker::StarEndpoint::Create({.host = "127.0.0.1"});
  ASSERT_TRUE(endpoint.ok());
  const worker::GroupSpec stale = {epoch.epoch(), static_cast<int32_t>(epoch.rank()),
                                   static_cast<int32_t>(epoch.world_size()), epoch.communicator_id()};
  std::thread knocks([&] { EXPECT_FALSE((*endpoint)->Form(stale, 4 * kDetection, {}).ok()); });
  EXPECT_EQ(Generate(cluster.inference(), SyntheticRequest(10, 50)).tokens.size(), 50u);
  // The group re-forms during the attempt.
  cluster.StartWorker();
  EXPECT_TRUE(cluster.WaitFor("the newcomer", [](const v1::ClusterState& s) { return Serving(s) == 3; }));
  EXPECT_EQ(Generate(cluster.inference(), SyntheticRequest(10, 50)).tokens.size(), 50u);
  knocks.join();
}

class TwoScripted : public ::testing::Test {
 protected:
  TwoScripted() : cluster_(RouterOnly()), a_(cluster_.address(), "a"), b_(cluster_.address(), "b") {}
  void SetUp() override {
    ASSERT_TRUE(cluster_.ok());
    a_.SayHello();
    b_.SayHello();
    ASSERT_TRUE(a_.Rejoin());
    ASSERT_TRUE(b_.Rejoin());
    ASSERT_EQ(a_.epoch().epoch(), b_.epoch().epoch());
    stream_ = std::make_unique<RequestStream>(cluster_.inference(), SyntheticRequest(10, 2));
    // The request is on one of the two.
    v1::RouterMessage plan;
    ASSERT_TRUE(a_.ReadUntil(v1::RouterMessage::kPlan, plan));
    holder_ = plan.plan().assignments_size() == 1 ? &a_ : &b_;
    ASSERT_TRUE(b_.ReadUntil(v1::RouterMessage::kPlan, holder_ == &a_ ? other_plan_ : plan));
    ASSERT_EQ(plan.plan().assignments_size(), 1);
    handle_ = plan.plan().assignments(0).handle();
  }
  // Long timeouts, so that they do not cause what these tests wait for.
  static ClusterOptions RouterOnly() {
    ClusterOptions options;
    options.worker_processes = 0;
    options.router_flags = {"--workers=2", absl::StrCat("--step_timeout=", 60 * kSlowdown, "s")};
    return options;
  }
  ScriptedWorker& other() { return holder_ == &a_ ? b_ : a_; }
  v1::WorkerMessage Tokens(ScriptedWorker& worker, uint64_t step, std::vector<uint32_t> tokens, bool end) {
    v1::WorkerMessage message = worker.Report(step, 1);
    v1::StepReport& report = *message.mutable_step_report();
    if (!tokens.empty()) {
      report.add_handles(handle_);
      report.add_token_counts(static_cast<uint32_t>(tokens.size()));
      report.mutable_token_ids()->Add(tokens.begin(), tokens.end());
    }
    if (end) {
      report.add_finished()->set_handle(handle_);
      report.mutable_finished(0)->set_reason(v1::FINISH_REASON_LENGTH);
      report.set_group_idle(true);
    }
    return message;
  }
  std::vector<uint32_t> ReadAll() {
    EXPECT_TRUE(stream_->End().status.ok());
    return stream_->result().tokens;
  }

  Cluster cluster_;
  ScriptedWorker a_, b_;
  std::unique_ptr<RequestStream> stream_;
  ScriptedWorker* holder_ = nullptr;
  v1::RouterMessage other_plan_;
  uint64_t handle_ = 0;
};

TEST_F(TwoScripted, ReportsOfAnotherWorkersRequestAreIgnored) {
  ASSERT_TRUE(other().Send(Tokens(other(), 1, {66, 67}, true)));
  ASSERT_TRUE(holder_->Send(Tokens(*holder_, 1, {1, 2}, true)));
  EXPECT_EQ(ReadAll(), (std::vector<uint32_t>{1, 2}));
}

TEST_F(TwoScripted, ReportsOfOtherEpochsCountNothing) {
  for (const int64_t distance : {-1, 1, 1000}) {
    v1::WorkerMessage message = Tokens(*holder_, 1, {66, 67}, true);
    message.mutable_step_report()->set_epoch(holder_->epoch().epoch() + static_cast<uint64_t>(distance));
    ASSERT_TRUE(holder_->Send(message));
  }
  ASSERT_TRUE(holder_->Send(Tokens(*holder_, 1, {1, 2}, true)));
  ASSERT_TRUE(other().Send(Tokens(other(), 1, {}, false)));
  EXPECT_EQ(ReadAll(), (std::vector<uint32_t>{1, 2}));
}

// A stopped rank sends nothing when the barrier fails. Asking it to form the next epoch would delay the
// others by step_timeout, so they form at once without it.
TEST_F(TwoScripted, ARankThatIsSilentWhenTheBarrierFailsIsLeftOut) {
  ASSERT_TRUE(holder_->Send(Tokens(*holder_, 1, {1}, false)));
  ASSERT_TRUE(other().Send(Tokens(other(), 1, {}, false)));
  v1::WorkerMessage failed = Tokens(other(), 2, {}, false);
  failed.mutable_step_report()->set_barrier_error("the other did not come to step 2");
  ASSERT_TRUE(other().Send(failed));
  ASSERT_TRUE(other().Rejoin());
  EXPECT_EQ(other().epoch().world_size(), 1u);
  EXPECT_EQ(holder_->End().error_message(), "no step report in time");
}

// Rank 0 reaches the router but not rank 1, which is alive: forming with both again would fail again.
TEST_F(TwoScripted, ARankThatOthersDoNotReachIsLeftOut) {
  ASSERT_TRUE(a_.Send(a_.Report(1, 1)));
  ASSERT_TRUE(b_.Send(b_.Report(1, 1)));
  for (ScriptedWorker* worker : {&a_, &b_}) {
    v1::WorkerMessage failed = worker->Report(2, 1);
    failed.mutable_step_report()->set_barrier_error("a rank did not reach step 2");
    const bool hub = worker->epoch().rank() == 0;
    if (hub) failed.mutable_step_report()->add_missing_ranks(1);
    ASSERT_TRUE(worker->Send(failed));
  }
  ScriptedWorker& hub = a_.epoch().rank() == 0 ? a_ : b_;
  ScriptedWorker& cut_off = &hub == &a_ ? b_ : a_;
  EXPECT_EQ(cut_off.End().error_message(), "other ranks do not reach this one");
  ASSERT_TRUE(hub.Rejoin());
  EXPECT_EQ(hub.epoch().world_size(), 1u);
}

// The same, detected while the group forms.
TEST_F(TwoScripted, ARankThatDoesNotComeToTheFormingIsLeftOut) {
  auto third = std::make_unique<ScriptedWorker>(cluster_.address(), "c");
  third->SayHello();
  v1::RouterMessage message;
  for (ScriptedWorker* worker : {&a_, &b_, third.get()}) {
    ASSERT_TRUE(worker->ReadUntil(v1::RouterMessage::kEpoch, message));
    ASSERT_EQ(message.epoch().world_size(), 3u);
    v1::WorkerMessage failed;
    failed.mutable_epoch_ready()->set_epoch(message.epoch().epoch());
    failed.mutable_epoch_ready()->set_error("did not form");
    if (message.epoch().rank() == 0) failed.mutable_epoch_ready()->add_missing_ranks(1);
    ASSERT_TRUE(worker->Send(failed));
  }
  // Not the newest worker, which is blamed without better information.
  ASSERT_TRUE(third->Rejoin());
  EXPECT_EQ(third->epoch().world_size(), 2u);
}

// A rank that reaches no other is itself disconnected.
TEST_F(TwoScripted, ARankThatBlamesAllOthersIsLeftOut) {
  auto third = std::make_unique<ScriptedWorker>(cluster_.address(), "c");
  third->SayHello();
  v1::RouterMessage message;
  for (ScriptedWorker* worker : {&a_, &b_, third.get()}) {
    ASSERT_TRUE(worker->ReadUntil(v1::RouterMessage::kEpoch, message));
    v1::WorkerMessage failed;
    failed.mutable_epoch_ready()->set_epoch(message.epoch().epoch());
    failed.mutable_epoch_ready()->set_error("did not form");
    if (message.epoch().rank() == 0) {
      failed.mutable_epoch_ready()->add_missing_ranks(1);
      failed.mutable_epoch_ready()->add_missing_ranks(2);
    }
    ASSERT_TRUE(worker->Send(failed));
  }
  ASSERT_TRUE(third->Rejoin());
  EXPECT_EQ(third->epoch().world_size(), 2u);
  EXPECT_EQ(third->epoch().rank(), 1u);
}

// A request that lost its worker is placed before requests that have not started, also where others would fit
// better.
TEST(Replay, GoesBeforeRequestsThatHaveNotBegun) {
  ClusterOptions options;
  options.worker_processes = 0;
  options.router_flags = {"--workers=3", absl::StrCat("--step_timeout=", 60 * kSlowdown, "s")};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  std::deque<RequestStream> streams;
  const auto send = [&](uint32_t prompt) {
    streams.emplace_back(cluster.inference(), SyntheticRequest(prompt, 50));
    const size_t sent = streams.size();
    return cluster.WaitFor("the request",
                           [&](const v1::ClusterState& s) { return s.requests().accepted() == sent; });
  };
  // Of different sizes, so that any two of the later requests balance better than two of these.
  for (const uint32_t prompt : {300, 10, 100}) ASSERT_TRUE(send(prompt));
  std::vector<std::unique_ptr<ScriptedWorker>> workers;
  for (const char* id : {"a", "b", "c"}) {
    workers.push_back(std::make_unique<ScriptedWorker>(cluster.address(), id));
    workers.back()->hello().set_slots(1);
    workers.back()->SayHello();
  }
  std::set<uint64_t> begun;
  v1::RouterMessage plan;
  for (auto& worker : workers) ASSERT_TRUE(worker->Rejoin());
  for (auto& worker : workers) {
    ASSERT_TRUE(worker->ReadUntil(v1::RouterMessage::kPlan, plan));
    ASSERT_EQ(plan.plan().assignments_size(), 1);
    begun.insert(plan.plan().assignments(0).handle());
  }
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(send(150));
  workers.pop_back();
  // The two remaining workers have lost their requests as well.
  for (auto& worker : workers) ASSERT_TRUE(worker->Rejoin());
  for (auto& worker : workers) {
    ASSERT_TRUE(worker->ReadUntil(v1::RouterMessage::kPlan, plan));
    ASSERT_EQ(plan.plan().assignments_size(), 1);
    EXPECT_TRUE(begun.contains(plan.plan().assignments(0).handle()));
  }
}

// The ranks meet in the barrier, but the reports of one do not reach the router.
TEST(Fencing, ARankCutOffFromTheRouterAloneIsLeftOut) {
  ClusterOptions options;
  options.worker_processes = 0;
  options.router_flags = {"--workers=2", absl::StrCat("--step_timeout=", kSlowdown, "s")};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  ScriptedWorker heard(cluster.address(), "heard"), unheard(cluster.address(), "unheard");
  heard.SayHello();
  unheard.SayHello();
  ASSERT_TRUE(heard.Rejoin());
  ASSERT_TRUE(unheard.Rejoin());
  const RequestStream stream(cluster.inference(), SyntheticRequest(10, 500));
  v1::RouterMessage plan;
  ASSERT_TRUE(heard.ReadUntil(v1::RouterMessage::kPlan, plan));
  ASSERT_TRUE(heard.Send(heard.Report(1, 1)));
  EXPECT_EQ(unheard.End().error_message(), "no step report in time");
  ASSERT_TRUE(heard.Rejoin());
  EXPECT_EQ(heard.epoch().world_size(), 1u);
}

}  // namespace
}  // namespace bfio::testing
