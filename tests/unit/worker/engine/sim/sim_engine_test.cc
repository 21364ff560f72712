#include "worker/engine/sim/sim_engine.h"

#include <map>
#include <utility>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "worker/engine/sim/sim_tokens.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A clock that advances only by sleeping.
class FakeTimer final : public StepTimer {
 public:
  explicit FakeTimer(int64_t* now_ns) : now_ns_(now_ns) {}
  int64_t NowNs() override { return *now_ns_; }
  void SleepUntilNs(int64_t time_ns) override { *now_ns_ = std::max(*now_ns_, time_ns); }

 private:
  int64_t* const now_ns_;
};

class SimEngineTest : public ::testing::Test {
 protected:
  static SimOptions Options() { return {.limits = {4, 1000, 500}, .cost = {1e-3, 1e-6, 0}}; }
  std::unique_ptr<DecodeEngine> Make(const SimOptions& options) {
    auto engine = MakeSimEngine(options, std::make_unique<FakeTimer>(&now_ns_));
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  static SequenceRequest Request(Handle handle, int64_t prompt, int64_t output) {
    return {.handle = handle, .prompt_length = prompt, .max_new_tokens = output};
  }
  static std::vector<uint32_t> RunToEnd(Engine& engine) {
    std::vector<uint32_t> ids;
    StepOutput out;
    while (engine.active() > 0) {
      EXPECT_TRUE(engine.Step(out).ok());
      for (const auto& token : out.tokens) ids.push_back(token.id);
    }
    return ids;
  }

  int64_t now_ns_ = 5;
};

TEST_F(SimEngineTest, APoisonedPromptFailsAloneAndFreesItsSlot) {
  SimOptions options = Options();
  options.limits.slots = 2;
  const auto engine = Make(options);
  SequenceRequest poisoned = Request(1, 3, 4);
  poisoned.prompt = {5, kSimPoisonToken, 5};
  ASSERT_TRUE(engine->Admit(poisoned).ok());
  ASSERT_TRUE(engine->Admit(Request(2, 3, 4)).ok());
  StepOutput out;
  ASSERT_TRUE(engine->Step(out).ok());
  ASSERT_EQ(out.failed.size(), 1u);
  EXPECT_EQ(out.failed[0].handle, 1u);
  ASSERT_EQ(out.tokens.size(), 1u);
  EXPECT_EQ(out.tokens[0].handle, 2u);
  ASSERT_TRUE(engine->Admit(Request(3, 3, 4)).ok());
  EXPECT_EQ(RunToEnd(*engine).size(), 3u + 4u);
}

TEST_F(SimEngineTest, ARequestInItsJthStepCountsPromptPlusJMinusOne) {
  auto engine = Make(Options());
  ASSERT_TRUE(engine->Admit(Request(1, 10, 3)).ok());
  StepOutput out;
  std::vector<int64_t> loads, prefills;
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(engine->Step(out).ok());
    loads.push_back(out.load_tokens);
    prefills.push_back(out.prefill_tokens);
  }
  EXPECT_THAT(loads, ElementsAre(10, 11, 12, 0));
  EXPECT_THAT(prefills, ElementsAre(10, 0, 0, 0));
}

TEST_F(SimEngineTest, AStepTakesTheModelledTime) {
  SimOptions options = Options();
  options.cost = {2e-3, 1e-6, 1e-5};
  auto engine = Make(options);
  StepOutput out;
  int64_t before = now_ns_;
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_EQ(now_ns_ - before, 2'000'000);
  ASSERT_TRUE(engine->Admit(Request(1, 100, 5)).ok());
  before = now_ns_;
  ASSERT_TRUE(engine->Step(out).ok());
  EXPECT_NEAR(static_cast<double>(now_ns_ - before), 2e6 + 100 * 1e3 + 100 * 1e4, 2);
}

