// Loads that engines report to a router: other clients' requests, reported on request or in records, correct
// or not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

class EngineLoads : public EnginesTest {
 protected:
  // Waits until every rank has reported that its engine has this many requests and tokens.
  bool WaitForRequests(const std::string& what, int ranks, uint64_t requests, uint64_t tokens) {
    return cluster_->WaitFor(what, [=](const v1::ClusterState& state) {
      return state.workers_size() == ranks &&
             std::all_of(state.workers().begin(), state.workers().end(), [=](const v1::WorkerState& worker) {
               return worker.has_engine_requests() && worker.engine_requests() == requests &&
                      worker.engine_tokens() == tokens;
             });
    });
  }
  // Gives both ranks their first plan, without which a rank reports nothing.
  void FirstPlans() {
    RequestStream one(stub(), Request({5, 6}, 100));
    EXPECT_TRUE(one.Read());
    RequestStream two(stub(), Request({5, 6}, 100));
    EXPECT_TRUE(one.End().status.ok() && two.End().status.ok());
  }
};

TEST_F(EngineLoads, LoadsOfRanksThatDoNotExistCountForNone) {
  const HeldPort port;
  ScriptedEngine engine(At(port, 2));
  engine.SetOthers(3, 50);
  Serve({port.address()}, 2);
  EXPECT_TRUE(Generate(stub(), Request({5, 6}, 4)).status.ok());
  const auto wait = [&](const char* what, bool told) {
    return cluster_->WaitFor(what, [told](const v1::ClusterState& state) {
      return state.workers_size() == 2 && state.workers(0).has_engine_requests() == told &&
             state.workers(1).has_engine_requests() == told;
    });
  };
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (uint32_t i = 0; i < 2; ++i) {
    streams.push_back(std::make_unique<RequestStream>(stub(), Request(Tokens(4, 3'000 + i), 3'900)));
    ASSERT_TRUE(streams.back()->Read());
  }
  EXPECT_TRUE(wait("loads", true));
  engine.SetLoads(ScriptedEngine::Loads::kWrongRank);
  EXPECT_TRUE(wait("loads that are told no more", false));
}

TEST_F(EngineLoads, SlotsThatOtherClientsUseAreNotTheRouters) {
  const HeldPort port;
  ScriptedEngine::Options options = At(port);
  options.step = absl::Milliseconds(10);
  ScriptedEngine engine(options);
  Serve({port.address()}, 1);
  // A rank reports loads only after its first plan.
  EXPECT_TRUE(Generate(stub(), Request({5, 6}, 4)).status.ok());
  engine.SetOthers(3, 50);
  // The engine has reported this twice. Two more requests may wait for a slot, if one has ended recently.
  ASSERT_TRUE(cluster_->WaitFor("slots that others use", [](const v1::ClusterState& state) {
    return state.workers_size() == 1 && state.workers(0).extra_slots() < 0 &&
           state.workers(0).engine_requests() == 3 && state.workers(0).engine_tokens() == 150;
  }));
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (uint32_t i = 0; i < 12; ++i)
    streams.push_back(std::make_unique<RequestStream>(stub(), Request(Tokens(4, 3'100 + i), 30)));
  for (const auto& stream : streams) EXPECT_EQ(stream->End().tokens.size(), 30u);
  // Without the correction three requests would wait, plus those that may wait for the next slot.
  EXPECT_LE(engine.counts().longest_queue, 3);
  engine.SetOthers(0, 0);
  EXPECT_TRUE(cluster_->WaitFor("slots that are free again", [](const v1::ClusterState& state) {
    return state.workers_size() == 1 && state.workers(0).extra_slots() >= 0;
  }));
}

// vLLM reports for each rank the KV memory of all the server's ranks, and the rank's use as a share of this.
TEST_F(EngineLoads, ARanksMemoryIsItsShareOfTheServers) {
  const HeldPort port;
  ScriptedEngine::Options options = At(port, 4);
  options.kv_tokens = 1'000;
  ScriptedEngine engine(options);
  Serve({port.address()}, 4);
  engine.SetOthers(2, 50);
  EXPECT_TRUE(Generate(stub(), Request({5, 6}, 4)).status.ok());
  // A rank reports its use only after its first plan.
  EXPECT_TRUE(cluster_->WaitFor("use", [](const v1::ClusterState& state) {
    return std::any_of(state.workers().begin(), state.workers().end(),
                       [](const v1::WorkerState& worker) { return worker.engine_tokens() == 100; });
  }));
  const v1::ClusterState state = cluster_->State();
  EXPECT_EQ(state.workers_size(), 4);
  for (const v1::WorkerState& worker : state.workers()) EXPECT_EQ(worker.kv_tokens(), 1'000u);
}

TEST_F(EngineLoads, LoadsThatAreWrongOrNeverComeBlockNothing) {
  const HeldPort port;
  ScriptedEngine engine(At(port, 2));
  Serve({port.address()}, 2);
  for (const auto loads :
       {ScriptedEngine::Loads::kTrue, ScriptedEngine::Loads::kWrong, ScriptedEngine::Loads::kSlow}) {
    engine.SetLoads(loads);
    if (loads == ScriptedEngine::Loads::kWrong) {
      EXPECT_TRUE(cluster_->WaitFor("loads that are wrong", [](const v1::ClusterState& state) {
        return state.workers_size() == 2 && state.workers(0).engine_requests() > 900'000 &&
               state.workers(1).engine_requests() > 900'000;
      }));
    }
    std::vector<std::unique_ptr<RequestStream>> streams;
    std::vector<Tokens> prompts;
    for (uint32_t i = 0; i < 12; ++i) {
      prompts.push_back(Tokens(4, 3'200 + i));
      streams.push_back(std::make_unique<RequestStream>(stub(), Request(prompts.back(), 30)));
    }
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_EQ(streams[i]->End().tokens, TokensAfter(prompts[i], 30));
  }
}

// --- records ---

using Records = ScriptedEngine::Records;

TEST_F(EngineLoads, RecordsTellTheLoadsWhereNoAnswerDoes) {
  const HeldPort port;
  ScriptedEngine::Options options = At(port, 2);
  options.kv_tokens = 10'000;
  ScriptedEngine engine(options);
  engine.SetRecords(Records::kTrue);
  Serve({port.address()}, 2);
  FirstPlans();
  engine.SetLoads(ScriptedEngine::Loads::kSlow);
  engine.SetOthers(2, 40);
  EXPECT_TRUE(WaitForRequests("records", 2, 2, 80));
  // Records with lower numbers are outdated and report no requests; only the latest one counts.
  engine.SetRecords(Records::kOutOfOrder);
  engine.SetOthers(3, 50);
  EXPECT_TRUE(WaitForRequests("records that old ones follow", 2, 3, 150));
  // Streams that end are reopened.
  engine.SetRecords(Records::kReset);
  const int subscriptions = engine.counts().subscriptions;
  engine.SetOthers(1, 30);
  EXPECT_TRUE(WaitForRequests("records of streams that end", 2, 1, 30));
  const absl::Time deadline = MonotonicNow() + kSlowdown * absl::Seconds(30);
  while (engine.counts().subscriptions < subscriptions + 3 && MonotonicNow() < deadline)
    absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GE(engine.counts().subscriptions, subscriptions + 3);
  engine.SetOthers(2, 20);
  EXPECT_TRUE(WaitForRequests("records of later streams", 2, 2, 40));
  EXPECT_TRUE(Generate(stub(), Request({5, 6}, 4)).status.ok());
}

TEST_F(EngineLoads, ARouterAsksForLoadsWhenRecordsHaveNone) {
  const HeldPort port;
  ScriptedEngine::Options options = At(port, 2);
  options.kv_tokens = 10'000;
  options.slots = 8;
  ScriptedEngine engine(options);
  engine.SetRecords(Records::kTrue);
  Serve({port.address()}, 2);
  FirstPlans();
  int others = 0;
  // The last kind reports that records are not supported, so the router does not subscribe again.
  for (const Records records : {Records::kSilent, Records::kWrongRank, Records::kNone}) {
    engine.SetRecords(records);
    const int subscriptions = engine.counts().subscriptions;
    const absl::Time deadline = MonotonicNow() + kSlowdown * absl::Seconds(30);
    while (engine.counts().subscriptions == subscriptions && MonotonicNow() < deadline)
      absl::SleepFor(absl::Milliseconds(10));
    EXPECT_GT(engine.counts().subscriptions, subscriptions);
    engine.SetOthers(++others, 50);
    EXPECT_TRUE(WaitForRequests(absl::StrCat("answers, ", others), 2, others, 50 * others));
  }
  const int subscriptions = engine.counts().subscriptions;
  engine.SetOthers(++others, 50);
  EXPECT_TRUE(WaitForRequests("another answer", 2, others, 50 * others));
  EXPECT_EQ(engine.counts().subscriptions, subscriptions);
}

TEST_F(EngineLoads, AnEnginesRecordsTellOtherClientsRequests) {
  const HeldPort port;
  Process engine("bfio_test_engine", {absl::StrCat("--listen=", port.address()), "--ranks_per_process=2",
                                      "--slots=8", "--c=0.005", "--tl=0", "--kv_tokens=20000"});
  ASSERT_TRUE(engine.WaitForOutput("API at", kSlowdown * absl::Seconds(30))) << engine.Stderr();
  Serve({port.address()}, 2);
  FirstPlans();
  const auto direct =
      pb::VllmEngine::NewStub(grpc::CreateChannel(port.address(), grpc::InsecureChannelCredentials()));
  pb::GenerateRequest request = FromGateway(Tokens(100, 7), 15'000);
  request.set_data_parallel_rank(1);
  Call first(*direct, request), second(*direct, request);
  ASSERT_TRUE(first.Read() && second.Read());
  const auto requests_are = [&](uint64_t requests) {
    return cluster_->WaitFor(absl::StrCat(requests, " requests"), [&](const v1::ClusterState& state) {
      return std::any_of(state.workers().begin(), state.workers().end(), [&](const v1::WorkerState& one) {
        return one.worker_id() == absl::StrCat("vllm://", port.address(), "#1") &&
               one.has_engine_requests() && one.engine_requests() == requests;
      });
    });
  };
  EXPECT_TRUE(requests_are(2));
  EXPECT_THAT(cluster_->router().Stderr(), HasSubstr("it sends its loads as records"));
  first.Cancel();
  EXPECT_TRUE(requests_are(1));
  second.Cancel();
  EXPECT_TRUE(requests_are(0));
}

}  // namespace
}  // namespace bfio::testing
