// Checks of the token counts in engines' streams: complete streams, and streams that have lost tokens.
#include "router/engine_link/protocol/stream_counts.h"

#include <tuple>
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

struct End {
  Tokens ids;
  uint32_t count = 0, prompt_tokens = 0;
  EngineFinish finish = EngineFinish::kStop;
};

// vLLM repeats the last chunk, bfio's own servers count the whole output, and some engines send no count. An
// output may end at the longest sequence, counted with the engine's own prompt length.
TEST(StreamCountsTest, AnEndHasTheTokensThatHaveCome) {
  constexpr EngineFinish kLength = EngineFinish::kLength, kStop = EngineFinish::kStop;
  struct Case {
    StreamCounts::Options options;
    int chunks;
    End end;
    bool good;
  };
  const std::vector<Case> cases = {
      {kVllm, 5, {{5}, 1, 10, kLength}, true},  {kVllm, 5, {{}, 5, 10, kLength}, true},
      {kVllm, 5, {{}, 0, 0, kLength}, true},    {kVllm, 3, {{3}, 1, 10, kStop}, true},
      {kVllm, 3, {{4}, 1, 10, kStop}, false},   {kVllm, 4, {{4}, 1, 10, kLength}, false},
      {kVllm, 4, {{4}, 1, 996, kLength}, true}, {kVllm, 4, {{4}, 1, 995, kLength}, false},
      {kSglang, 3, {{3}, 3, 10, kStop}, true},  {kSglang, 2, {{3}, 3, 10, kStop}, false},
      {kSglang, 2, {{}, 3, 10, kStop}, false},  {kVllm, 0, {{1, 2}, 2, 10, kStop}, false},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [options, chunks, end, good] = cases[i];
    const absl::Status status =
        After(options, chunks).OnComplete(end.ids, end.count, end.prompt_tokens, end.finish);
    EXPECT_TRUE(good ? status.ok() : absl::IsDataLoss(status)) << i << ": " << status;
  }
}

// They would be part of the prompt of another engine, which may end with them.
TEST(StreamCountsTest, TokensBeyondTheVocabularyAreNone) {
  const auto status = [](uint32_t vocabulary, uint32_t id) {
    StreamCounts::Options options = kVllm;
    options.vocabulary = vocabulary;
    return StreamCounts(options).OnChunk(Tokens{id}, 1);
  };
  EXPECT_TRUE(status(100, 99).ok());
  EXPECT_TRUE(absl::IsDataLoss(status(100, 100)));
  EXPECT_TRUE(status(0, 0x7fffffff).ok());
  EXPECT_TRUE(absl::IsDataLoss(status(0, 0x80000000))) << "a negative one";
}

TEST(StreamCountsTest, AChunkThatCountsOtherTokensIsNotWhole) {
  for (const auto& [options, token, count] :
       {std::tuple(kVllm, 3u, 2u), {kSglang, 4u, 4u}, {kSglang, 2u, 2u}})
    EXPECT_TRUE(absl::IsDataLoss(After(options, 2).OnChunk(Tokens{token}, count))) << token;
}

}  // namespace
}  // namespace bfio::router