TEST_F(SimEngineTest, TokensDependOnPromptSeedAndIndexOnly) {
  auto a = Make(Options()), b = Make(Options());
  ASSERT_TRUE(a->Admit(Request(1, 10, 20)).ok());
  const auto tokens = RunToEnd(*a);
  StepOutput out;
  ASSERT_TRUE(b->Step(out).ok());
  ASSERT_TRUE(b->Admit(Request(77, 10, 20)).ok());
  EXPECT_EQ(RunToEnd(*b), tokens);
  for (const uint32_t id : tokens) {
    EXPECT_GE(id, kSimFirstOrdinaryToken);
    EXPECT_LT(id, static_cast<uint32_t>(kSimVocabulary));
  }
  SequenceRequest reseeded = Request(2, 10, 20);
  reseeded.sampling.seed = 1;
  ASSERT_TRUE(a->Admit(reseeded).ok());
  EXPECT_NE(RunToEnd(*a), tokens);
}

TEST_F(SimEngineTest, TokensAreBelowTheVocabulary) {
  SimOptions small = Options();
  small.vocabulary = 6;
  EXPECT_NE(SimModelName(small), SimModelName(Options())) << "they make different tokens";
  auto engine = Make(small);
  ASSERT_TRUE(engine->Admit(Request(1, 10, 60)).ok());
  for (const uint32_t id : RunToEnd(*engine)) {
    EXPECT_GE(id, kSimFirstOrdinaryToken);
    EXPECT_LT(id, 6u);
  }
  small.vocabulary = 3;
  EXPECT_FALSE(MakeSimEngine(small).ok());
}

TEST_F(SimEngineTest, AReplayOfSyntheticLoadContinuesWithTheSameTokens) {
  auto engine = Make(Options());
  ASSERT_TRUE(engine->Admit(Request(1, 10, 20)).ok());
  const auto tokens = RunToEnd(*engine);
  SequenceRequest replay = Request(2, 10 + 7, 13);
  replay.first_index = 7;
  ASSERT_TRUE(engine->Admit(replay).ok());
  EXPECT_EQ(RunToEnd(*engine), std::vector<uint32_t>(tokens.begin() + 7, tokens.end()));
}

TEST_F(SimEngineTest, AReplayOfAPromptContinuesWithTheSameTokens) {
  auto engine = Make(Options());
  SequenceRequest first = Request(1, 3, 20);
  first.prompt = {11, 12, 13};
  ASSERT_TRUE(engine->Admit(first).ok());
  const auto tokens = RunToEnd(*engine);
  SequenceRequest replay = Request(2, 8, 15);
  replay.prompt = first.prompt;
  replay.prompt.insert(replay.prompt.end(), tokens.begin(), tokens.begin() + 5);
  replay.first_index = 5;
  ASSERT_TRUE(engine->Admit(replay).ok());
  EXPECT_EQ(RunToEnd(*engine), std::vector<uint32_t>(tokens.begin() + 5, tokens.end()));
}

TEST_F(SimEngineTest, AStopTokenIsDeliveredAndEndsTheRequest) {
  auto engine = Make(Options());
  ASSERT_TRUE(engine->Admit(Request(1, 10, 20)).ok());
  const auto tokens = RunToEnd(*engine);
  SequenceRequest stopping = Request(2, 10, 20);
  stopping.stop_token_ids = {tokens[4]};
  ASSERT_TRUE(engine->Admit(stopping).ok());
  StepOutput out;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_THAT(out.finished, IsEmpty());
  }
  ASSERT_TRUE(engine->Step(out).ok());
  ASSERT_EQ(out.finished.size(), 1u);
  EXPECT_EQ(out.finished[0].cause, FinishCause::kStop);
  EXPECT_EQ(out.tokens[0].id, tokens[4]);
  EXPECT_EQ(engine->free_kv_tokens(), 1000);
}

TEST_F(SimEngineTest, EosEndsARequestUnlessIgnored) {
  SimOptions options = Options();
  options.eos_probability = 0.2;
  auto engine = Make(options);
  ASSERT_TRUE(engine->Admit(Request(1, 10, 100)).ok());
  const auto tokens = RunToEnd(*engine);
  ASSERT_LT(tokens.size(), 100u);
  EXPECT_EQ(tokens.back(), kSimEosToken);
  SequenceRequest stubborn = Request(2, 10, 100);
  stubborn.ignore_eos = true;
  ASSERT_TRUE(engine->Admit(stubborn).ok());
  EXPECT_EQ(RunToEnd(*engine).size(), 100u);
}

