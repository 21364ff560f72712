// The batch schedulers: the paper's worked example, a token-by-token reference, and invariants on random
// traffic.
#include "worker/scheduler/batch_scheduler.h"

#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/scheduler/batch_check.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

BatchScheduler Make(absl::string_view name, BatchOrder order = BatchOrder::kFcfs) {
  auto made = BatchScheduler::Create(name, order);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

std::vector<std::pair<int, int>> Form(absl::string_view name, const std::vector<BatchRequest>& requests,
                                      const BatchCapacity& capacity, BatchOrder order = BatchOrder::kFcfs) {
  std::vector<Chunk> batch;
  Make(name, order).Form(requests, capacity, batch);
  std::vector<std::pair<int, int>> pairs;
  for (const Chunk& chunk : batch) pairs.emplace_back(chunk.which, chunk.rows);
  return pairs;
}

void Apply(absl::Span<const Chunk> batch, std::vector<BatchRequest>& requests) {
  for (const Chunk& chunk : batch) {
    BatchRequest& request = requests[chunk.which];
    request.resident = true;
    (request.prefill_left > 0 ? request.prefill_left : request.decode_left) -= chunk.rows;
  }
}

// A batch as text, such as "ABC Dp": decodes by their letter, prompts with a p.
std::string Letters(absl::Span<const Chunk> batch, const std::vector<BatchRequest>& requests) {
  std::string decodes, prompts;
  for (const Chunk& chunk : batch) {
    const char letter = static_cast<char>('A' + chunk.which);
    if (requests[chunk.which].prefill_left == 0) {
      decodes += letter;
    } else {
      absl::StrAppend(&prompts, decodes.empty() && prompts.empty() ? "" : " ", std::string(1, letter), "p");
    }
  }
  return absl::StrCat(decodes, prompts);
}

// A, B and C have 2, 4 and 3 decodes left; D and E, with a prompt token and a decode each, arrive during
// batch 1.
std::vector<std::string> WorkedExample(absl::string_view name, int64_t budget) {
  BatchScheduler scheduler = Make(name);
  std::vector<BatchRequest> requests = {{0, 2}, {0, 4}, {0, 3}};
  std::vector<std::string> batches;
  std::vector<Chunk> batch;
  for (int i = 0; i < 20; ++i) {
    scheduler.Form(requests, {budget}, batch);
    if (batch.empty()) break;
    std::sort(batch.begin(), batch.end(), [](const Chunk& a, const Chunk& b) { return a.which < b.which; });
    batches.push_back(Letters(batch, requests));
    Apply(batch, requests);
    if (i == 0) requests.insert(requests.end(), 2, {1, 1});
  }
  return batches;
}

TEST(BatchSchedulerTest, ThePapersWorkedExample) {
  EXPECT_THAT(WorkedExample("vllm_v0", 4), ElementsAre("ABC", "Dp Ep", "ABCD", "BCE", "B"));
  EXPECT_THAT(WorkedExample("faster_transformer", 4), ElementsAre("ABC", "ABC", "BC", "B", "Dp Ep", "DE"));
  EXPECT_THAT(WorkedExample("sarathi", 4), ElementsAre("ABC", "ABC Dp", "BCD Ep", "BE"));
  EXPECT_THAT(WorkedExample("orca", 5), ElementsAre("ABC", "ABC Dp Ep", "BCDE", "B"));
  // With a budget of 5 orca ends as soon as sarathi does with 4; with 4 it lacks one token for C.
  EXPECT_THAT(WorkedExample("orca", 4), ElementsAre("ABC", "AB Dp Ep", "BCDE", "BC"));
}

TEST(BatchSchedulerTest, SarathiChunksTheOldestPromptsWithinTheBudget) {
  EXPECT_THAT(Form("sarathi", {{100, 9}, {0, 3}, {30, 9}, {0, 1}}, {.token_budget = 512}),
              ElementsAre(std::pair(1, 1), std::pair(3, 1), std::pair(0, 100), std::pair(2, 30)));
  EXPECT_THAT(Form("sarathi", {{0, 3}, {90, 9}, {30, 9}}, {.token_budget = 101}),
              ElementsAre(std::pair(0, 1), std::pair(1, 90), std::pair(2, 10)));
  EXPECT_THAT(Form("orca", {{0, 3}, {90, 9}, {30, 9}}, {.token_budget = 90}), ElementsAre(std::pair(1, 90)));
  EXPECT_THAT(Form("sarathi", {}, {.token_budget = 5}), IsEmpty());
  EXPECT_THAT(Form("sarathi", {{0, 0}}, {.token_budget = 5}), IsEmpty());
}

TEST(BatchSchedulerTest, OrdersHoldWithinAClass) {
  const std::vector<BatchRequest> requests = {{50, 10, 1}, {20, 10, 1}, {0, 7, 1}, {0, 5, 3}, {20, 10, 2}};
  const BatchCapacity capacity = {.token_budget = 30};
  EXPECT_THAT(Form("sarathi", requests, capacity, BatchOrder::kFcfs),
              ElementsAre(std::pair(2, 1), std::pair(3, 1), std::pair(0, 28)));
  EXPECT_THAT(Form("sarathi", requests, capacity, BatchOrder::kShortest),
              ElementsAre(std::pair(3, 1), std::pair(2, 1), std::pair(1, 20), std::pair(4, 8)));
  EXPECT_THAT(Form("sarathi", requests, capacity, BatchOrder::kPriority),
              ElementsAre(std::pair(3, 1), std::pair(2, 1), std::pair(4, 20), std::pair(0, 8)));
  EXPECT_THAT(Form("orca", requests, capacity, BatchOrder::kPriority),
              ElementsAre(std::pair(4, 20), std::pair(0, 10)));
  std::vector<BatchRequest> aged = requests;
  aged[1].senior_step = -7;
  aged[2].senior_step = -2;
  aged[3].priority = 1;
  EXPECT_THAT(Form("sarathi", aged, capacity, BatchOrder::kUrgency),
              ElementsAre(std::pair(2, 1), std::pair(3, 1), std::pair(4, 20), std::pair(1, 8)))
      << "the priority first, then who has waited longest";
}

TEST(BatchSchedulerTest, ARequestWithoutSlotOrKvBlocksOnlyLaterOnes) {
  BatchRequest fresh = {10, 5, 0, false, 100};
  std::vector<BatchRequest> requests = {fresh, fresh, fresh, {10, 5}};
  requests[1].kv_tokens = 300;
  EXPECT_THAT(Form("sarathi", requests, {.token_budget = 100, .free_kv_tokens = 350}),
              ElementsAre(std::pair(0, 10), std::pair(3, 10)))
      << "the third would fit, and overtakes no other";
  EXPECT_THAT(Form("sarathi", requests, {.token_budget = 100, .free_slots = 2}),
              ElementsAre(std::pair(0, 10), std::pair(1, 10), std::pair(3, 10)));
  requests.push_back({0, 5});
  for (BatchRequest& request : requests) request.resident = request.prefill_left == 0;
  EXPECT_THAT(Form("vllm_v0", requests, {.token_budget = 100, .free_slots = 0}), ElementsAre(std::pair(4, 1)))
      << "decodes go on, or no slot would ever get free";
}

TEST(BatchSchedulerTest, PromptsLongerThanTheBudgetStopWholePromptSchedulers) {
  // The paper's "Vertex C" of the second workload: 290 prompt tokens with a budget of 128.
  const std::vector<BatchRequest> requests = {{290, 990}, {20, 10}, {0, 0}};
  for (const char* name : {"vllm_v0", "faster_transformer"}) {
    EXPECT_THAT(Form(name, requests, {.token_budget = 128}), IsEmpty());
    EXPECT_THAT(Form(name, requests, {.token_budget = 290}), ElementsAre(std::pair(0, 290)));
  }
  // Under vllm_v0 even the decodes wait for the prompt.
  EXPECT_THAT(Form("vllm_v0", {{0, 4}, {290, 990}}, {.token_budget = 128}), IsEmpty());
  for (const char* name : {"sarathi", "orca"}) {
    EXPECT_THAT(Form(name, requests, {.token_budget = 128}), ElementsAre(std::pair(0, 128)));
  }
}

TEST(BatchSchedulerTest, UnknownNamesAreRefusedWithTheKnownOnes) {
  EXPECT_THAT(SchedulerNames(), ElementsAre("sarathi", "orca", "vllm_v0", "faster_transformer"));
  EXPECT_THAT(
      std::string(BatchScheduler::Create("vllm").status().message()),
      HasSubstr("unknown scheduler 'vllm'; must be one of sarathi, orca, vllm_v0, faster_transformer"));
  EXPECT_EQ(ParseBatchOrder("shortest").value(), BatchOrder::kShortest);
  EXPECT_THAT(std::string(ParseBatchOrder("lifo").status().message()), HasSubstr("unknown order 'lifo'"));
}

// --- random traffic ---

// Reference: tokens are given one at a time, each to the first request in line that may have one more.
std::vector<int64_t> TokenByToken(const std::vector<BatchRequest>& requests, const BatchCapacity& capacity,
                                  BatchOrder order, bool decodes_first) {
  std::vector<int32_t> line(requests.size());
  std::iota(line.begin(), line.end(), 0);
  std::stable_sort(line.begin(), line.end(), [&](int32_t a, int32_t b) {
    const BatchRequest &x = requests[a], &y = requests[b];
    if (order == BatchOrder::kFcfs) return false;
    const auto overdue = [](const BatchRequest& r) {
      return r.resident && r.passed_over >= kPatienceBatches;
    };
    if (overdue(x) || overdue(y)) return overdue(x) && !overdue(y);
    if (order == BatchOrder::kPriority) return x.priority > y.priority;
    if (order == BatchOrder::kUrgency)
      return x.priority != y.priority ? x.priority > y.priority : x.senior_step < y.senior_step;
    return x.prefill_left + x.decode_left < y.prefill_left + y.decode_left;
  });
  std::vector<int64_t> given(requests.size(), 0);
  int64_t slots = capacity.free_slots, kv = capacity.free_kv_tokens, prompts = capacity.prefill_tokens;
  const auto give = [&](bool to_decodes) {
    bool blocked = false;
    if (!to_decodes && prompts == 0) return false;
    for (const int32_t i : line) {
      const BatchRequest& request = requests[i];
      if (request.available() == given[i] || request.decoding() != to_decodes) continue;
      if (!request.resident && given[i] == 0) {
        blocked = blocked || slots == 0 || kv < request.kv_tokens;
        if (blocked) continue;
        --slots;
        kv -= request.kv_tokens;
      }
      ++given[i];
      if (!to_decodes) --prompts;
      return true;
    }
    return false;
  };
  for (int64_t token = 0; token < capacity.token_budget; ++token) {
    if (!give(decodes_first) && !give(!decodes_first)) break;
  }
  return given;
}

// Random traffic through one scheduler, checked for every batch.
class Traffic {
 public:
  Traffic(absl::string_view name, BatchOrder order, uint64_t seed)
      : rng_(seed), scheduler_(Make(name, order)), order_(order) {
    budget_ = 1 + static_cast<int64_t>(rng_.Below(200));
    slots_ = 1 + static_cast<int64_t>(rng_.Below(12));
    kv_ = 300 + static_cast<int64_t>(rng_.Below(1000));
    // Schedulers that take prompts whole would not start any with a bound on prompt tokens.
    if (!scheduler_.whole_prompts() && rng_.Below(2) == 0) piece_ = 1 + static_cast<int64_t>(rng_.Below(50));
  }

  // Runs until all requests have ended or a violation is reported.
  void Run() {
    std::vector<Chunk> batch;
    for (int step = 0; step < 60 || Left() > 0; ++step) {
      if (step < 60 && rng_.Below(3) == 0) Arrive();
      ASSERT_LT(step, 30'000) << "traffic does not end";
      const BatchCapacity capacity = Capacity();
      const std::vector<BatchRequest> before = requests_;
      scheduler_.Form(requests_, capacity, batch);
      ASSERT_TRUE(CheckBatch(before, capacity, batch).ok()) << CheckBatch(before, capacity, batch);
      ASSERT_EQ(batch.empty(), AvailableTokens(before, capacity, order_) == 0) << "stuck";
      if (scheduler_.work_conserving()) {
        const absl::Status conserved = CheckWorkConservation(before, capacity, order_, batch);
        ASSERT_TRUE(conserved.ok()) << conserved;
        ExpectOracle(before, capacity, batch);
      }
      Take(batch);
    }
    for (size_t i = 0; i < requests_.size(); ++i) {
      EXPECT_EQ(prefilled_[i] + decoded_[i], total_[i]) << "each token once";
    }
  }

 private:
  void Arrive() {
    BatchRequest request;
    // Prompts are short enough for every scheduler to start them.
    const uint64_t longest =
        static_cast<uint64_t>(scheduler_.whole_prompts() ? std::min<int64_t>(budget_, 250) : 250);
    request.prefill_left = 1 + static_cast<int64_t>(rng_.Below(longest));
    request.decode_left = 1 + static_cast<int64_t>(rng_.Below(40));
    request.priority = static_cast<int64_t>(rng_.Below(3));
    request.senior_step = static_cast<int64_t>(rng_.Below(20)) - 10;
    request.resident = false;
    request.kv_tokens = request.prefill_left + request.decode_left;
    requests_.push_back(request);
    total_.push_back(request.kv_tokens);
    prompt_.push_back(request.prefill_left);
    prefilled_.push_back(0);
    decoded_.push_back(0);
  }

  BatchCapacity Capacity() const {
    BatchCapacity capacity = {budget_, slots_, kv_};
    if (piece_ > 0) capacity.prefill_tokens = piece_;
    for (const BatchRequest& request : requests_) {
      if (!request.resident || request.available() == 0) continue;
      --capacity.free_slots;
      capacity.free_kv_tokens -= request.kv_tokens;
    }
    return capacity;
  }

  int64_t Left() const {
    int64_t left = 0;
    for (const BatchRequest& request : requests_) left += request.prefill_left + request.decode_left;
    return left;
  }

  void ExpectOracle(const std::vector<BatchRequest>& before, const BatchCapacity& capacity,
                    absl::Span<const Chunk> batch) const {
    std::vector<int64_t> given(before.size(), 0);
    for (const Chunk& chunk : batch) given[chunk.which] = chunk.rows;
    EXPECT_EQ(given, TokenByToken(before, capacity, order_, scheduler_.name() == "sarathi"));
  }

  void Take(absl::Span<const Chunk> batch) {
    for (const Chunk& chunk : batch) {
      const bool decode = requests_[chunk.which].prefill_left == 0;
      ASSERT_TRUE(!decode || prefilled_[chunk.which] == prompt_[chunk.which]);
      (decode ? decoded_ : prefilled_)[chunk.which] += chunk.rows;
    }
    Apply(batch, requests_);
    CountPassedOver(batch, requests_);
  }

  Rng rng_;
  BatchScheduler scheduler_;
  const BatchOrder order_;
  int64_t budget_, slots_, kv_, piece_ = 0;
  std::vector<BatchRequest> requests_;
  std::vector<int64_t> total_, prompt_, prefilled_, decoded_;
};

TEST(BatchSchedulerPropertyTest, EveryBatchOnRandomTrafficMeetsTheRules) {
  for (const std::string& name : SchedulerNames()) {
    for (const BatchOrder order :
         {BatchOrder::kFcfs, BatchOrder::kShortest, BatchOrder::kPriority, BatchOrder::kUrgency}) {
      for (uint64_t seed = 1; seed <= 25; ++seed) {
        SCOPED_TRACE(absl::StrCat(name, ", order ", static_cast<int>(order), ", seed ", seed));
        Traffic(name, order, seed).Run();
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(BatchCheckTest, WrongBatchesAreNamed) {
  const std::vector<BatchRequest> requests = {{5, 3}, {0, 3}, {4, 1, 0, false, 50}, {0, 0}};
  const BatchCapacity capacity = {.token_budget = 6, .free_slots = 1, .free_kv_tokens = 49};
  const auto message = [&](std::vector<Chunk> batch) {
    return std::string(CheckBatch(requests, capacity, batch).message());
  };
  EXPECT_EQ(message({{0, 5}, {1, 1}}), "");
  EXPECT_THAT(message({{1, 2}}), HasSubstr("request 1 gets 2 tokens, but the available number is 1"));
  EXPECT_THAT(message({{0, 6}}), HasSubstr("request 0 gets 6 tokens, but the available number is 5"));
  EXPECT_THAT(message({{3, 1}}), HasSubstr("request 3 gets 1 tokens, but the available number is 0"));
  EXPECT_THAT(message({{0, 2}, {0, 2}}), HasSubstr("request 0 is in the batch twice"));
  EXPECT_THAT(message({{4, 1}}), HasSubstr("unknown request 4"));
  EXPECT_THAT(message({{0, 5}, {2, 2}}), HasSubstr("7 tokens exceed the budget of 6"));
  EXPECT_THAT(message({{2, 2}}), HasSubstr("50 KV tokens exceed the free ones, 49"));
  EXPECT_THAT(
      std::string(CheckBatch(requests, {.token_budget = 9, .prefill_tokens = 3}, {{{0, 4}}}).message()),
      HasSubstr("4 prompt tokens exceed the 3 allowed"));
  EXPECT_THAT(std::string(CheckWorkConservation(requests, capacity, BatchOrder::kFcfs, {{{0, 4}}}).message()),
              HasSubstr("a batch of 4 tokens where 6 are available"));
}

}  // namespace
}  // namespace bfio::worker
