// Checks of the token counts in engines' streams: complete streams, and streams that have lost tokens.
#include "router/engine_link/protocol/stream_counts.h"

#include <vector>

#include "gtest/gtest.h"

namespace bfio::router {
namespace {

using Tokens = std::vector<uint32_t>;
constexpr StreamCounts::Options kVllm = {.prompt_tokens = 10, .max_new_tokens = 5, .context_tokens = 1'000};
constexpr StreamCounts::Options kSglang = {.cumulative = true, .prompt_tokens = 10, .max_new_tokens = 5};

StreamCounts After(const StreamCounts::Options& options, int chunks) {
  StreamCounts counts(options);
  for (int i = 1; i <= chunks; ++i) {
    const auto count = static_cast<uint32_t>(options.cumulative ? i : 1);
    EXPECT_TRUE(counts.OnChunk(Tokens{static_cast<uint32_t>(i)}, count).ok());
  }
  return counts;
}

TEST(StreamCountsTest, EnginesOutputsAreWhole) {
  // vLLM repeats the last chunk, bfio's own servers count the whole output, and some engines send no count.
  EXPECT_TRUE(After(kVllm, 5).OnComplete(Tokens{5}, 1, 10, EngineFinish::kLength).ok());
  EXPECT_TRUE(After(kVllm, 5).OnComplete({}, 5, 10, EngineFinish::kLength).ok());
  EXPECT_TRUE(After(kVllm, 5).OnComplete({}, 0, 0, EngineFinish::kLength).ok());
  EXPECT_TRUE(After(kVllm, 3).OnComplete(Tokens{3}, 1, 10, EngineFinish::kStop).ok());
  EXPECT_TRUE(After(kSglang, 3).OnComplete(Tokens{3}, 3, 10, EngineFinish::kStop).ok());
}

TEST(StreamCountsTest, CumulativeCountsRevealEveryFault) {
  StreamCounts missing = After(kSglang, 2);
  EXPECT_TRUE(absl::IsDataLoss(missing.OnChunk(Tokens{4}, 4)));
  StreamCounts twice = After(kSglang, 2);
  EXPECT_TRUE(absl::IsDataLoss(twice.OnChunk(Tokens{2}, 2)));
  EXPECT_TRUE(absl::IsDataLoss(After(kSglang, 2).OnComplete(Tokens{3}, 3, 10, EngineFinish::kStop)));
  EXPECT_TRUE(absl::IsDataLoss(After(kSglang, 2).OnComplete({}, 3, 10, EngineFinish::kStop)));
}

TEST(StreamCountsTest, AChunkThatCountsOtherTokensIsNotWhole) {
  StreamCounts counts = After(kVllm, 2);
  EXPECT_TRUE(absl::IsDataLoss(counts.OnChunk(Tokens{3}, 2)));
}

TEST(StreamCountsTest, TheLastChunkIsTheOneThatTheEngineEndsWith) {
  EXPECT_TRUE(absl::IsDataLoss(After(kVllm, 3).OnComplete(Tokens{4}, 1, 10, EngineFinish::kStop)));
}

TEST(StreamCountsTest, AnEndByLengthHasTheLength) {
  EXPECT_TRUE(absl::IsDataLoss(After(kVllm, 4).OnComplete(Tokens{4}, 1, 10, EngineFinish::kLength)));
  // An output may end at the longest sequence, counted with the engine's own prompt length.
  EXPECT_TRUE(After(kVllm, 4).OnComplete(Tokens{4}, 1, 996, EngineFinish::kLength).ok());
  EXPECT_TRUE(absl::IsDataLoss(After(kVllm, 4).OnComplete(Tokens{4}, 1, 995, EngineFinish::kLength)));
}

TEST(StreamCountsTest, AWholeOutputIsCountedByItsTokens) {
  StreamCounts::Options options = kVllm;
  options.whole = true;
  const auto end = [&](const Tokens& ids, uint32_t count, EngineFinish finish) {
    return StreamCounts(options).OnComplete(ids, count, 10, finish);
  };
  EXPECT_TRUE(end({1, 2, 3, 4, 5}, 5, EngineFinish::kLength).ok());
  EXPECT_TRUE(end({1, 2}, 2, EngineFinish::kStop).ok());
  EXPECT_TRUE(absl::IsDataLoss(end({1, 2}, 3, EngineFinish::kStop)));
  EXPECT_TRUE(absl::IsDataLoss(end({1, 2}, 2, EngineFinish::kLength)));
  EXPECT_TRUE(absl::IsDataLoss(end({1, 2, 3, 4, 5, 6}, 6, EngineFinish::kStop)));
}

}  // namespace
}  // namespace bfio::router
