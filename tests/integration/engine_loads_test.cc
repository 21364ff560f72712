// Loads that engines report to a router: other clients' requests, reported on request or in records.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

TEST_F(EnginesTest, SlotsThatOtherClientsUseAreNotTheRouters) {
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

TEST_F(EnginesTest, RecordsTellTheLoadsWhereNoAnswerDoes) {
  using Records = ScriptedEngine::Records;
  const HeldPort port;
  ScriptedEngine::Options options = At(port, 2);
  options.kv_tokens = 10'000;
  ScriptedEngine engine(options);
  engine.SetRecords(Records::kTrue);
  Serve({port.address()}, 2);
  {
    // Gives both ranks their first plan, without which a rank reports nothing.
    RequestStream one(stub(), Request({5, 6}, 100));
    EXPECT_TRUE(one.Read());
    RequestStream two(stub(), Request({5, 6}, 100));
    EXPECT_TRUE(one.End().status.ok() && two.End().status.ok());
  }
  engine.SilenceLoads();
  // Other clients have this many requests with this many tokens each on each rank; the router gets the sums.
  const auto records_tell = [&](int requests, int tokens) {
    engine.SetOthers(requests, tokens);
    return cluster_->WaitFor("records", [=](const v1::ClusterState& state) {
      return state.workers_size() == 2 &&
             std::all_of(state.workers().begin(), state.workers().end(), [=](const v1::WorkerState& worker) {
               return worker.engine_requests() == static_cast<uint64_t>(requests) &&
                      worker.engine_tokens() == static_cast<uint64_t>(requests * tokens);
             });
    });
  };
  EXPECT_TRUE(records_tell(2, 40));
  // Records with lower numbers are outdated and report no requests; only the latest one counts.
  engine.SetRecords(Records::kOutOfOrder);
  EXPECT_TRUE(records_tell(3, 50));
  // Streams that end are reopened.
  engine.SetRecords(Records::kReset);
  const int subscriptions = engine.counts().subscriptions;
  EXPECT_TRUE(records_tell(1, 30));
  EXPECT_TRUE(Eventually([&] { return engine.counts().subscriptions >= subscriptions + 3; }));
  EXPECT_TRUE(records_tell(2, 20));
  EXPECT_TRUE(Generate(stub(), Request({5, 6}, 4)).status.ok());
}

}  // namespace
}  // namespace bfio::testing
