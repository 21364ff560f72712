// Requests whose prompts begin alike, in front of an engine with a prefix cache.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

constexpr size_t kShared = 640, kOwn = 64;

// A prompt that shares its beginning with the other prompts of its family.
Tokens PromptOf(uint32_t family, uint32_t number) {
  Tokens prompt(kShared + kOwn);
  for (size_t i = 0; i < kShared; ++i) prompt[i] = 2'000 + 1'000 * family + static_cast<uint32_t>(i);
  for (size_t i = kShared; i < prompt.size(); ++i)
    prompt[i] = 20'000 + 100 * number + static_cast<uint32_t>(i);
  return prompt;
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
