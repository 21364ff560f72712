// What engines report to a router: other clients' loads, on request or in records, and cached prompts.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/testing/engine_fixture.h"
#include "tests/testing/kv_publisher.h"

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

// --- engine prefixes ---

// Requests whose prompts begin alike, in front of an engine with a prefix cache.

constexpr uint32_t kShared = 640, kOwn = 64;

// A prompt that shares its beginning with the other prompts of its family.
Tokens PromptOf(uint32_t family, uint32_t number) {
  Tokens prompt(kShared + kOwn);
  for (size_t i = 0; i < kShared; ++i) prompt[i] = 2'000 + 1'000 * family + static_cast<uint32_t>(i);
  for (size_t i = kShared; i < prompt.size(); ++i)
    prompt[i] = 20'000 + 100 * number + static_cast<uint32_t>(i);
  return prompt;
}

// By gRPC the router knows a prompt's tokens, and whoever has sent it before.
TEST_F(EnginesTest, APromptGoesWhereKvEventsSayThatItsPrefixIs) {
  const HeldPort ports[2];
  const std::unique_ptr<ScriptedEngine> engines[] = {std::make_unique<ScriptedEngine>(At(ports[0])),
                                                     std::make_unique<ScriptedEngine>(At(ports[1]))};
  KvPublisher publishers[2];
  std::string config = "engines:\n";
  for (const bool second : {false, true}) {
    absl::StrAppend(&config, "- {url: \"vllm://", ports[second].address(),
                    "\", prefixes: exact, kv_events: ", publishers[second].port(),
                    ", kv_replay: ", publishers[second].replay_port(), "}\n");
  }
  ServeEngines(2, {"--config=" + WriteFile("engines.yaml", config)});
  using Json = KvPublisher::Json;
  const std::string of_second = "0010111001010010";
  uint64_t numbers[] = {0, 0};
  uint32_t next = 0;
  // New prompts each time: a placement teaches the router, too, and it may not have heard of the first ones.
  const auto all_right = [&] {
    const uint32_t first = next;
    for (const char second : of_second) {
      const bool at = second == '1';
      Tokens shared = PromptOf(next, 0);
      shared.resize(kShared);
      const auto stored =
          Json::array({"BlockStored", Json::array({next++}), nullptr, shared, kShared, nullptr, "GPU"});
      publishers[at].Send(numbers[at]++, KvPublisher::Packed(Json::array({1.5, Json::array({stored}), 0})));
    }
    absl::SleepFor(absl::Seconds(2));
    int right = 0;
    for (size_t i = 0; i < of_second.size(); ++i) {
      ScriptedEngine& there = *engines[of_second[i] == '1'];
      const int before = there.counts().taken;
      EXPECT_TRUE(Generate(stub(), Request(PromptOf(first + static_cast<uint32_t>(i), 1), 2)).status.ok());
      right += there.counts().taken - before;
    }
    return right == std::ssize(of_second);
  };
  bool exactly = false;
  for (int i = 0; i < 8 && !exactly; ++i) exactly = all_right();
  EXPECT_TRUE(exactly);
}

// Requests run one at a time, so that every rank is free, in an order in which round robin would spread a
// family. They come from bfio.v1 and from a gateway, streamed and whole: all must name the same blocks.
TEST_F(EnginesTest, RequestsGoWhereTheirPrefixIs) {
  const HeldPort port;
  ScriptedEngine::Options options = At(port, 2);
  options.prefix_cache = true;
  options.slots = 8;
  ScriptedEngine engine(options);
  Serve({port.address()}, 2);
  const std::vector<uint32_t> families = {0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 1, 0};
  for (uint32_t i = 0; i < families.size(); ++i) {
    const Tokens prompt = PromptOf(families[i], i);
    if (i % 3 == 0) {
      EXPECT_TRUE(Generate(stub(), Request(prompt, 3)).status.ok());
    } else {
      pb::GenerateRequest request = FromGateway(prompt, 3);
      request.set_stream(i % 3 == 1);
      EXPECT_TRUE(Generate(gateway(), request).status.ok());
    }
  }
  std::vector<int32_t> ranks;
  size_t with_hits = 0;
  for (const ScriptedEngine::Exchange& exchange : engine.exchanges()) {
    ranks.push_back(exchange.request.data_parallel_rank());
    with_hits += exchange.responses.back().complete().cached_tokens() == kShared;
  }
  ASSERT_EQ(ranks.size(), families.size());
  EXPECT_NE(ranks[0], ranks[1]) << "each family has a rank";
  for (size_t i = 0; i < families.size(); ++i) EXPECT_EQ(ranks[i], ranks[families[i]]) << i;
  EXPECT_EQ(with_hits, families.size() - 2);
  EXPECT_TRUE(cluster_->WaitFor("counts of hits", [&](const v1::ClusterState& state) {
    uint64_t queries = 0, hits = 0;
    for (const v1::WorkerState& worker : state.workers()) {
      queries += worker.prefix_cache_queries();
      hits += worker.prefix_cache_hits();
    }
    return queries == families.size() * (kShared + kOwn) && hits == (families.size() - 2) * kShared;
  }));
  // As many at a time as a rank has slots: the cached tokens save more than the decodes cost.
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (uint32_t i = 0; i < 8; ++i)
    streams.push_back(std::make_unique<RequestStream>(stub(), Request(PromptOf(i % 2, 50 + i), 20)));
  for (const auto& stream : streams) EXPECT_TRUE(stream->End().status.ok());
  for (const ScriptedEngine::Exchange& exchange : engine.exchanges()) {
    const bool second = exchange.request.tokenized().input_ids(0) == PromptOf(1, 0)[0];
    EXPECT_EQ(exchange.request.data_parallel_rank(), ranks[second ? 1 : 0]);
  }
  cluster_->StopCleanly();
}

}  // namespace
}  // namespace bfio::testing