TEST_F(SimEngineTest, EndsBySeedAreThoseOfTheSeedUnlessIgnored) {
  SimOptions options = Options();
  options.ends_by_seed = true;
  auto engine = Make(options);
  const auto made = [&](uint64_t seed, bool ignore_eos, uint32_t first_index = 0) {
    SequenceRequest request = Request(1, 10, 100);
    request.sampling.seed = seed;
    request.ignore_eos = ignore_eos;
    request.first_index = first_index;
    EXPECT_TRUE(engine->Admit(request).ok());
    return RunToEnd(*engine);
  };
  EXPECT_EQ(made(1, false).size(), 1u);
  const auto tokens = made(7, false);
  ASSERT_EQ(tokens.size(), 7u);
  EXPECT_EQ(tokens.back(), kSimEosToken);
  EXPECT_EQ(made(7, false, 5).size(), 2u) << "a replay ends where the first run would have";
  EXPECT_EQ(made(100, false).size(), 100u);
  EXPECT_EQ(made(uint64_t{1} << 63, false).size(), 100u);
  EXPECT_EQ(made(7, true).size(), 100u);
  EXPECT_NE(SimModelName(options), SimModelName(Options()));
}

TEST_F(SimEngineTest, HintsAreGivenOnlyWithAnEosProbability) {
  StepOutput out;
  auto plain = Make(Options());
  ASSERT_TRUE(plain->Admit(Request(1, 10, 3)).ok());
  ASSERT_TRUE(plain->Step(out).ok());
  EXPECT_THAT(out.completion_hints, IsEmpty());
  SimOptions options = Options();
  options.eos_probability = 0.25;
  auto hinting = Make(options);
  SequenceRequest request = Request(1, 10, 3);
  request.ignore_eos = true;
  ASSERT_TRUE(hinting->Admit(request).ok());
  ASSERT_TRUE(hinting->Admit(Request(2, 11, 3)).ok());
  ASSERT_TRUE(hinting->Step(out).ok());
  EXPECT_THAT(out.completion_hints, ElementsAre(0.0f, 0.25f));
}

