// Requests of a decode engine from admission to their end.

#include "worker/engine/decode/decode_engine.h"
#include "gmock/gmock.h"
#include "tests/testing/decode_schedule.h"
#include "tests/unit/worker/engine/decode/hash_engine.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(DecodeEngineTest, AShortPromptGivesATokenInItsFirstStep) {
  const auto engine = Make();
  ASSERT_TRUE(engine->Admit(Request(7, 10, 3)).ok());
  StepOutput out;
  for (int j = 1; j <= 3; ++j) {
    EXPECT_THAT(engine->resident(), ::testing::SizeIs(1));
    EXPECT_EQ(engine->resident()[0].kv_tokens, 10 + j - 1);
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_EQ(out.load_tokens, 10 + j - 1);
    EXPECT_EQ(out.prefill_tokens, j == 1 ? 10 : 0);
    ASSERT_EQ(out.tokens.size(), 1u);
    EXPECT_EQ(out.log_probabilities.size(), 1u);
    EXPECT_EQ(out.completion_hints.size(), 1u);
    EXPECT_EQ(out.completion_hints[0], j == 2 ? 1 : 0) << "no end is likely but by length";
  }
  ASSERT_EQ(out.finished.size(), 1u);
  EXPECT_EQ(out.finished[0].cause, FinishCause::kLength);
  EXPECT_EQ(engine->active(), 0);
  EXPECT_EQ(engine->free_kv_tokens(), 400);
  ASSERT_TRUE(engine->Step(out).ok()) << "an idle step is legal";
  EXPECT_THAT(out.tokens, IsEmpty());
}

TEST(DecodeEngineTest, StopsAtEosAndStopTokensWhichAreDelivered) {
  SequenceRequest request = Request(1, 10, 100);
  const std::vector<uint32_t> free_run = testing::RunAlone(*Make(), request).tokens;
  request.stop_token_ids = {free_run[5]};
  const auto stopped = testing::RunAlone(*Make(), request);
  EXPECT_EQ(stopped.cause, FinishCause::kStop);
  EXPECT_EQ(stopped.tokens.back(), free_run[5]);
  EXPECT_LE(stopped.tokens.size(), 6u);
  request.stop_token_ids.clear();
  request.ignore_eos = false;
  const auto ended = testing::RunAlone(*Make(), request);
  const auto eos = std::find(free_run.begin(), free_run.end(), kEos);
  ASSERT_NE(eos, free_run.end()) << "the test needs one within 100 tokens";
  EXPECT_EQ(ended.tokens, std::vector<uint32_t>(free_run.begin(), eos + 1));
}

TEST(DecodeEngineTest, RefusesWhatCannotRun) {
  const auto engine = Make();
  EXPECT_EQ(engine->limits().max_sequence_tokens, 200) << "the model's own limit";
  const auto message = [&](SequenceRequest request) {
    const absl::Status status = engine->Admit(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Request(1, 190, 20)), HasSubstr("210 tokens exceeds the limit of 200"));
  const std::pair<std::string, std::function<void(SequenceRequest&)>> rows[] = {
      {"prompt token 2 is 50; the model's vocabulary has 50 tokens",
       [](SequenceRequest& r) {
         r.prompt = {1, 2, 50};
       }},
      {"differs from the 2 ids",
       [](SequenceRequest& r) {
         r.prompt = {1, 2};
       }},
      {"prompt_length must be at least 1", [](SequenceRequest& r) { r.prompt_length = 0; }},
      {"max_new_tokens must be at least 1", [](SequenceRequest& r) { r.max_new_tokens = 0; }},
      {"first_index 3 is outside", [](SequenceRequest& r) { r.first_index = 3; }},
      {"top_p", [](SequenceRequest& r) { r.sampling.top_p = 0; }},
      {"temperature", [](SequenceRequest& r) { r.sampling.temperature = -1; }},
      {"top_k", [](SequenceRequest& r) { r.sampling.top_k = 0; }}};
  for (const auto& [why, change] : rows) {
    SequenceRequest request = Request(1, 3, 5);
    change(request);
    EXPECT_THAT(message(request), HasSubstr(why));
  }
  ASSERT_TRUE(engine->Admit(Request(1, 3, 5)).ok());
  EXPECT_EQ(engine->Admit(Request(1, 3, 5)).code(), absl::StatusCode::kAlreadyExists);
  for (Handle handle = 2; handle <= 8; ++handle) ASSERT_TRUE(engine->Admit(Request(handle, 3, 5)).ok());
  EXPECT_EQ(engine->Admit(Request(9, 3, 5)).code(), absl::StatusCode::kResourceExhausted);
}

