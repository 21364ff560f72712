// The engine model on random traffic: slots and KV as the begun requests take them, and the rules that every
// batch must meet.
#include "worker/scheduler/engine_model.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "gtest/gtest.h"
#include "worker/scheduler/batch_check.h"

namespace bfio::worker {
namespace {

// Random traffic through the model, with independent accounts of every request.
class ModelTraffic {
 public:
  ModelTraffic(const std::string& scheduler, BatchOrder order, uint64_t seed)
      : rng_(seed), engine_(OptionsFor(rng_), *BatchScheduler::Create(scheduler, order)) {}

  void Run() {
    EngineModel::Ended ended;
    for (int step = 0; step < 80 || engine_.tokens() > 0; ++step) {
      if (step < 80 && rng_.Below(2) == 0) Arrive();
      if (rng_.Below(4) == 0) engine_.set_token_budget(kLongest + static_cast<int64_t>(rng_.Below(200)));
      const std::vector<BatchRequest> before(engine_.requests().begin(), engine_.requests().end());
      const int64_t had = engine_.tokens();
      const auto seconds = engine_.Start();
      ASSERT_EQ(seconds.has_value(), had > 0) << "step " << step;
      if (!seconds) continue;
      ExpectRules(before);
      engine_.End(ended);
      for (const int64_t id : ended.prefilled) ++lives_.at(id).prefilled;
      for (const int64_t id : ended.decoded) {
        ASSERT_EQ(lives_.at(id).prefilled, 1) << "a decode before the prompt's end";
        ++lives_.at(id).decoded;
      }
      for (const int64_t id : ended.completed) {
        Life& life = lives_.at(id);
        EXPECT_EQ(life.prefilled, 1);
        EXPECT_EQ(life.decoded, life.decode);
        kv_ -= life.prompt + life.decode;
        --begun_;
      }
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(kv_, 0);
    EXPECT_GT(fullest_, 1) << "requests overlap";
  }

 private:
  static constexpr int64_t kLongest = 120;
  struct Life {
    int64_t prompt, decode;
    int64_t prefilled = 0, decoded = 0;
  };
  static EngineModelOptions OptionsFor(Rng& rng) {
    EngineModelOptions options;
    options.token_budget = kLongest + static_cast<int64_t>(rng.Below(200));
    options.slots = 2 + static_cast<int64_t>(rng.Below(10));
    options.kv_tokens = 300 + static_cast<int64_t>(rng.Below(700));
    return options;
  }

  void Arrive() {
    ModelRequest request;
    request.id = next_id_++;
    request.prefill = 1 + static_cast<int64_t>(rng_.Below(kLongest));
    request.decode = 1 + static_cast<int64_t>(rng_.Below(40));
    request.priority = static_cast<int64_t>(rng_.Below(3));
    lives_[request.id] = {request.prefill, request.decode};
    engine_.Arrive(request);
  }

  void ExpectRules(const std::vector<BatchRequest>& before) {
    const BatchCapacity capacity = {engine_.token_budget(), engine_.options().slots - begun_,
                                    engine_.options().kv_tokens - kv_};
    const absl::Status rules = CheckBatch(before, capacity, engine_.batch());
    ASSERT_TRUE(rules.ok()) << rules;
    if (engine_.scheduler().work_conserving()) {
      const absl::Status conserved =
          CheckWorkConservation(before, capacity, engine_.scheduler().order(), engine_.batch());
      ASSERT_TRUE(conserved.ok()) << conserved;
    }
    for (const Chunk& chunk : engine_.batch()) {
      if (before[chunk.which].resident) continue;
      ++begun_;
      kv_ += before[chunk.which].prefill_left + before[chunk.which].decode_left;
    }
    fullest_ = std::max(fullest_, begun_);
    ASSERT_LE(begun_, engine_.options().slots);
    ASSERT_LE(kv_, engine_.options().kv_tokens);
    ASSERT_LE(engine_.resident_tokens(), kv_);
  }

  Rng rng_;
  EngineModel engine_;
  absl::flat_hash_map<int64_t, Life> lives_;
  int64_t next_id_ = 0, begun_ = 0, kv_ = 0, fullest_ = 0;
};

TEST(EngineModelPropertyTest, RandomTrafficMeetsTheRulesUnderEveryScheduler) {
  for (const std::string& name : SchedulerNames()) {
    for (const BatchOrder order : {BatchOrder::kFcfs, BatchOrder::kShortest, BatchOrder::kPriority}) {
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        SCOPED_TRACE(absl::StrCat(name, ", order ", static_cast<int>(order), ", seed ", seed));
        ModelTraffic(name, order, seed).Run();
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace bfio::worker
