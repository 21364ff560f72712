// Requests whose prompts begin alike, in front of engines with and without a prefix cache.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <thread>
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

class EnginePrefixes : public EnginesTest {
 protected:
  void Start(bool prefix_cache, int slots) {
    ScriptedEngine::Options options = At(port_, 2);
    options.prefix_cache = prefix_cache;
    options.slots = slots;
    engine_ = std::make_unique<ScriptedEngine>(options);
    Serve({port_.address()}, 2);
  }
  void RunAsGateway(const pb::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = gateway().Generate(&context, request);
    pb::GenerateResponse response;
    while (reader->Read(&response)) continue;
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  // The ranks of the requests that the engine has accepted, starting with number `first`.
  std::vector<int32_t> Ranks(size_t first = 0) {
    std::vector<int32_t> ranks;
    for (const ScriptedEngine::Exchange& exchange : engine_->exchanges())
      ranks.push_back(exchange.request.data_parallel_rank());
    ranks.erase(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(first));
    return ranks;
  }

  const HeldPort port_;
  std::unique_ptr<ScriptedEngine> engine_;
};

// While other policies place requests, the router still follows the ranks' caches.
TEST_F(EnginePrefixes, ThePolicyMayChangeWhileRequestsRun) {
  Start(/*prefix_cache=*/true, /*slots=*/4);
  std::vector<std::unique_ptr<RequestStream>> streams;
  std::vector<Tokens> prompts;
  for (const std::string name : {"least_requests", "least_work", "bf_io_auto", "fcfs", "least_work"}) {
    for (uint32_t i = 0; i < 12; ++i) {
      prompts.push_back(PromptOf(i % 2, static_cast<uint32_t>(prompts.size())));
      streams.push_back(std::make_unique<RequestStream>(stub(), Request(prompts.back(), 8)));
    }
    v1::SetPolicyRequest request;
    request.mutable_policy()->set_name(name);
    v1::SetPolicyResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(cluster_->admin().SetPolicy(&context, request, &response).ok()) << name;
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    const GenerateResult& result = streams[i]->End();
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens, TokensAfter(prompts[i], 8));
  }
  // Requests that run alone go where their prefix is, which other policies may have put on both ranks.
  for (uint32_t i = 0; i < 4; ++i)
    EXPECT_TRUE(Generate(stub(), Request(PromptOf(i % 2, 100 + i), 2)).status.ok());
  const std::vector<ScriptedEngine::Exchange> exchanges = engine_->exchanges();
  for (size_t i = streams.size(); i < exchanges.size(); ++i)
    EXPECT_EQ(exchanges[i].responses.back().complete().cached_tokens(), kShared);
  EXPECT_EQ(exchanges.size(), streams.size() + 4);
}

// Requests run one at a time, so that every rank is free, in an order in which round robin would spread a
// family. They come from bfio.v1 and from a gateway, streamed and whole: all must name the same blocks.
TEST_F(EnginePrefixes, RequestsGoWhereTheirPrefixIs) {
  Start(/*prefix_cache=*/true, /*slots=*/8);
  const std::vector<uint32_t> families = {0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 1, 0};
  for (uint32_t i = 0; i < families.size(); ++i) {
    const Tokens prompt = PromptOf(families[i], i);
    if (i % 3 == 0) {
      EXPECT_TRUE(Generate(stub(), Request(prompt, 3)).status.ok());
    } else {
      pb::GenerateRequest request = FromGateway(prompt, 3);
      request.set_stream(i % 3 == 1);
      RunAsGateway(request);
    }
  }
  const std::vector<int32_t> ranks = Ranks();
  ASSERT_EQ(ranks.size(), families.size());
  EXPECT_NE(ranks[0], ranks[1]) << "each family has a rank";
  for (size_t i = 0; i < families.size(); ++i) EXPECT_EQ(ranks[i], ranks[families[i]]) << i;
  int with_hits = 0;
  for (const ScriptedEngine::Exchange& exchange : engine_->exchanges())
    with_hits += exchange.responses.back().complete().cached_tokens() == kShared;
  EXPECT_EQ(with_hits, static_cast<int>(families.size()) - 2);
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
  for (const ScriptedEngine::Exchange& exchange : engine_->exchanges()) {
    const bool second = exchange.request.tokenized().input_ids(0) == PromptOf(1, 0)[0];
    EXPECT_EQ(exchange.request.data_parallel_rank(), ranks[second ? 1 : 0]);
  }
  cluster_->StopCleanly();
}

// The engine reports no hits, so the router expects none, and requests spread by their number.
TEST_F(EnginePrefixes, WithoutACacheARequestDoesNotFollowItsPrefix) {
  constexpr int kClients = 16, kEach = 15;
  Start(/*prefix_cache=*/false, /*slots=*/8);
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < kClients; ++c) {
    clients.emplace_back([this, c] {
      for (uint32_t i = 0; i < kEach; ++i)
        EXPECT_TRUE(Generate(stub(), Request(PromptOf(0, kEach * c + i), 40)).status.ok());
    });
  }
  for (std::thread& client : clients) client.join();
  // Another family; one rank has had a prompt of it.
  EXPECT_TRUE(Generate(stub(), Request(PromptOf(1, 300), 40)).status.ok());
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (uint32_t i = 0; i < 8; ++i) {
    streams.push_back(std::make_unique<RequestStream>(stub(), Request(PromptOf(1, 400 + i), 2'000)));
    ASSERT_TRUE(streams.back()->Read());
  }
  const std::vector<int32_t> ranks = Ranks(kClients * kEach + 1);
  ASSERT_EQ(ranks.size(), 8u);
  EXPECT_NEAR(std::accumulate(ranks.begin(), ranks.end(), 0), 4, 1) << "on the second rank";
}

}  // namespace
}  // namespace bfio::testing