TEST(DecodeEngineTest, ASyntheticReplayRegeneratesDeliveredTokensSilently) {
  const SequenceRequest request = Request(1, 12, 30);
  const std::vector<uint32_t> whole = testing::RunAlone(*Make(), request).tokens;
  const std::vector<uint32_t> delivered(whole.begin(), whole.begin() + 9);
  const auto engine = Make();
  ASSERT_TRUE(engine->Admit(testing::Replay(request, 2, delivered)).ok());
  StepOutput out;
  for (int i = 0; i < 9; ++i) {
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_THAT(out.tokens, IsEmpty());
    EXPECT_EQ(out.load_tokens, 21) << "as if all of it were the prompt";
  }
  const auto rest = testing::RunSteps(*engine)[2].tokens;
  EXPECT_EQ(rest, std::vector<uint32_t>(whole.begin() + 9, whole.end()));
}

// Only the failing request is affected: the step succeeds, and so do later ones.
TEST(DecodeEngineTest, ARequestWithoutFiniteLogitsEndsAloneAndCountsNothing) {
  const auto engine = MakePoisoned();
  const auto with_prompt = [](Handle handle, std::vector<uint32_t> prompt) {
    SequenceRequest request = Request(handle, static_cast<int64_t>(prompt.size()), 10);
    request.prompt = std::move(prompt);
    return request;
  };
  const SequenceRequest before = with_prompt(1, {5, 6, 7}), after = with_prompt(3, {8, 9});
  // The token is in the last of the three chunks of the prompt.
  std::vector<uint32_t> poison(60, 4);
  poison[55] = kPoison;
  ASSERT_TRUE(engine->Admit(before).ok());
  ASSERT_TRUE(engine->Admit(with_prompt(2, poison)).ok());
  ASSERT_TRUE(engine->Admit(after).ok());
  std::map<Handle, std::vector<uint32_t>> tokens;
  std::vector<StepOutput::Failure> failed;
  StepOutput out;
  for (int step = 1; engine->active() > 0; ++step) {
    int64_t load = 0;
    for (const ResidentSequence& sequence : engine->resident()) load += sequence.kv_tokens;
    ASSERT_TRUE(engine->Step(out).ok());
    for (const StepOutput::Token& token : out.tokens) tokens[token.handle].push_back(token.id);
    EXPECT_EQ(out.log_probabilities.size(), out.tokens.size());
    EXPECT_EQ(out.completion_hints.size(), out.tokens.size());
    EXPECT_EQ(out.load_tokens, out.failed.empty() ? load : load - 60) << "step " << step;
    failed.insert(failed.end(), out.failed.begin(), out.failed.end());
    EXPECT_TRUE(engine->AuditKv().ok());
  }
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].handle, 2u);
  EXPECT_THAT(failed[0].message, HasSubstr("not finite"));
  EXPECT_EQ(engine->free_kv_tokens(), 400);
  EXPECT_EQ(engine->free_slots(), 8);
  EXPECT_THAT(tokens[2], IsEmpty());
  for (const SequenceRequest& request : {before, after}) {
    EXPECT_EQ(tokens[request.handle], testing::RunAlone(*MakePoisoned(), request).tokens);
  }
}

TEST(DecodeEngineTest, AReplayThatFailsBeforeItsFirstTokenIsReported) {
  const auto engine = MakePoisoned();
  // A synthetic replay generates again the tokens delivered by an earlier placement, from a prompt that
  // depends on the seed.
  for (uint64_t seed = 1;; ++seed) {
    SequenceRequest request = Request(7, 10, 100);
    request.sampling = {.temperature = 1, .seed = seed};
    request.first_index = 90;
    request.prompt_length = 100;
    ASSERT_TRUE(engine->Admit(request).ok());
    StepOutput out;
    while (engine->active() > 0 && out.tokens.empty()) ASSERT_TRUE(engine->Step(out).ok());
    engine->Cancel(7);
    if (out.failed.empty()) continue;
    EXPECT_EQ(out.failed[0].handle, 7u);
    EXPECT_EQ(out.load_tokens, 0);
    break;
  }
}

}  // namespace
}  // namespace bfio::worker
