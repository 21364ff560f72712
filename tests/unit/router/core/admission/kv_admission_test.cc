// The router's KV-memory admission: what it admits, against what the admitted requests then hold.
#include "router/core/admission/kv_admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/rng.h"
#include "router/core/lookahead/fixed_length.h"

namespace bfio::core {
namespace {

// Geometric lengths beyond the first token: every later token is the last with the same probability.
class GeometricLookahead final : public NoLookahead {
 public:
  explicit GeometricLookahead(double ends) : stays_(1 - ends) {}
  absl::string_view name() const override { return "geometric"; }
  bool predicts() const override { return true; }
  int64_t Lifetime(const Resident& resident, const PlanTime& time, absl::Span<const int64_t> steps,
                   absl::Span<double> alive) const override {
    Fill(steps, alive);
    return ProgressOf(resident, time).steps_left;
  }
  int64_t Lifetime(const WaitingView& request, absl::Span<const int64_t> steps,
                   absl::Span<double> alive) override {
    Fill(steps, alive);
    return request.max_new_tokens;
  }

 private:
  void Fill(absl::Span<const int64_t> steps, absl::Span<double> alive) const {
    for (size_t k = 0; k < steps.size(); ++k) alive[k] = std::pow(stays_, static_cast<double>(steps[k]));
  }
  double stays_;
};

// One worker at the step of a plan: its residents as known up to that step, and the waiting requests.
struct Case {
  std::vector<Resident> residents;
  // Steps that each resident actually stays, from the plan's step on.
  std::vector<int64_t> stays;
  std::vector<WaitingView> waiting;
  std::vector<int64_t> outputs;
  int64_t memory = 0;

