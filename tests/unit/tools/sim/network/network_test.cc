// Networks of engines: exact small cases, rules that every batch must meet, conservation of tokens, and
// refusal of invalid networks.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/unit/tools/sim/network/network_runs.h"
#include "tools/sim/network/engine.h"
#include "tools/sim/network/examples.h"
#include "tools/sim/network/network_check.h"
#include "worker/scheduler/batch_check.h"

namespace bfio::sim {
namespace {

TEST(DrawPoissonTest, MeanAndVarianceAreTheMean) {
  for (const double mean : {0.3, 5.0, 512.0, 1200.0}) {
    Rng rng(7);
    const int n = 4000;
    double sum = 0, squares = 0;
    for (int i = 0; i < n; ++i) {
      const auto x = static_cast<double>(DrawPoisson(mean, rng));
      sum += x;
      squares += x * x;
    }
    // Five standard errors each.
    EXPECT_NEAR(sum / n, mean, 5 * std::sqrt(mean / n)) << mean;
    EXPECT_NEAR(squares / n - sum / n * (sum / n), mean, 5 * std::sqrt((2 * mean * mean + mean) / n)) << mean;
  }
}

// One agent every 20 slots with known lengths: engine 0 computes 2 + 1 tokens, then engines 1 and 2 work at
// the same time, then engine 3.
TEST(NetworkTest, ForkAndJoinTakeTheExpectedSlots) {
  Network network{.engines = 4, .token_budget = 4};
  // Engine 0: 2 prefill tokens in a slot and a decode, 2 slots. Engine 1: 8 prefill tokens in 2 slots and 3
  // decodes, 5 slots. Engine 3: 1 + 1, 2 slots.
  network.types = {
      {"agent",
       1.0 / 20,
       {{0, 1, {2}, {1}, {}}, {1, 1, {8}, {3}, {0}}, {2, 1, {1}, {1}, {0}}, {3, 1, {1}, {1}, {1, 2}}},
       /*evenly=*/true}};
  const NetworkRun run = Simulate(network, {.horizon = 1000});
  EXPECT_EQ(run.arrived, 49) << "from slot 20 on; the run ends before slot 1000";
  EXPECT_EQ(run.ended, 49);
  ASSERT_EQ(run.finished.size(), 25u);
  for (const NetworkRun::Ended& agent : run.finished) {
    EXPECT_EQ(agent.path_tokens, 1 + 3 + 1);
    EXPECT_EQ(agent.latency, 2 + 5 + 2);
  }
}

// Independent accounts of every call, kept from the batches that are observed.
class BatchBooks {
 public:
  BatchBooks(int64_t token_budget, bool conserving) : token_budget_(token_budget), conserving_(conserving) {}

  void See(const LaneBatch& lane) {
    // One wrong batch makes all later checks fail, so only the first is reported.
    if (testing::Test::HasFailure()) return;
    ++lanes_;
    const absl::Status batch = worker::CheckBatch(lane.requests, lane.capacity, lane.chunks);
    EXPECT_TRUE(batch.ok()) << batch;
    if (conserving_) {
      const absl::Status all =
          worker::CheckWorkConservation(lane.requests, lane.capacity, worker::BatchOrder::kFcfs, lane.chunks);
      EXPECT_TRUE(all.ok()) << all;
    }
    // Either a new batch, or the budget that the lane before has left of this batch.
    int64_t& left = budget_left_[lane.calls[0]->engine];
    EXPECT_TRUE(lane.capacity.token_budget == token_budget_ || lane.capacity.token_budget == left);
    left = lane.capacity.token_budget - worker::BatchTokens(lane.chunks);
    for (size_t i = 0; i < lane.calls.size(); ++i) {
      const Call& call = *lane.calls[i];
      EXPECT_EQ(lane.requests[i].prefill_left + lane.requests[i].decode_left + computed_[call.joined],
                call.prefill_tokens + call.decode_tokens);
      if (i > 0) {
        EXPECT_LT(lane.calls[i - 1]->key(), call.key());
        EXPECT_EQ(lane.calls[i - 1]->lane, call.lane);
      }
    }
    for (const worker::Chunk& chunk : lane.chunks) computed_[lane.calls[chunk.which]->joined] += chunk.rows;
  }

