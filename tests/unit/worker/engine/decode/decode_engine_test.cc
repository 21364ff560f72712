// Requests of a decode engine from admission to their end.
#include "worker/engine/decode/decode_engine.h"

#include <deque>

#include "common/base/rng.h"
#include "common/base/status_macros.h"
#include "gmock/gmock.h"
#include "tests/testing/decode_schedule.h"
#include "worker/engine/decode/kv_fit.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- an engine whose backend's "cache" stores tokens and whose "model" is a hash ---

// What it generates depends on every token that its page tables address, so a wrong page or position changes
// the output.

constexpr int64_t kVocab = 50;
constexpr uint32_t kEos = 3;
// On a poisoned backend a sequence that contains this token has no finite logits, and the token is never
// generated.
constexpr uint32_t kPoison = 49;

// Writes each row's token into its page, and computes logits from all tokens that the page table addresses.
class HashBackend : public Backend {
 public:
  explicit HashBackend(const DecodeOptions& options, bool poisoned = false)
      : poisoned_(poisoned),
        page_tokens_(options.page_tokens),
        cache_(static_cast<size_t>(PageTable::PageLimit(PageTableOptionsOf(options)) * page_tokens_)) {
    facts_ = {kVocab, 200, {kEos}};
  }

  absl::string_view name() const override { return "hash"; }
  const ModelFacts& facts() const override { return facts_; }

  absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override {
    for (int32_t r = 0; r < plan.rows(); ++r) At(plan, r, plan.positions[r]) = plan.token_ids[r];
    for (int32_t i = 0; i < plan.draws(); ++i) {
      const int32_t row = plan.logit_rows[i];
      uint64_t hash = 1;
      bool poisoned = false;
      for (int32_t p = 0; p <= plan.positions[row]; ++p) {
        hash = Mix64(hash ^ At(plan, row, p));
        poisoned = poisoned || (poisoned_ && At(plan, row, p) == kPoison);
      }
      if (poisoned) {
        drawn[i].finite = false;
        continue;
      }
      Rng rng(hash);
      std::vector<float> logits;
      for (int64_t id = 0; id < kVocab; ++id) logits.push_back(static_cast<float>(2 * rng.Normal()));
      if (poisoned_) logits[kPoison] = -std::numeric_limits<float>::infinity();
      BFIO_ASSIGN_OR_RETURN(drawn[i], sampler_.Pick(logits, draws[i]));
    }
    return absl::OkStatus();
  }

 private:
  uint32_t& At(const StepPlan& plan, int32_t row, int32_t position) {
    const int32_t run = plan.row_runs[row];
    const PageId page = plan.pages.at(plan.run_pages[run] + position / page_tokens_);
    EXPECT_LT(plan.run_pages[run] + position / page_tokens_, plan.run_pages[run + 1]);
    return cache_.at(static_cast<size_t>(page * page_tokens_ + position % page_tokens_));
  }

  const bool poisoned_;
  const int32_t page_tokens_;
  std::vector<uint32_t> cache_;
  ModelFacts facts_;
  Sampler sampler_;
};

