// The host's part of a decode engine, with a backend whose "cache" stores tokens and whose "model" is a hash.
#include "worker/engine/decode/decode_engine.h"

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "tests/testing/decode_schedule.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kVocab = 50;
constexpr uint32_t kEos = 3;
// On a poisoned backend a sequence that contains this token has no finite logits, and the token is never
// generated.
constexpr uint32_t kPoison = 49;

// Writes each row's token into its page, and computes logits from all tokens that the page table addresses.
class HashBackend final : public Backend {
 public:
  explicit HashBackend(const DecodeOptions& options, std::function<void(int32_t rows)> ran = {},
                       bool poisoned = false)
      : ran_(std::move(ran)),
        poisoned_(poisoned),
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
      auto pick = sampler_.Pick(logits, draws[i]);
      if (!pick.ok()) return pick.status();
      drawn[i] = *pick;
    }
    if (ran_) ran_(plan.rows());
    return absl::OkStatus();
  }

 private:
  uint32_t& At(const StepPlan& plan, int32_t row, int32_t position) {
    const int32_t run = plan.row_runs[row];
    const PageId page = plan.pages.at(plan.run_pages[run] + position / page_tokens_);
    EXPECT_LT(plan.run_pages[run] + position / page_tokens_, plan.run_pages[run + 1]);
    return cache_.at(static_cast<size_t>(page * page_tokens_ + position % page_tokens_));
  }

  const std::function<void(int32_t rows)> ran_;
  const bool poisoned_;
  const int32_t page_tokens_;
  std::vector<uint32_t> cache_;
  ModelFacts facts_;
  Sampler sampler_;
};

// The same with two plans under way.
class PipelinedHashBackend final : public Backend {
 public:
  explicit PipelinedHashBackend(const DecodeOptions& options) : hash_(options) {}

