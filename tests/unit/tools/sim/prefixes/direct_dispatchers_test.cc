// Other routers' rules: one case for each statement of their descriptions.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/tools/sim/prefixes/token_request.h"
#include "tools/sim/prefixes/dispatcher.h"

namespace bfio::sim {
namespace {

class DirectDispatchersTest : public ::testing::Test {
 protected:
  void Make(const std::string& rule) {
    ranks_.clear();
    for (int g = 0; g < 2; ++g) ranks_.emplace_back(EngineModelOptions());
    dispatcher_ = MakeDirectDispatcher(rule, ranks_);
  }
  // Sends a request with this prompt; returns its rank.
  int32_t Send(const Tokens& prompt) {
    const core::RequestId id = requests_.size() + 1;
    requests_.push_back(std::make_unique<PrefixRequest>(
        RequestOf(id, prompt + Text(1'000 + id, 10), static_cast<int64_t>(prompt.size()))));
    return dispatcher_->Arrived(*requests_.back()).at(0).rank;
  }
  void Finish(int32_t rank, size_t request) {
    EngineStep step;
    step.first_tokens = {{requests_[request].get(), 0}};
    step.finished = {requests_[request].get()};
    dispatcher_->Stepped(rank, step);
  }

  std::vector<EngineModel> ranks_;
  std::unique_ptr<PrefixDispatcher> dispatcher_;
  std::vector<std::unique_ptr<PrefixRequest>> requests_;
};

TEST_F(DirectDispatchersTest, LeastRequests) {
  Make("direct_least_requests");
  EXPECT_EQ(Send(Text(1, 64)), 0);
  EXPECT_EQ(Send(Text(1, 64)), 1);
  Finish(1, 1);
  EXPECT_EQ(Send(Text(1, 64)), 1);
}

TEST_F(DirectDispatchersTest, SglangGoesWhereThePromptMatchesUntilRequestsAreFarApart) {
  Make("sglang_cache_aware");
  EXPECT_EQ(Send(Text(1, 640)), 0);
  EXPECT_EQ(Send(Text(2, 64)), 1) << "the smallest tree";
  EXPECT_EQ(Send(Text(3, 64)), 1) << "still";
  EXPECT_EQ(Send(Text(1, 192) + Text(4, 500)), 1) << "28 % match";
  // The ranks have 1 and 3 requests, then up to 66 and 3.
  for (int i = 0; i < 67; ++i) EXPECT_EQ(Send(Text(1, 640)), 0) << i;
  EXPECT_EQ(Send(Text(1, 640)), 1) << "68 and 3 are far apart";
}

TEST_F(DirectDispatchersTest, DynamoWeighsPromptBlocksAndActiveBlocks) {
  Make("dynamo_kv");
  EXPECT_EQ(Send(Text(1, 160)), 0);
  EXPECT_EQ(Send(Text(1, 160)), 1) << "20 blocks more to compute than 10, shared or not";
  Finish(0, 0);
  EXPECT_EQ(Send(Text(2, 160)), 0) << "nothing is active there";
  // Rank 1's cache has the prompt.
  ranks_[1].Submit(*requests_[1]);
  while (!ranks_[1].idle()) {
    ranks_[1].BeginStep();
    dispatcher_->Stepped(1, ranks_[1].EndStep());
  }
  Finish(0, 2);
  EXPECT_EQ(Send(Text(1, 160)), 1);
}

TEST_F(DirectDispatchersTest, UnknownNamesGiveNull) {
  Make("least_work");
  EXPECT_EQ(dispatcher_, nullptr);
}

}  // namespace
}  // namespace bfio::sim
