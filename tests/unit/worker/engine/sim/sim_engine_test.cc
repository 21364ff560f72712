#include "worker/engine/sim/sim_engine.h"

#include "gmock/gmock.h"
#include "tests/testing/decode_schedule.h"

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

// Alone, or in batches with prompts in chunks, cancellations, replays and preemptions.
TEST_F(SimEngineTest, TokensDependOnPromptSeedAndIndexOnly) {
  int preemptions = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimOptions options = Options();
    options.limits.kv_tokens = 100;
    options.eos_probability = 0.05;
    options.vocabulary = 50;
    int made = 0;
    const auto make = [&] {
      if (made++ > 0 && seed % 2 == 0) options.token_budget = 20;
      return Make(options);
    };
    EXPECT_GT(testing::RunSchedule(seed, make, {.vocab = 50, .on_demand = 0.7, .preemptions = &preemptions}),
              8);
  }
  EXPECT_GT(preemptions, 20);
  SimOptions small = Options();
  small.vocabulary = 6;
  EXPECT_NE(SimModelName(small), SimModelName(Options())) << "they make different tokens";
  const auto engine = Make(small);
  ASSERT_TRUE(engine->Admit(Request(1, 10, 60)).ok());
  const auto tokens = RunToEnd(*engine);
  for (const uint32_t id : tokens) EXPECT_TRUE(id >= kSimFirstOrdinaryToken && id < 6) << id;
  SequenceRequest reseeded = Request(2, 10, 60);
  reseeded.sampling.seed = 1;
  ASSERT_TRUE(engine->Admit(reseeded).ok());
  EXPECT_NE(RunToEnd(*engine), tokens);
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

}  // namespace
}  // namespace bfio::worker