  absl::string_view name() const override { return "hash"; }
  const ModelFacts& facts() const override { return hash_.facts(); }
  absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override {
    return hash_.Run(plan, draws, drawn);
  }
  int32_t depth() const override { return 2; }
  absl::Status Start(const StepPlan& plan) override {
    under_way_.push_back(plan);
    return absl::OkStatus();
  }
  absl::Status Collect(absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override {
    const StepPlan plan = std::move(under_way_.front());
    under_way_.pop_front();
    return hash_.Run(plan, draws, drawn);
  }

 private:
  HashBackend hash_;
  std::deque<StepPlan> under_way_;
};

DecodeOptions Options() {
  return {.limits = {8, 400, 1000}, .page_tokens = 5, .step_tokens = 24};
}

std::unique_ptr<DecodeEngine> Make(const DecodeOptions& options = Options()) {
  auto engine = DecodeEngine::Create(options, std::make_unique<HashBackend>(options));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::unique_ptr<DecodeEngine> MakePipelined(const DecodeOptions& options) {
  auto engine = DecodeEngine::Create(options, std::make_unique<PipelinedHashBackend>(options));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::unique_ptr<DecodeEngine> MakePoisoned() {
  const DecodeOptions options = Options();
  auto engine = DecodeEngine::Create(
      options, std::make_unique<HashBackend>(options, std::function<void(int32_t)>(), true));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

SequenceRequest Request(Handle handle, int64_t prompt, int64_t output) {
  return {.handle = handle, .prompt_length = prompt, .max_new_tokens = output, .ignore_eos = true};
}

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

TEST(DecodeEngineTest, ALongPromptIsChunkedAndCountsWholeInEveryStep) {
  const auto engine = Make();
  ASSERT_TRUE(engine->Admit(Request(1, 5, 50)).ok());
  ASSERT_TRUE(engine->Admit(Request(2, 60, 2)).ok());
  StepOutput out;
  ASSERT_TRUE(engine->Step(out).ok());  // neither is decoding yet: 5 + 19 rows
  EXPECT_EQ(out.tokens.size(), 1u);
  EXPECT_EQ(out.prefill_tokens, 24);
  EXPECT_EQ(out.load_tokens, 65);
  ASSERT_TRUE(engine->Step(out).ok());  // 1 + 23 rows
  EXPECT_EQ(out.tokens.size(), 1u);
  EXPECT_EQ(out.prefill_tokens, 23);
  EXPECT_EQ(out.load_tokens, 66);
  ASSERT_TRUE(engine->Step(out).ok());  // 1 + 18 rows
  EXPECT_EQ(out.tokens.size(), 2u);
  EXPECT_EQ(out.prefill_tokens, 18);
  EXPECT_EQ(out.load_tokens, 67);
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_EQ(out.load_tokens, 8 + 61);
  EXPECT_THAT(out.finished, ::testing::SizeIs(1));
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

TEST(DecodeEngineTest, KvIsReservedInFullSoRunningRequestsNeverRunOut) {
  const auto engine = Make();
  ASSERT_TRUE(engine->Admit(Request(1, 100, 100)).ok());
  ASSERT_TRUE(engine->Admit(Request(2, 100, 100)).ok());
  EXPECT_EQ(engine->free_kv_tokens(), 2);
  const absl::Status full = engine->Admit(Request(3, 2, 2));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("needs 3 KV tokens, 2 are free"));
  ASSERT_TRUE(engine->Admit(Request(3, 2, 1)).ok());
  EXPECT_EQ(engine->free_kv_tokens(), 0);
  const auto streams = testing::RunSteps(*engine);
  EXPECT_EQ(streams.at(1).tokens.size(), 100u);
  EXPECT_EQ(streams.at(2).tokens.size(), 100u);
  EXPECT_EQ(streams.at(3).tokens.size(), 1u);
  EXPECT_EQ(engine->free_kv_tokens(), 400);
}

TEST(DecodeEngineTest, CancelFreesSlotAndKvInPrefillAndDecode) {
  const auto engine = Make();
  ASSERT_TRUE(engine->Admit(Request(1, 100, 20)).ok());
  ASSERT_TRUE(engine->Admit(Request(2, 5, 20)).ok());
  StepOutput out;
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_TRUE(engine->Cancel(1));
  EXPECT_FALSE(engine->Cancel(1));
  EXPECT_EQ(engine->free_kv_tokens(), 400 - 24);
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_TRUE(engine->Cancel(2));
  EXPECT_EQ(engine->free_slots(), 8);
  EXPECT_EQ(engine->kv_stats().pages_taken, 0);
  EXPECT_TRUE(engine->AuditKv().ok());
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
  SequenceRequest request = Request(1, 3, 5);
  request.prompt = {1, 2, 50};
  EXPECT_THAT(message(request), HasSubstr("prompt token 2 is 50; the model's vocabulary has 50 tokens"));
  request.prompt = {1, 2};
  EXPECT_THAT(message(request), HasSubstr("differs from the 2 ids"));
  request = Request(1, 3, 5);
  request.sampling.top_p = 0;
  EXPECT_THAT(message(request), HasSubstr("top_p"));
  request = Request(1, 3, 5);
  request.sampling.temperature = -1;
  EXPECT_THAT(message(request), HasSubstr("temperature"));
  request = Request(1, 3, 5);
  request.sampling.top_k = 0;
  EXPECT_THAT(message(request), HasSubstr("top_k"));
  ASSERT_TRUE(engine->Admit(Request(1, 3, 5)).ok());
  EXPECT_EQ(engine->Admit(Request(1, 3, 5)).code(), absl::StatusCode::kAlreadyExists);
}

TEST(DecodeEngineTest, SlotsRunOut) {
  const auto engine = Make();
  for (Handle handle = 1; handle <= 8; ++handle) ASSERT_TRUE(engine->Admit(Request(handle, 3, 5)).ok());
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

TEST(DecodeEngineTest, TokensDoNotDependOnTheSchedule) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rng rng(seed);
    DecodeOptions options = Options();
    options.page_tokens = 1 + static_cast<int32_t>(rng.Below(20));
    options.step_tokens = 1 + static_cast<int64_t>(rng.Below(60));
    EXPECT_GT(testing::RunSchedule(seed, [&] { return Make(options); }, {kVocab}), 8);
  }
}

TEST(DecodeEngineTest, PreemptedRequestsGenerateTheSameTokens) {
  int preemptions = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rng rng(seed);
    DecodeOptions options = Options();
    options.limits.kv_tokens = 70 + static_cast<int64_t>(rng.Below(60));  // a request needs at most 64
    options.page_tokens = 1 + static_cast<int32_t>(rng.Below(20));
    options.step_tokens = 1 + static_cast<int64_t>(rng.Below(60));
    testing::ScheduleShape shape{kVocab};
    shape.on_demand = seed % 4 == 0 ? 0.5 : 1;
    shape.preemptions = &preemptions;
    EXPECT_GT(testing::RunSchedule(
                  seed, [&] { return Make(options); }, shape),
              8);
  }
  EXPECT_GT(preemptions, 100);
}

TEST(DecodeEngineTest, PreemptedRequestsGenerateTheSameTokensWithPlansUnderWay) {
  int preemptions = 0;
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    Rng rng(seed);
    DecodeOptions options = Options();
    options.scheduler = SchedulerNames()[seed % SchedulerNames().size()];
    options.limits.kv_tokens = 70 + static_cast<int64_t>(rng.Below(60));
    options.page_tokens = 1 + static_cast<int32_t>(rng.Below(20));
    options.step_tokens = 64 + static_cast<int64_t>(rng.Below(60));
    options.limits.max_sequence_tokens = 64;
    testing::ScheduleShape shape{kVocab};
    shape.on_demand = seed % 4 == 0 ? 0.5 : 1;
    shape.preemptions = &preemptions;
    SCOPED_TRACE(options.scheduler);
    EXPECT_GT(testing::RunSchedule(
                  seed, [&] { return MakePipelined(options); }, shape),
              5);
  }
  EXPECT_GT(preemptions, 100);
}

// A token that is generated again needs no KV beyond the prompt, whether it is being drawn or not.
TEST(DecodeEngineTest, ASilentReplayTakesNoKvFromOthersWithPlansUnderWay) {
  const SequenceRequest request = Request(1, 10, 14);
  const std::vector<uint32_t> whole = testing::RunAlone(*Make(), request).tokens;
  DecodeOptions options = Options();
  // Its decodes wait for whole prompts.
  options.scheduler = "vllm_v0";
  options.step_tokens = options.limits.max_sequence_tokens = 64;
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

TEST(DecodeEngineTest, ARequestPreemptedByNextRowsIsInTheStepsOutput) {
  DecodeOptions options = Options();
  options.limits.kv_tokens = 30;
  const auto engine = Make(options);
  for (const Handle handle : {1, 2}) {
    SequenceRequest request = Request(handle, 10, 20);
    request.kv_on_demand = true;
    ASSERT_TRUE(engine->Admit(request).ok());
  }
  StepOutput out;
  for (int step = 1; step <= 6; ++step) {
    EXPECT_EQ(engine->NextRows(), step == 1 ? 20 : 2);
    EXPECT_THAT(engine->taken_out(), IsEmpty());
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_THAT(out.preempted, IsEmpty()) << "15 tokens each at most";
  }
  EXPECT_EQ(engine->NextRows(), 1);
  EXPECT_THAT(engine->taken_out(), ElementsAre(2));
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_THAT(out.preempted, ElementsAre(2));
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_THAT(out.preempted, IsEmpty()) << "once";
}

TEST(DecodeEngineTest, TokensAreTheSameUnderEveryScheduler) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rng rng(seed);
    const std::vector<std::string> names = SchedulerNames();
    DecodeOptions other = Options();
    other.scheduler = names[seed % names.size()];
    other.order = static_cast<BatchOrder>(rng.Below(4));
    // The longest prompt is that of a replay: 40 + 24 tokens.
    other.step_tokens = 64 + static_cast<int64_t>(rng.Below(100));
    other.limits.max_sequence_tokens = other.step_tokens;
    int made = 0;
    SCOPED_TRACE(other.scheduler);
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

TEST(DecodeEngineTest, TheSchedulerDecidesWhatAStepContains) {
  using Handles = std::vector<Handle>;
  DecodeOptions options = Options();
  // 24 rows per step: 1 + 23, 1 + 23, 1 + 14 + 8.
  EXPECT_THAT(Steps(options, 3), ElementsAre(Handles{1}, Handles{1}, Handles{1, 2, 3}));
  options.order = BatchOrder::kPriority;
  EXPECT_THAT(Steps(options, 3), ElementsAre(Handles{1, 3}, Handles{1, 3}, Handles{1, 3}));
  options.order = BatchOrder::kShortest;
  EXPECT_THAT(Steps(options, 2), ElementsAre(Handles{1, 3}, Handles{1, 3}));
  options.order = BatchOrder::kFcfs;
  options.scheduler = "orca";
  // 24 prompt rows, 24 again, and then 12 + 8 with a decode.
  EXPECT_THAT(Steps(options, 3), ElementsAre(Handles{}, Handles{}, Handles{1, 2, 3}));
  options.step_tokens = 68;
  options.limits.max_sequence_tokens = 68;
  options.scheduler = "vllm_v0";
  EXPECT_THAT(Steps(options, 2), ElementsAre(Handles{2, 3}, Handles{1, 2, 3}));
  options.scheduler = "faster_transformer";
  EXPECT_THAT(Steps(options, 3), ElementsAre(Handles{1}, Handles{1}, Handles{1}));
}

// Under the urgency order the prompt of a call that has waited longer, an agent's for instance, is computed
// before those that were admitted earlier; steps on the worker count like steps in the pool.
TEST(DecodeEngineTest, PromptsThatHaveWaitedLongerAreComputedFirstUnderTheUrgencyOrder) {
  for (const BatchOrder order : {BatchOrder::kFcfs, BatchOrder::kUrgency}) {
    DecodeOptions options = Options();
    options.order = order;
    const auto engine = Make(options);
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
    if (order == BatchOrder::kFcfs) {
      EXPECT_THAT(handles, ElementsAre(1, 3, 2));
    } else {
      EXPECT_THAT(handles, ElementsAre(2, 1, 3));
    }
  }
}

TEST(DecodeEngineTest, TheTokenBudgetMayBeBelowTheStepCapacity) {
  DecodeOptions options = Options();
  options.step_tokens = 100;
  const auto prefill = [&](int64_t budget) {
    options.token_budget = budget;
    const auto engine = Make(options);
    StepOutput out;
    EXPECT_TRUE(engine->Admit(Request(1, 90, 2)).ok());
    EXPECT_TRUE(engine->Step(out).ok());
    return out.prefill_tokens;
  };
  EXPECT_EQ(prefill(0), 90);
  EXPECT_EQ(prefill(30), 30);
  EXPECT_EQ(prefill(1), kMinPrefillRows);
}

TEST(DecodeEngineTest, TheTokenBudgetAdaptsToItsGoalAndTokensDoNotChange) {
  DecodeOptions options = Options();
  options.step_tokens = 400;
  options.limits.kv_tokens = 2000;
  std::vector<std::vector<uint32_t>> streams[2];
  for (const bool adapt : {false, true}) {
    double now_s = 0;
    DecodeOptions mine = options;
    if (adapt) mine.adapt.emplace().goal = BudgetGoal::kTpot;
    mine.clock = [&] { return now_s; };
    // A step takes a millisecond, and another one per row.
    auto backend = std::make_unique<HashBackend>(mine, [&](int32_t rows) { now_s += 1e-3 * (1 + rows); });
    auto engine = DecodeEngine::Create(mine, std::move(backend));
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ((*engine)->token_budget(), 400);
    streams[adapt].resize(150);
    StepOutput out;
    for (size_t next = 0; next < 150 || (*engine)->active() > 0;) {
      while (next < 150 && (*engine)->Admit(Request(next, 150, 12)).ok()) ++next;
      ASSERT_TRUE((*engine)->Step(out).ok());
      for (const auto& token : out.tokens) streams[adapt][token.handle].push_back(token.id);
    }
    if (adapt) {
      EXPECT_LT((*engine)->token_budget(), 200) << "decodes behind 400 rows are slow";
    } else {
      EXPECT_EQ((*engine)->token_budget(), 400);
    }
  }
  EXPECT_EQ(streams[0], streams[1]);
}

// A replayed prompt that exceeds the budget would block the engine forever.
TEST(DecodeEngineTest, WholePromptsNeedABudgetForTheLongestSequence) {
  DecodeOptions options = Options();
  options.step_tokens = 199;
  options.scheduler = "vllm_v0";
  // The model has 200 positions, whatever the options allow.
  const auto refused = DecodeEngine::Create(options, std::make_unique<HashBackend>(options));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("has up to 200 tokens"));
  options.step_tokens = 200;
  EXPECT_EQ(Make(options)->token_budget(), 200);
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

TEST(DecodeEngineTest, ALongPromptDoesNotStarve) {
  DecodeOptions options = Options();
  options.order = BatchOrder::kShortest;
  const auto engine = Make(options);
  ASSERT_TRUE(engine->Admit(Request(1, 100, 2)).ok());
  StepOutput out;
  Handle next = 2;
  int steps = 0;
  for (bool ended = false; !ended; ++steps) {
    ASSERT_LT(steps, 20 * kPatienceBatches);
    // There are always two short prompts, which fill the step.
    while (engine->active() < 3) ASSERT_TRUE(engine->Admit(Request(next++, 24, 1)).ok());
    ASSERT_TRUE(engine->Step(out).ok());
    for (const auto& finish : out.finished) ended = ended || finish.handle == 1;
  }
  EXPECT_GT(steps, 4 * kPatienceBatches) << "the others do go first";
}

TEST(DecodeEngineTest, BadOptionsAreRefusedByName) {
  const auto message = [](DecodeOptions options) {
    return std::string(CheckDecodeOptions(options).message());
  };
  DecodeOptions options = Options();
  options.step_tokens = 0;
  EXPECT_THAT(message(options), HasSubstr("step_tokens"));
  options = Options();
  options.token_budget = 25;
  EXPECT_THAT(message(options), HasSubstr("token_budget must be in 0..24"));
  options = Options();
  options.scheduler = "magic";
  EXPECT_THAT(message(options), HasSubstr("scheduler: no scheduler 'magic'"));
  options = Options();
  options.scheduler = "vllm_v0";
  options.adapt.emplace();
  EXPECT_THAT(message(options), HasSubstr("budget_control: a smaller token budget would stop vllm_v0"));
  options = Options();
  options.page_tokens = 0;
  EXPECT_THAT(message(options), HasSubstr("page size"));
  options = Options();
  options.limits.slots = 0;
  EXPECT_THAT(message(options), HasSubstr("slots"));
}

}  // namespace
}  // namespace bfio::worker