  // Takes the waiting requests that fit, in order. Returns their indices in `waiting`.
  std::vector<size_t> Admit(KvAdmission& admission, Lookahead& lookahead) {
    KvAdmission::Worker worker;
    worker.residents = residents;
    worker.time = {100, 101};
    worker.kv_tokens = memory;
    for (const Resident& resident : residents) worker.load_tokens += Tokens(resident);
    KvCapacity capacity;
    capacity.Reset(admission.MakeOutlook(lookahead, {&worker, 1}, absl::MakeSpan(waiting)));
    std::vector<size_t> taken;
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (!capacity.Fits(waiting[i].kv_need, 0)) continue;
      capacity.Put(waiting[i].kv_need, 0, +1);
      taken.push_back(i);
    }
    return taken;
  }
  static int64_t Tokens(const Resident& resident) {
    return resident.prefill_tokens + 101 - resident.first_step;
  }
  // The largest number of tokens that residents and `taken` ever hold together.
  int64_t Peak(const std::vector<size_t>& taken) const {
    std::vector<std::pair<int64_t, int64_t>> held;  // tokens at the plan's step, and steps to stay
    for (size_t i = 0; i < residents.size(); ++i) held.emplace_back(Tokens(residents[i]), stays[i]);
    for (const size_t i : taken) held.emplace_back(waiting[i].prefill_tokens, outputs[i]);
    int64_t peak = 0;
    for (const auto& [tokens, last] : held) {
      int64_t sum = 0;  // at the last step of this request
      for (const auto& [other, stay] : held) sum += stay >= last && stay > 0 ? other + last - 1 : 0;
      peak = std::max(peak, sum);
    }
    return peak;
  }
  int64_t HeldNow() const {
    int64_t sum = 0;
    for (size_t i = 0; i < residents.size(); ++i) sum += stays[i] > 0 ? Tokens(residents[i]) : 0;
    return sum;
  }
};

int64_t Below(Rng& rng, int64_t bound) {
  return static_cast<int64_t>(rng.Below(static_cast<uint64_t>(bound)));
}

void AddResident(Case& of, int64_t prompt, int64_t made, int64_t stay, int64_t most) {
  Resident resident = {.id = of.residents.size() + 1,
                       .first_step = 101 - made,
                       .prefill_tokens = prompt,
                       .max_new_tokens = most,
                       .expected_tokens = made + stay};
  of.residents.push_back(resident);
  of.stays.push_back(stay);
}

void AddWaiting(Case& of, int64_t prompt, int64_t output, int64_t most) {
  WaitingView view = {.id = 1000 + of.waiting.size(),
                      .prefill_tokens = prompt,
                      .kv_reserve_tokens = prompt + most - 1,
                      .predicted_output_tokens = output,
                      .max_new_tokens = most};
  of.waiting.push_back(view);
  of.outputs.push_back(output);
}

TEST(KvAdmission, KnownLengthsNeverExceedMemoryAndAnyFitsAnEmptyWorker) {
  const auto oracle = *MakeLookahead("oracle");
  KvAdmission admission(*ParseKvAdmission("kv_feasible"));
  Rng rng(5);
  int64_t taken_all = 0, reserved_all = 0;
  for (int trial = 0; trial < 8'000; ++trial) {
    Case c;
    const int64_t most = 1 + Below(rng, rng.Below(4) == 0 ? 3000 : 60);
    const int64_t sizes = 1 + Below(rng, 300);
    for (uint64_t n = rng.Below(6); n > 0; --n) {
      const int64_t length = 1 + Below(rng, most), made = Below(rng, length);
      AddResident(c, 1 + Below(rng, sizes), made, length - made, most);
    }
    for (uint64_t n = rng.Below(12); n > 0; --n)
      AddWaiting(c, 1 + Below(rng, sizes), 1 + Below(rng, most), most);
    // Memory is at least what the residents need to their end, which holds whenever admission has admitted
    // them.
    c.memory = std::max(c.Peak({}), most + sizes) + Below(rng, 3 * (most + sizes));
    const std::vector<size_t> taken = c.Admit(admission, *oracle);
    ASSERT_LE(c.Peak(taken), c.memory) << "trial " << trial;
    if (c.residents.empty() && !c.waiting.empty()) {
      ASSERT_FALSE(taken.empty());
    }
    taken_all += static_cast<int64_t>(taken.size());
    int64_t reserved = 0;
    for (const Resident& resident : c.residents) reserved += resident.prefill_tokens + most - 1;
    for (const WaitingView& view : c.waiting) {
      if (reserved + view.kv_reserve_tokens > c.memory) continue;
      reserved += view.kv_reserve_tokens;
      ++reserved_all;
    }
  }
  EXPECT_GT(taken_all, reserved_all * 3 / 2) << "more than by reservation, or nothing is gained";
}

// How often of `draws` times the taken requests exceed the memory, when lengths have this mean.
int Overflows(Case c, const std::vector<size_t>& taken, double mean, int draws, Rng& rng) {
  const auto draw = [&](int64_t limit) {
    const double steps = std::log(1 - rng.Uniform()) / std::log(1 - 1 / mean);
    return std::clamp<int64_t>(1 + static_cast<int64_t>(steps), 1, limit);
  };
  int over = 0;
  for (int i = 0; i < draws; ++i) {
    for (size_t r = 0; r < c.stays.size(); ++r)
      c.stays[r] = draw(c.residents[r].max_new_tokens - (101 - c.residents[r].first_step));
    for (size_t w = 0; w < c.outputs.size(); ++w) c.outputs[w] = draw(c.waiting[w].max_new_tokens);
    over += c.Peak(taken) > c.memory ? 1 : 0;
  }
  return over;
}

TEST(KvAdmission, OverflowIsNoMoreLikelyThanTheConfidenceAllows) {
  for (const double confidence : {0.6, 0.9, 0.99}) {
    KvAdmission admission({.kind = KvAdmissionOptions::Kind::kFeasible, .confidence = confidence});
    Rng rng(11);
    constexpr int kCases = 60, kDraws = 200;
    int over = 0;
    int64_t taken_all = 0, reserved_all = 0;
    for (int trial = 0; trial < kCases; ++trial) {
      const double mean = 20 + 200 * rng.Uniform();
      GeometricLookahead lookahead(1 / mean);
      Case c;
      const auto most = static_cast<int64_t>(10 * mean);
      const int64_t sizes = 1 + Below(rng, 1500);
      for (uint64_t n = rng.Below(30); n > 0; --n)
        AddResident(c, 1 + Below(rng, sizes), Below(rng, 300), 1, 400 + most);
      for (int n = 0; n < 80; ++n) AddWaiting(c, 1 + Below(rng, sizes), 1, most);
      c.memory = c.HeldNow() + most + 10 * sizes;
      const std::vector<size_t> taken = c.Admit(admission, lookahead);
      taken_all += static_cast<int64_t>(taken.size());
      reserved_all += c.memory / (sizes / 2 + most);
      over += Overflows(c, taken, mean, kDraws, rng);
    }
    EXPECT_LE(over, (1 - confidence) * kCases * kDraws) << "confidence " << confidence;
    if (confidence < 0.7) {
      EXPECT_GT(over, 0) << "the bound is not so loose that nothing ever happens";
    }
    EXPECT_GT(taken_all, reserved_all * 6 / 5);
  }
}

TEST(KvAdmission, ALimitOfHalfTheMemoryThatIsRarelyReachedAdmitsOthers) {
  KvAdmission admission({.kind = KvAdmissionOptions::Kind::kFeasible});
  Rng rng(17);
  constexpr int kCases = 30, kDraws = 200;
  int over = 0;
  for (int trial = 0; trial < kCases; ++trial) {
    const double mean = 500 + 3000 * rng.Uniform();
    GeometricLookahead lookahead(1 / mean);
    Case c;
    const auto most = static_cast<int64_t>((15 + 10 * rng.Uniform()) * mean);
    for (int n = 0; n < 80; ++n) AddWaiting(c, 1 + Below(rng, 200), 1, most);
    c.memory = 2 * most;
    const std::vector<size_t> taken = c.Admit(admission, lookahead);
    // 30 to 50 requests of mean size would fill the memory; with their limits reserved only one fits.
    EXPECT_GE(taken.size(), 8U) << "mean " << mean << ", limit " << most;
    over += Overflows(c, taken, mean, kDraws, rng);
  }
  EXPECT_LE(over, 0.01 * kCases * kDraws);
}

TEST(KvAdmission, DriftCountsAndAWorkerThatIsNotOpenTakesNothing) {
  const auto lookahead = *MakeLookahead("max_tokens");
  KvAdmission admission(*ParseKvAdmission("kv_feasible"));
  std::vector<WaitingView> waiting(1);
  waiting[0].prefill_tokens = 50;
  waiting[0].max_new_tokens = 11;
  std::vector<KvAdmission::Worker> workers(3);
  for (KvAdmission::Worker& worker : workers) worker.kv_tokens = 60;
  workers[1].drift = 1;
  workers[2].open = false;
  KvCapacity capacity;
  capacity.Reset(admission.MakeOutlook(*lookahead, workers, absl::MakeSpan(waiting)));
  EXPECT_TRUE(capacity.Fits(0, 0)) << "50 + 10 tokens in its last step";
  EXPECT_FALSE(capacity.Fits(0, 1));
  EXPECT_FALSE(capacity.Fits(0, 2));
}

TEST(KvAdmission, ProtectionFitsThePromptBesideWhatIsHeldAndReserved) {
  GeometricLookahead lookahead(0.1);
  // Free memory for 1,000 tokens; a resident of 110, or of 299 where it has reserved them.
  const struct {
    double alpha;
    bool reserves;
    std::vector<int64_t> prompts;
    size_t taken;
  } kCases[] = {{0, false, {600}, 1},       {0, false, {891}, 0},      {0, true, {701}, 1},
                {0, true, {702}, 0},        {0.1, false, {790}, 1},    {0.1, false, {791}, 0},
                {0.1, false, {740, 51}, 1}, {0.1, false, {740, 50}, 2}};
  for (const auto& row : kCases) {
    KvAdmission admission({.kind = KvAdmissionOptions::Kind::kProtection, .alpha = row.alpha});
    Case of;
    of.memory = 1000;
    AddResident(of, 100, 10, 5, 200);
    of.residents[0].reserves_kv = row.reserves;
    for (const int64_t prompt : row.prompts) AddWaiting(of, prompt, 5, 10);
    EXPECT_EQ(of.Admit(admission, lookahead).size(), row.taken) << row.alpha << ", " << row.prompts[0];
  }
}

// An outlook with random numbers of times and ways. Many needs have the same shape, so that those of one
// exceed those of another at every time.
struct RandomOutlook {
  static constexpr int32_t kWorkers = 3, kNeeds = 8;
  RandomOutlook(Rng& rng, int32_t least_times) {
    outlook.times = least_times + static_cast<int32_t>(rng.Below(4));
    outlook.ways = outlook.times == 0 ? 0 : 1 + static_cast<int32_t>(rng.Below(3));
    for (size_t i = 0; i < kWorkers * outlook.row(); ++i) capacity.push_back(Below(rng, 100) - 10);
    for (int32_t n = 0; n < kNeeds; ++n) {
      const int64_t size = Below(rng, 41);
      for (size_t i = 0; i < outlook.row(); ++i) need.push_back(size + (n % 3 == 0 ? Below(rng, 20) : 0));
    }
    outlook.capacity = capacity;
    outlook.need = need;
    kept.Reset(outlook);
  }
  KvOutlook outlook;
  std::vector<int64_t> capacity, need;
  KvCapacity kept;
};

// Incrementally kept sums at several times and ways against sums computed from scratch.
TEST(KvCapacity, AgreesWithSumsFromScratch) {
  Rng rng(3);
  for (int trial = 0; trial < 2'000; ++trial) {
    RandomOutlook random(rng, 1);
    const KvOutlook& outlook = random.outlook;
    KvCapacity& kept = random.kept;
    const auto holds = [&](const std::vector<int32_t>& set, int32_t worker) {
      for (int32_t t = 0; t < outlook.times; ++t) {
        bool any = false;
        for (int32_t w = 0; w < outlook.ways; ++w) {
          const size_t at = static_cast<size_t>(t * outlook.ways + w);
          int64_t sum = 0;
          for (const int32_t n : set) sum += outlook.need[static_cast<size_t>(n) * outlook.row() + at];
          any = any || sum <= outlook.capacity[static_cast<size_t>(worker) * outlook.row() + at];
        }
        if (!any) return false;
      }
      return true;
    };
    std::vector<std::vector<int32_t>> sets(RandomOutlook::kWorkers);
    for (int move = 0; move < 12; ++move) {
      const auto g = static_cast<int32_t>(rng.Below(RandomOutlook::kWorkers));
      const auto n = static_cast<int32_t>(rng.Below(RandomOutlook::kNeeds));
      std::vector<int32_t> with = sets[g];
      with.push_back(n);
      ASSERT_EQ(kept.Fits(n, g), holds(with, g));
      if (!sets[g].empty()) {
        std::vector<int32_t> instead = with;
        instead.erase(instead.begin());
        ASSERT_EQ(kept.FitsInstead(n, sets[g][0], g), holds(instead, g));
      }
      if (rng.Below(3) > 0) {
        kept.Put(n, g, +1);
        sets[g] = with;
      } else if (!sets[g].empty()) {
        kept.Put(sets[g].back(), g, -1);
        sets[g].pop_back();
      }
    }
  }
}

// A request that is reported to fit on no worker fits on none, as long as requests are only added.
TEST(KvRefusals, NoRequestThatFitsIsRefused) {
  Rng rng(4);
  int64_t known = 0, asked = 0;
  for (int trial = 0; trial < 2'000; ++trial) {
    RandomOutlook random(rng, 0);
    KvCapacity& kept = random.kept;
    KvRefusals refusals;
    refusals.Reset(random.outlook);
    std::vector<int64_t> free_kv(RandomOutlook::kWorkers);
    for (int64_t& free : free_kv) free = Below(rng, 80);
    for (int i = 0; i < 30; ++i) {
      const auto n = static_cast<int32_t>(rng.Below(RandomOutlook::kNeeds));
      const int64_t reserves = 20 + Below(rng, 60);
      int32_t fits = -1;
      for (int32_t g = 0; g < RandomOutlook::kWorkers; ++g) {
        if (reserves <= free_kv[g] || kept.Fits(n, g)) fits = g;
      }
      ++asked;
      if (refusals.Refused(n, reserves)) {
        ++known;
        ASSERT_EQ(fits, -1);
      } else if (fits < 0) {
        refusals.Note(n, reserves);
      } else {
        free_kv[fits] -= reserves;
        kept.Put(n, fits, +1);
      }
    }
  }
  EXPECT_GT(known, asked / 4) << "nothing was saved";
}

}  // namespace
}  // namespace bfio::core