  int64_t lanes() const { return lanes_; }
  // Tokens of all observed batches, including those that the end of the run cut off.
  int64_t computed() const {
    int64_t tokens = 0;
    for (const auto& [call, rows] : computed_) tokens += rows;
    return tokens;
  }

 private:
  const int64_t token_budget_;
  const bool conserving_;
  int64_t lanes_ = 0;
  // Tokens that are left of the current batch's budget, by engine.
  std::map<int32_t, int64_t> budget_left_;
  // Computed tokens of a call, by Call::joined.
  std::map<uint64_t, int64_t> computed_;
};

void ExpectNothingLost(const Network& network, NetworkOptions options, bool conserving) {
  SCOPED_TRACE(options.scheduler + " " + std::string(CallOrderName(options.order)));
  BatchBooks books(network.token_budget, conserving);
  options.watch = [&](const LaneBatch& lane) { books.See(lane); };
  const NetworkRun run = Simulate(network, options);
  EXPECT_EQ(run.tokens_joined, run.tokens_computed + run.tokens_left);
  EXPECT_EQ(run.arrived, run.ended + run.agents_left);
  EXPECT_GT(run.agents_left, 0);
  EXPECT_GT(run.tokens_computed, 20'000);
  EXPECT_GT(books.lanes(), 100);
  // At most one batch per engine was still running at the end.
  EXPECT_GE(books.computed(), run.tokens_computed);
  EXPECT_LE(books.computed(), run.tokens_computed + network.engines * network.token_budget);
  if (conserving) {
    EXPECT_EQ(run.short_batches, 0);
  }
}

TEST(NetworkTest, EveryBatchMeetsTheRulesAndNoTokenIsLost) {
  for (const char* scheduler : {"sarathi", "orca"}) {
    for (const CallOrder order : {CallOrder::kExitFirst, CallOrder::kEntryFirst, CallOrder::kCallAge,
                                  CallOrder::kParentAge, CallOrder::kParentDue})
      ExpectNothingLost(Cycles(0.9), {.order = order, .scheduler = scheduler, .horizon = 60}, true);
  }
  for (const char* scheduler : {"vllm_v0", "faster_transformer"})
    ExpectNothingLost(Cycles(0.9), {.scheduler = scheduler, .horizon = 150}, false);
  EXPECT_GT(Simulate(Cycles(0.9), {.scheduler = "vllm_v0", .horizon = 150}).short_batches, 0);
}

// Among calls that have not begun, the most urgent begins first, whatever the order of arrival, and no more
// calls run than there are slots.
TEST(NetworkTest, SlotsBoundRunningCallsAndGoToTheMostUrgent) {
  const Network network = RybkoStolyar(0.9);
  int64_t most = 0, begun = 0, overtaken = 0;
  NetworkOptions options{.slots = 20, .horizon = 500};
  options.watch = [&](const LaneBatch& lane) {
    std::vector<char> begins(lane.requests.size(), 0);
    for (const worker::Chunk& chunk : lane.chunks) begins[chunk.which] = !lane.requests[chunk.which].resident;
    int64_t residents = 0;
    bool waits = false;
    uint64_t earliest_waiting = std::numeric_limits<uint64_t>::max();
    for (size_t i = lane.calls.size(); i-- > 0;) {
      if (!lane.requests[i].resident && !begins[i])
        earliest_waiting = std::min(earliest_waiting, lane.calls[i]->joined);
      if (begins[i] && lane.calls[i]->joined > earliest_waiting) ++overtaken;
    }
    for (size_t i = 0; i < lane.calls.size(); ++i) {
      residents += lane.requests[i].resident || begins[i];
      begun += begins[i];
      waits = waits || !(lane.requests[i].resident || begins[i]);
      EXPECT_FALSE(waits && begins[i]) << "a more urgent one waits";
    }
    EXPECT_LE(residents, 20);
    most = std::max(most, residents);
  };
  const NetworkRun tight = Simulate(network, options);
  EXPECT_EQ(most, 20);
  EXPECT_GT(begun, 200);
  EXPECT_GT(overtaken, 0) << "first come, first served would do";
  // More slots than the load needs make no difference; with too few, engines cannot fill their batches.
  const NetworkRun any = Simulate(network, {.horizon = 500});
  EXPECT_EQ(Simulate(network, {.slots = 1000, .horizon = 500}).tokens, any.tokens);
  EXPECT_GT(tight.tokens.back(), 3 * any.tokens.back());
}

// One slot, batches of one token. While a call of 20 tokens holds the slot from 51 to 71, "long" arrives at
// 52 and "short" at 53. After long's first call 50 decodes follow, so its latest start is counted from 52 +
// 50, short's from 53.
TEST(NetworkTest, CallsBeginInTheOrderOfTheirRule) {
  Network network{.engines = 1, .token_budget = 1};
  network.types = {{"holds the slot", 1.0 / 51, {{0, 1, {10}, {10}, {}}}, /*evenly=*/true},
                   {"long", 1.0 / 52, {{0, 1, {2}, {1}, {}}, {0, 1, {3}, {50}, {0}}}, true},
                   {"short", 1.0 / 53, {{0, 1, {1}, {1}, {}}}, true}};
  // Prompt lengths of the calls in the order in which they begin.
  const auto begun = [&](CallOrder order) {
    std::vector<int64_t> prompts;
    NetworkOptions options{.order = order, .slots = 1, .horizon = 101};
    options.watch = [&](const LaneBatch& lane) {
      for (const worker::Chunk& chunk : lane.chunks) {
        if (!lane.requests[chunk.which].resident) prompts.push_back(lane.calls[chunk.which]->prefill_tokens);
      }
    };
    Simulate(network, options);
    return prompts;
  };
  const std::vector<int64_t> short_first = {10, 1, 2, 3}, long_first = {10, 2, 1, 3},
                             long_through = {10, 2, 3};
  EXPECT_EQ(begun(CallOrder::kParentDue), short_first);
  EXPECT_EQ(begun(CallOrder::kExitFirst), short_first);
  EXPECT_EQ(begun(CallOrder::kCallAge), long_first);
  EXPECT_EQ(begun(CallOrder::kEntryFirst), long_first);
  EXPECT_EQ(begun(CallOrder::kParentAge), long_through) << "its second call is as old as its first";
}

TEST(NetworkTest, SameSeedSameRun) {
  const auto tokens = [](uint64_t seed) {
    return Simulate(Cycles(0.9), {.horizon = 200, .seed = seed}).tokens;
  };
  EXPECT_EQ(tokens(3), tokens(3));
  EXPECT_NE(tokens(3), tokens(4));
}

// --- refused networks ---

// Invalid networks are refused by name; otherwise runs would hang, read past an array or look unstable.
TEST(NetworkCheckTest, BadNetworksAreRefusedByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const struct {
    const char* says;
    std::function<void(Network& network, NetworkOptions& options)> spoil;
  } cases[] = {
      {"no scheduler 'none'", [](Network&, NetworkOptions& o) { o.scheduler = "none"; }},
      {"vllm_v0 with order exit_first",
       [](Network&, NetworkOptions& o) { o = {.order = CallOrder::kExitFirst, .scheduler = "vllm_v0"}; }},
      {"faster_transformer with order entry_first",
       [](Network&, NetworkOptions& o) {
         o = {.order = CallOrder::kEntryFirst, .scheduler = "faster_transformer"};
       }},
      {"slots", [](Network&, NetworkOptions& o) { o.slots = -1; }},
      {"horizon", [](Network&, NetworkOptions& o) { o.horizon = 0; }},
      {"horizon", [=](Network&, NetworkOptions& o) { o.horizon = inf; }},
      {"full batches", [](Network&, NetworkOptions& o) { o.horizon = o.sample_every = 1e12; }},
      {"sample_every", [](Network&, NetworkOptions& o) { o.sample_every = 0; }},
      {"sample_every", [=](Network&, NetworkOptions& o) { o.sample_every = nan; }},
      {"horizon / sample_every", [](Network&, NetworkOptions& o) { o.sample_every = 1e-12; }},
      {"engines is 0", [](Network& n, NetworkOptions&) { n.engines = 0; }},
      {"token_budget is 0", [](Network& n, NetworkOptions&) { n.token_budget = 0; }},
      {"token_budget", [](Network& n, NetworkOptions&) { n.token_budget = int64_t{1} << 31; }},
      {"batch_time of 512", [](Network& n, NetworkOptions&) { n.batch_time = [](int64_t) { return 0.0; }; }},
      {"batch_time of 512",
       [=](Network& n, NetworkOptions&) { n.batch_time = [=](int64_t) { return nan; }; }},
      {"batch_time of ",
       [](Network& n, NetworkOptions&) { n.batch_time = [](int64_t x) { return x < 512 ? -1.0 : 1.0; }; }},
      {"batch_time of ",
       [](Network& n, NetworkOptions&) { n.batch_time = [](int64_t x) { return x < 512 ? 1e-300 : 1.0; }; }},
      {"type 'fork-join': rate", [=](Network& n, NetworkOptions&) { n.types[0].rate = nan; }},
      {"rate is -1", [](Network& n, NetworkOptions&) { n.types[0].rate = -1; }},
      {"arrivals by the horizon", [](Network& n, NetworkOptions&) { n.types[0].rate = 1e300; }},
      {"no calls", [](Network& n, NetworkOptions&) { n.types[0].calls.clear(); }},
      {"call 2: engine 4 with 1 choices",
       [](Network& n, NetworkOptions&) { n.types[0].calls[2].engine = 4; }},
      {"call 2: engine -1", [](Network& n, NetworkOptions&) { n.types[0].calls[2].engine = -1; }},
      {"engine 2 with 3 choices", [](Network& n, NetworkOptions&) { n.types[0].calls[2].choices = 3; }},
      {"0 choices", [](Network& n, NetworkOptions&) { n.types[0].calls[2].choices = 0; }},
      {"call 3: after 1 twice",
       [](Network& n, NetworkOptions&) {
         n.types[0].calls[3].after = {1, 1};
       }},
      {"call 3: after 3",
       [](Network& n, NetworkOptions&) {
         n.types[0].calls[3].after = {1, 3};
       }},
      {"after -1", [](Network& n, NetworkOptions&) { n.types[0].calls[3].after = {-1}; }},
      {"call 1: prefill.mean", [=](Network& n, NetworkOptions&) { n.types[0].calls[1].prefill.mean = inf; }},
      {"call 1: decode.mean", [](Network& n, NetworkOptions&) { n.types[0].calls[1].decode.mean = -3; }},
  };
  for (const auto& c : cases) {
    Network network = ForkJoin(0.5);
    NetworkOptions options{.horizon = 20};
    c.spoil(network, options);
    const absl::Status status = RunNetwork(network, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.says;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << status << ", not " << c.says;
  }
  for (const CallOrder order : {CallOrder::kExitFirst, CallOrder::kParentDue})
    EXPECT_TRUE(CheckNetwork(ForkJoin(0.5), {.order = order}).ok());
  EXPECT_TRUE(CheckNetwork(ForkJoin(0.5), {.scheduler = "faster_transformer"}).ok());
}

}  // namespace
}  // namespace bfio::sim