// The same with two plans under way.
class PipelinedHashBackend final : public HashBackend {
 public:
  using HashBackend::HashBackend;
  int32_t depth() const override { return 2; }
  absl::Status Start(const StepPlan& plan) override {
    under_way_.push_back(plan);
    return absl::OkStatus();
  }
  absl::Status Collect(absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override {
    const StepPlan plan = std::move(under_way_.front());
    under_way_.pop_front();
    return Run(plan, draws, drawn);
  }

 private:
  std::deque<StepPlan> under_way_;
};

DecodeOptions Options() {
  return {.limits = {8, 400, 1000}, .page_tokens = 5, .step_tokens = 24};
}

template <typename B = HashBackend>
std::unique_ptr<DecodeEngine> Make(const DecodeOptions& options = Options(), bool poisoned = false) {
  auto engine = DecodeEngine::Create(options, std::make_unique<B>(options, poisoned));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}
std::unique_ptr<DecodeEngine> MakePipelined(const DecodeOptions& options) {
  return Make<PipelinedHashBackend>(options);
}
std::unique_ptr<DecodeEngine> MakePoisoned() {
  return Make(Options(), true);
}

SequenceRequest Request(Handle handle, int64_t prompt, int64_t output) {
  return {.handle = handle, .prompt_length = prompt, .max_new_tokens = output, .ignore_eos = true};
}

// --- requests ---

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

// --- decode engine kv ---

// KV memory of a decode engine: how much fits, on demand, preemption and replay.

TEST(DecodeEngineTest, PreemptedRequestsGenerateTheSameTokens) {
  for (const bool pipelined : {false, true}) {
    int preemptions = 0;
    for (uint64_t seed = 1; seed <= (pipelined ? 80 : 40); ++seed) {
      Rng rng(seed);
      DecodeOptions options = Options();
      options.limits.kv_tokens = 70 + static_cast<int64_t>(rng.Below(60));
      options.limits.max_sequence_tokens = 64;
      options.page_tokens = 1 + static_cast<int32_t>(rng.Below(20));
      options.step_tokens = (pipelined ? 64 : 1) + static_cast<int64_t>(rng.Below(60));
      const auto make = [&] { return pipelined ? MakePipelined(options) : Make(options); };
      EXPECT_GT(testing::RunSchedule(
                    seed, make,
                    {.vocab = kVocab, .on_demand = seed % 4 == 0 ? 0.5 : 1, .preemptions = &preemptions}),
                5);
    }
    EXPECT_GT(preemptions, 100);
  }
}

// A token that is generated again needs no KV beyond the prompt, whether it is being drawn or not.
TEST(DecodeEngineTest, ASilentReplayTakesNoKvFromOthersWithPlansUnderWay) {
  const SequenceRequest request = Request(1, 10, 14);
  const std::vector<uint32_t> whole = testing::RunAlone(*Make(), request).tokens;
  DecodeOptions options = Options();
  options.limits.max_sequence_tokens = 64;
  options.limits.kv_tokens = 20 + 13;
  const auto engine = MakePipelined(options);
  SequenceRequest replay = testing::Replay(request, 2, {whole.begin(), whole.begin() + 10});
  SequenceRequest other = Request(3, 12, 2);
  replay.kv_on_demand = other.kv_on_demand = true;
  StepOutput out;
  ASSERT_TRUE(engine->Admit(replay).ok());
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_EQ(engine->free_kv_tokens(), 13);
  ASSERT_TRUE(engine->Admit(other).ok());
  auto streams = testing::RunSteps(*engine);
  EXPECT_EQ(streams[3].tokens.size(), 2u);
  EXPECT_EQ(streams[2].tokens, std::vector<uint32_t>(whole.begin() + 10, whole.end()));
}

TEST(DecodeEngineTest, TheYoungestOnDemandRequestIsPreempted) {
  DecodeOptions options = Options();
  options.limits.kv_tokens = 60;
  options.step_tokens = 64;
  const auto engine = Make(options);
  const auto on_demand = [](Handle handle, int64_t prompt, int64_t output) {
    SequenceRequest request = Request(handle, prompt, output);
    request.kv_on_demand = true;
    return request;
  };
  ASSERT_TRUE(engine->Admit(on_demand(1, 10, 40)).ok());
  ASSERT_TRUE(engine->Admit(on_demand(2, 10, 40)).ok());
  ASSERT_TRUE(engine->Admit(Request(3, 10, 11)).ok());
  EXPECT_EQ(engine->free_kv_tokens(), 60 - 10 - 10 - 20);
  EXPECT_EQ(engine->Admit(on_demand(4, 21, 5)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine->Admit(on_demand(5, 30, 40)).code(), absl::StatusCode::kInvalidArgument)
      << "it could never end";
  StepOutput out;
  for (int step = 1; step <= 11; ++step) {
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_THAT(out.preempted, IsEmpty()) << "10 + 10 + 20 tokens";
    EXPECT_EQ(engine->free_kv_tokens(), step < 11 ? 20 - 2 * (step - 1) : 20);
  }
  ASSERT_TRUE(engine->Admit(Request(6, 10, 5)).ok());
  for (int step = 12; step <= 14; ++step) {
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_THAT(out.preempted, IsEmpty());
  }
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_THAT(out.preempted, ElementsAre(2)) << "24 + 24 + 14 tokens; 6 is younger, but has what it needs";
  EXPECT_EQ(out.load_tokens, 24 + 13);
  EXPECT_EQ(out.tokens.size(), 2u);
  EXPECT_EQ(engine->free_kv_tokens(), 60 - 24 - 14);
  EXPECT_TRUE(engine->AuditKv().ok());
}

DecodeOptions Asking(int64_t tokens) {
  return {.limits = {4, tokens, 1000}, .page_tokens = 16};
}

int64_t TenEachAnd100(int64_t tokens) {
  return 10 * tokens + 100;
}

TEST(KvFitTest, TheLargestFittingNumberIsExact) {
  EXPECT_EQ(MostKvTokens(1000, 10'100, TenEachAnd100), 1000);
  EXPECT_EQ(MostKvTokens(1000, 10'099, TenEachAnd100), 999);
  EXPECT_EQ(MostKvTokens(int64_t{1} << 40, 10'099, TenEachAnd100), 999);
  EXPECT_EQ(MostKvTokens(1000, 110, TenEachAnd100), 1);
  EXPECT_EQ(MostKvTokens(1000, 109, TenEachAnd100), 0);
  EXPECT_EQ(MostKvTokens(1000, -1, TenEachAnd100), 0);
  const auto huge = [](int64_t) { return std::numeric_limits<int64_t>::max(); };
  EXPECT_EQ(MostKvTokens(int64_t{1} << 40, 1 << 20, huge), 0);
}

TEST(KvFitTest, GivesTheRequestedOrTheFittingNumberOrNothing) {
  for (const bool fewer : {false, true}) {
    EXPECT_EQ(FitKvTokens(Asking(1000), fewer, 10'100, TenEachAnd100), 1000);
    // Fewer than a page per slot, but all that was requested.
    EXPECT_EQ(FitKvTokens(Asking(10), fewer, 10'100, TenEachAnd100), 10);
  }
  EXPECT_EQ(FitKvTokens(Asking(1000), false, 10'099, TenEachAnd100), std::nullopt);
  EXPECT_EQ(FitKvTokens(Asking(1000), true, 10'099, TenEachAnd100), 999);
  // The minimum is a page of 16 tokens for each of 4 slots.
  EXPECT_EQ(FitKvTokens(Asking(1000), true, 740, TenEachAnd100), 64);
  EXPECT_EQ(FitKvTokens(Asking(1000), true, 739, TenEachAnd100), std::nullopt);
}

// --- decode engine steps ---

// What a step of a decode engine contains: order, token budget, level.

// Alone, and in batches of every size.
TEST(DecodeEngineTest, TokensDoNotDependOnTheSchedule) {
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    Rng rng(seed);
    DecodeOptions other = Options();
    other.page_tokens = 1 + static_cast<int32_t>(rng.Below(20));
    other.step_tokens = 1 + static_cast<int64_t>(rng.Below(160));
    other.limits.max_sequence_tokens = 64;
    int made = 0;
    EXPECT_GT(testing::RunSchedule(seed, [&] { return Make(made++ == 0 ? Options() : other); }, {kVocab}), 8);
  }
}

// Handles that give a token in each step while a long and an urgent prompt arrive beside a decode.
std::vector<std::vector<Handle>> Steps(const DecodeOptions& options, int steps) {
  const auto engine = Make(options);
  StepOutput out;
  EXPECT_TRUE(engine->Admit(Request(1, 4, 50)).ok());
  EXPECT_TRUE(engine->Step(out).ok());
  SequenceRequest urgent = Request(3, 8, 20);
  urgent.priority = 1;
  EXPECT_TRUE(engine->Admit(Request(2, 60, 2)).ok());
  EXPECT_TRUE(engine->Admit(urgent).ok());
  std::vector<std::vector<Handle>> handles;
  for (int i = 0; i < steps; ++i) {
    EXPECT_TRUE(engine->Step(out).ok());
    handles.emplace_back();
    for (const auto& token : out.tokens) handles.back().push_back(token.handle);
    std::sort(handles.back().begin(), handles.back().end());
  }
  return handles;
}

TEST(DecodeEngineTest, UrgentPromptsAreComputedFirst) {
  // 24 rows per step: a decode, the urgent prompt's 8, and 15 of the other.
  using Handles = std::vector<Handle>;
  EXPECT_THAT(Steps(Options(), 4),
              ElementsAre(Handles{1, 3}, Handles{1, 3}, Handles{1, 3}, Handles{1, 2, 3}));
}

// The prompt of a call that has waited longer, an agent's for instance, is computed before those that were
// admitted earlier; steps on the worker count like steps in the pool.
TEST(DecodeEngineTest, PromptsThatHaveWaitedLongerAreComputedFirst) {
  const auto engine = Make();
  StepOutput out;
  SequenceRequest first = Request(1, 60, 2), older = Request(2, 20, 2), younger = Request(3, 4, 2);
  first.waited_steps = 3;
  older.waited_steps = 5;
  younger.waited_steps = 4;
  EXPECT_TRUE(engine->Admit(first).ok());
  EXPECT_TRUE(engine->Step(out).ok());
  // The first now counts as waiting for 4 steps, like the youngest, which was admitted later.
  EXPECT_TRUE(engine->Admit(younger).ok());
  EXPECT_TRUE(engine->Admit(older).ok());
  std::vector<Handle> handles;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(engine->Step(out).ok());
    for (const auto& token : out.tokens) {
      if (std::count(handles.begin(), handles.end(), token.handle) == 0) handles.push_back(token.handle);
    }
  }
  EXPECT_THAT(handles, ElementsAre(2, 1, 3));
}

TEST(DecodeEngineTest, ALevelHoldsUntilTheNextAndPendingPromptsAreReported) {
  const auto engine = Make();
  ASSERT_TRUE(engine->Admit(Request(1, 60, 5)).ok());
  StepOutput out;
  const auto step = [&] {
    EXPECT_TRUE(engine->Step(out).ok());
    return std::pair(out.prefill_tokens, engine->prefill_state()->pending_tokens());
  };
  const auto level = [](int64_t tokens) {
    const BatchCost cost = {.c_s = 1, .a_s_per_token = 1, .b0_tokens = 0};
    return PrefillLevel{cost.Seconds(tokens), cost};
  };
  EXPECT_THAT(engine->prefill_state()->prompts, ::testing::ElementsAre(PendingPrompt{1, 60}));
  EXPECT_EQ(engine->prefill_state()->token_budget, 24);
  engine->SetPrefillLevel(level(7));
  EXPECT_EQ(step(), std::pair(int64_t{7}, int64_t{53}));
  EXPECT_EQ(step(), std::pair(int64_t{7}, int64_t{46}));
  engine->SetPrefillLevel(std::nullopt);
  EXPECT_EQ(step(), std::pair(int64_t{24}, int64_t{22}));
  engine->SetPrefillLevel(level(100));
  EXPECT_EQ(step(), std::pair(int64_t{22}, int64_t{0}));
  EXPECT_EQ(out.tokens.size(), 1u);
}

}  // namespace
}  // namespace bfio::worker