TEST_F(SimEngineTest, SlotsAndKvAreEnforced) {
  auto engine = Make(Options());
  EXPECT_TRUE(absl::IsInvalidArgument(engine->Admit(Request(1, 400, 101))));  // sequence limit 500
  ASSERT_TRUE(engine->Admit(Request(1, 300, 101)).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(engine->Admit(Request(1, 1, 1))));
  ASSERT_TRUE(engine->Admit(Request(2, 300, 101)).ok());
  EXPECT_EQ(engine->free_kv_tokens(), 200);
  EXPECT_TRUE(absl::IsResourceExhausted(engine->Admit(Request(3, 101, 101))));
  ASSERT_TRUE(engine->Admit(Request(3, 100, 101)).ok());
  EXPECT_EQ(engine->free_kv_tokens(), 0);
  EXPECT_TRUE(engine->Cancel(2));
  EXPECT_FALSE(engine->Cancel(2));
  ASSERT_TRUE(engine->Admit(Request(4, 1, 1)).ok());
  ASSERT_TRUE(engine->Admit(Request(5, 1, 1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine->Admit(Request(6, 1, 1))));
}

TEST_F(SimEngineTest, KvCapacityTakesNoMemoryAndAnyTokenIdIsAccepted) {
  SimOptions options = Options();
  options.limits.kv_tokens = int64_t{1} << 50;
  auto engine = Make(options);
  EXPECT_LT(engine->kv_stats().pages, 1 << 21);
  SequenceRequest request = Request(1, 2, 5);
  request.prompt = {4'000'000'000, 1};
  ASSERT_TRUE(engine->Admit(request).ok());
  EXPECT_EQ(RunToEnd(*engine).size(), 5u);
}

TEST_F(SimEngineTest, MalformedRequestsAreInvalid) {
  auto engine = Make(Options());
  EXPECT_TRUE(absl::IsInvalidArgument(engine->Admit(Request(1, 0, 1))));
  EXPECT_TRUE(absl::IsInvalidArgument(engine->Admit(Request(1, 1, 0))));
  SequenceRequest request = Request(1, 5, 5);
  request.first_index = 5;
  EXPECT_TRUE(absl::IsInvalidArgument(engine->Admit(request)));
  request.first_index = 0;
  request.prompt = {1, 2};
  EXPECT_TRUE(absl::IsInvalidArgument(engine->Admit(request)));
}

TEST_F(SimEngineTest, OptionsOutOfRangeAreInvalid) {
  const auto refused = [](auto change) {
    SimOptions options = Options();
    change(options);
    return absl::IsInvalidArgument(MakeSimEngine(options).status());
  };
  EXPECT_TRUE(refused([](SimOptions& o) { o.limits.slots = 0; }));
  EXPECT_TRUE(refused([](SimOptions& o) { o.limits.kv_tokens = 0; }));
  EXPECT_TRUE(refused([](SimOptions& o) { o.cost.c_s = -1; }));
  EXPECT_TRUE(refused([](SimOptions& o) { o.eos_probability = 1; }));
}

// A simple model that must agree with the engine under random admissions, cancellations and steps.
class Model {
 public:
  struct Entry {
    int64_t prompt, output, generated;
  };
  bool Fits(int64_t prompt, int64_t output) const {
    return entries_.size() < 4 && Used() + prompt + output - 1 <= 1000;
  }
  int64_t Used() const {
    int64_t used = 0;
    for (const auto& [handle, entry] : entries_) used += entry.prompt + entry.output - 1;
    return used;
  }
  std::map<Handle, Entry> entries_;
};

TEST_F(SimEngineTest, TheFirstTokenFollowsTheLastPromptChunk) {
  SimOptions options = Options();
  options.cost = {1e-3, 0, 1e-5};
  options.plan = {.token_budget = 100};
  auto engine = Make(options);
  ASSERT_TRUE(engine->Admit(Request(1, 230, 3)).ok());
  EXPECT_EQ(engine->prefill_state()->pending_tokens(), 230);
  StepOutput out;
  for (const int64_t chunk : {100, 100, 30}) {
    const int64_t before_ns = now_ns_;
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_EQ(out.prefill_tokens, chunk);
    EXPECT_EQ(out.load_tokens, 230) << "whole from the first step on";
    EXPECT_EQ(now_ns_ - before_ns, 1'000'000 + chunk * 10'000);
    EXPECT_EQ(out.tokens.size(), chunk == 30 ? 1u : 0u);
  }
  EXPECT_EQ(engine->prefill_state()->pending_tokens(), 0);
  const BatchCost cost = {.c_s = 1, .a_s_per_token = 1, .b0_tokens = 0};
  engine->SetPrefillLevel(PrefillLevel{cost.Seconds(20), cost});
  ASSERT_TRUE(engine->Admit(Request(2, 50, 1)).ok());
  // One row of the level's 20 is taken by each of the first request's last two decodes.
  for (const int64_t chunk : {19, 19, 12}) {
    ASSERT_TRUE(engine->Step(out).ok());
    EXPECT_EQ(out.prefill_tokens, chunk);
  }
  EXPECT_EQ(engine->active(), 0);
  EXPECT_EQ(Make(Options())->prefill_state(), std::nullopt);
}

TEST_F(SimEngineTest, APlannerChangesTheTimesOfTokensOnly) {
  SimOptions planned = Options();
  planned.plan = {.token_budget = 40};
  auto whole = Make(Options()), chunks = Make(planned);
  std::map<Handle, std::vector<uint32_t>> ids[2];
  int side = 0;
  for (DecodeEngine* engine : {whole.get(), chunks.get()}) {
    StepOutput out;
    Handle next = 1;
    while (next <= 60 || engine->active() > 0) {
      while (next <= 60 && engine->free_slots() > 0) {
        SequenceRequest request = Request(next, 10 + 3 * static_cast<int64_t>(next), 7);
        request.sampling.seed = next;
        ASSERT_TRUE(engine->Admit(request).ok());
        ++next;
      }
      ASSERT_TRUE(engine->Step(out).ok());
      for (const auto& token : out.tokens) ids[side][token.handle].push_back(token.id);
    }
    EXPECT_EQ(engine->free_kv_tokens(), 1000);
    ++side;
  }
  EXPECT_EQ(ids[0].size(), 60u);
  EXPECT_EQ(ids[0], ids[1]);
}

TEST_F(SimEngineTest, RandomOperationsAgreeWithASimpleModel) {
  auto engine = Make(Options());
  Model model;
  Rng rng(3);
  Handle next = 1;
  StepOutput out;
  for (int i = 0; i < 5000; ++i) {
    const uint64_t action = rng.Below(3);
    if (action == 0) {
      const auto prompt = static_cast<int64_t>(1 + rng.Below(300)),
                 output = static_cast<int64_t>(1 + rng.Below(40));
      const bool fits = model.Fits(prompt, output);
      ASSERT_EQ(engine->Admit(Request(next, prompt, output)).ok(), fits);
      if (fits) model.entries_[next] = {prompt, output, 0};
      ++next;
    } else if (action == 1 && rng.Below(8) == 0) {
      const Handle handle = 1 + rng.Below(next);
      ASSERT_EQ(engine->Cancel(handle), model.entries_.erase(handle) > 0);
    } else {
      int64_t load = 0;
      for (const auto& [handle, entry] : model.entries_) load += entry.prompt + entry.generated;
      const size_t active = model.entries_.size();
      ASSERT_TRUE(engine->Step(out).ok());
      ASSERT_EQ(out.load_tokens, load);
      ASSERT_EQ(out.tokens.size(), active);
      size_t finished = 0;
      for (auto it = model.entries_.begin(); it != model.entries_.end();) {
        const bool done = ++it->second.generated == it->second.output;
        finished += done;
        it = done ? model.entries_.erase(it) : std::next(it);
      }
      ASSERT_EQ(out.finished.size(), finished);
    }
    ASSERT_EQ(engine->free_kv_tokens(), 1000 - model.Used());
    ASSERT_EQ(engine->active(), static_cast<int32_t>(model.entries_.size()));
    for (const auto& sequence : engine->resident()) {
      const auto& entry = model.entries_.at(sequence.handle);
      ASSERT_EQ(sequence.generated_tokens, entry.generated);
      ASSERT_EQ(sequence.kv_tokens, entry.prompt + entry.generated);
    }
  }
}

TEST_F(SimEngineTest, PreemptedRequestsGenerateTheSameTokens) {
  SimOptions options = Options();
  options.limits = {4, 300, 200};
  auto alone = Make(options), engine = Make(options);
  std::map<Handle, std::vector<uint32_t>> whole, got;
  std::vector<SequenceRequest> waiting;
  for (Handle handle = 9; handle > 0; --handle) {
    SequenceRequest request = Request(handle, 20 + 10 * static_cast<int64_t>(handle), 90);
    request.sampling.seed = handle;
    ASSERT_TRUE(alone->Admit(request).ok());
    whole[handle] = RunToEnd(*alone);
    request.kv_on_demand = true;
    waiting.push_back(request);
  }
  StepOutput out;
  int preempted = 0;
  while (!waiting.empty() || engine->active() > 0) {
    while (!waiting.empty()) {
      const SequenceRequest& next = waiting.back();
      SequenceRequest again = next;
      const auto made = static_cast<int64_t>(got[next.handle].size());
      again.prompt_length += made;
      again.max_new_tokens -= made;
      again.first_index += made;
      if (!engine->Admit(again).ok()) break;
      waiting.pop_back();
    }
    ASSERT_TRUE(engine->Step(out).ok());
    ASSERT_LE(out.load_tokens, 300);
    for (const auto& token : out.tokens) got[token.handle].push_back(token.id);
    for (const Handle handle : out.preempted) {
      ++preempted;
      SequenceRequest request = Request(handle, 20 + 10 * static_cast<int64_t>(handle), 90);
      request.sampling.seed = handle;
      request.kv_on_demand = true;
      waiting.push_back(request);
    }
  }
  EXPECT_GT(preempted, 3);
  EXPECT_EQ(got, whole);
  EXPECT_EQ(engine->free_kv_tokens(), 300);
}

}  // namespace
}  // namespace bfio::worker
