// The worker's own admission: memory under random requests, and the watermark.
#include "worker/scheduler/kv_admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/rng.h"

namespace bfio::worker {
namespace {

using Kind = KvAdmissionOptions::Kind;

constexpr int64_t kMemory = 200;

// A worker that relies on the admission under test. In every step each request whose prompt is computed
// generates a token; prompts are computed in chunks, first come, first served, and the chunk that ends one
// gives its first token.
class World {
 public:
  // `rate`: minimum number of prompt tokens per step; 0: all of them.
  explicit World(const KvAdmissionOptions& options, int64_t rate = 0)
      : admission_(options, kMemory), rate_(rate) {}

  bool Place(KvAdmission::Request request, int64_t output) {
    if (rate_ > 0) request.prompt_steps = StepsOfPrompt(Pending(), request.prompt_tokens, rate_);
    const absl::Status status = admission_.Check(request, Free());
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kResourceExhausted) << status;
    if (!status.ok()) return false;
    admission_.Begin(request);
    running_.push_back({request, output, 0, rate_ > 0 ? request.prompt_tokens : 0});
    return true;
  }
  // `budget`: prompt tokens to compute. `pauses`: id of a request that generates nothing in this step.
  void Step(int64_t budget = 0, uint64_t pauses = 0) {
    for (Running& one : running_) {
      const int64_t chunk = std::min(one.pending, budget);
      budget -= chunk;
      one.pending -= chunk;
      if (one.pending > 0 || one.request.id == pauses) continue;
      admission_.OnToken(one.request.id);
      ++one.made;
    }
    std::erase_if(running_, [&](const Running& one) {
      if (one.made < one.output) return false;
      admission_.Remove(one.request.id);
      return true;
    });
    admission_.EndStep();
  }
  // Tokens held in the next step, including reservations.
  int64_t Held() const { return HeldWith({}, 0); }
  // Tokens held `ahead` steps after the next one, with an additional request that starts now, if all requests
  // generate a token in every step, up to their limits.
  int64_t HeldWith(const KvAdmission::Request& with, int64_t ahead) const {
    int64_t held = ahead < with.max_new_tokens ? with.prompt_tokens + ahead : 0;
    for (const auto& [r, output, made, pending] : running_) {
      if (ahead > 0 && made + ahead >= r.max_new_tokens) continue;
      held += r.prompt_tokens + (r.on_demand ? made + ahead : r.max_new_tokens - 1);
    }
    return held;
  }
  int64_t Free() const { return kMemory - Held(); }
  int64_t Pending() const {
    int64_t tokens = 0;
    for (const Running& one : running_) tokens += one.pending;
    return tokens;
  }
  size_t size() const { return running_.size(); }
  uint64_t id(size_t i) const { return running_[i].request.id; }
  KvAdmission& admission() { return admission_; }

 private:
  struct Running {
    KvAdmission::Request request;
    int64_t output = 0, made = 0, pending = 0;
  };
  KvAdmission admission_;
  const int64_t rate_;
  // In the order of admission.
  std::vector<Running> running_;
};

TEST(KvAdmission, ParsesItsSettings) {
  EXPECT_EQ(ParseKvAdmission("none")->kind, Kind::kNone);
  EXPECT_EQ(ParseKvAdmission("kv_feasible")->kind, Kind::kKvFeasible);
  EXPECT_EQ(ParseKvAdmission("mc_sf")->kind, Kind::kMcSf);
  EXPECT_EQ(ParseKvAdmission("mc_sf")->most_steps, 256);
  EXPECT_EQ(ParseKvAdmission("mc_sf:most=7")->most_steps, 7);
  EXPECT_EQ(ParseKvAdmission("watermark:share=0.25")->share, 0.25);
  for (const char* text : {"", "watermark", "watermark:share=1", "watermark:share=-0.1",
                           "watermark:share=nan", "watermark:share=x", "wait", "kv_feasible:share=0",
                           "mc_sf:", "mc_sf:most=0", "mc_sf:most=1.5", "mc_sf:share=1"}) {
    EXPECT_EQ(ParseKvAdmission(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

struct Coming {
  KvAdmission::Request request;
  int64_t output = 0;
  int64_t arrived = 0;
};

Coming RandomRequest(Rng& rng, uint64_t id, int64_t step = 0) {
  const auto most = 1 + static_cast<int64_t>(rng.Below(60));
  return {{id, 1 + static_cast<int64_t>(rng.Below(50)), most, true},
          1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(most))),
          step};
}

// Offers all waiting requests, as a plan does; those that start leave `waiting`. Returns their ids.
std::vector<uint64_t> Offer(World& world, int64_t step, std::vector<Coming>& waiting) {
  std::vector<KvAdmission::Request> plan;
  for (Coming& one : waiting) {
    one.request.waited_steps = step - one.arrived;
    plan.push_back(one.request);
  }
  std::vector<int32_t> order;
  world.admission().Sort(plan, order);
  std::vector<uint64_t> started;
  for (const int32_t i : order) {
    const auto index = static_cast<size_t>(i);
    if (world.Place(plan[index], waiting[index].output)) started.push_back(plan[index].id);
  }
  std::erase_if(waiting, [&](const Coming& one) {
    return std::find(started.begin(), started.end(), one.request.id) != started.end();
  });
  return started;
}

// Algorithm 1 literally, step by step: the shortest first, while memory suffices in every step until all have
// ended. The exception for an empty worker is not in the paper.
std::vector<uint64_t> AsWritten(const World& world, std::vector<Coming> waiting) {
  std::stable_sort(waiting.begin(), waiting.end(), [](const Coming& a, const Coming& b) {
    return a.request.max_new_tokens < b.request.max_new_tokens;
  });
  std::vector<uint64_t> started;
  std::vector<int64_t> added(61, 0);
  for (const auto& [request, output, arrived] : waiting) {
    bool fits = true;
    for (int64_t ahead = 0; ahead <= 60; ++ahead) {
      const int64_t held = world.HeldWith(request, ahead) + added[static_cast<size_t>(ahead)];
      fits = fits && held <= kMemory;
    }
    if (!fits && (world.size() > 0 || !started.empty())) break;
    started.push_back(request.id);
    for (int64_t ahead = 0; ahead < request.max_new_tokens; ++ahead)
      added[static_cast<size_t>(ahead)] += request.prompt_tokens + ahead;
  }
  return started;
}

TEST(KvAdmission, McSfStartsInEveryStepWhatTheAlgorithmAsWrittenStarts) {
  int64_t steps_that_stop = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Rng rng(seed);
    World world({Kind::kMcSf, 0, int64_t{1} << 40});
    std::vector<Coming> waiting;
    uint64_t id = 0;
    for (int64_t step = 0; step < 150; ++step) {
      for (uint64_t n = rng.Below(3); n > 0 && waiting.size() < 12; --n)
        waiting.push_back(RandomRequest(rng, ++id, step));
      const std::vector<uint64_t> expected = AsWritten(world, waiting);
      EXPECT_EQ(Offer(world, step, waiting), expected) << "seed " << seed << ", step " << step;
      steps_that_stop += !waiting.empty() && !expected.empty();
      ASSERT_LE(world.Held(), kMemory) << "seed " << seed << ", step " << step;
      world.Step();
    }
    EXPECT_GT(id, 40U);
  }
  EXPECT_GT(steps_that_stop, 1000);
}

// Prompts are computed in chunks, at the minimum rate or faster; memory suffices in every step. It would not
// if the steps of prompts were ignored.
TEST(KvAdmission, MemorySufficesWhilePromptsAreComputedInChunks) {
  for (const Kind kind : {Kind::kKvFeasible, Kind::kMcSf}) {
    int64_t without = 0;
    for (uint64_t seed = 1; seed <= 200; ++seed) {
      Rng rng(seed);
      const auto rate = 1 + static_cast<int64_t>(rng.Below(12));
      World world({kind}, rate), blind({kind}, int64_t{1} << 40);
      for (World* const one : {&world, &blind}) {
        Rng load(seed);
        std::vector<Coming> waiting;
        uint64_t id = 0;
        for (int64_t step = 0; step < 120; ++step) {
          for (uint64_t n = load.Below(2); n > 0 && waiting.size() < 12; --n)
            waiting.push_back(RandomRequest(load, ++id, step));
          if (kind == Kind::kMcSf) {
            Offer(*one, step, waiting);
          } else {
            while (!waiting.empty() && one->Place(waiting[0].request, waiting[0].output))
              waiting.erase(waiting.begin());
          }
          if (one == &blind) {
            without += one->Held() > kMemory;
          } else {
            ASSERT_LE(one->Held(), kMemory) << "seed " << seed << ", step " << step;
          }
          one->Step(rate + static_cast<int64_t>(load.Below(3)));
        }
      }
    }
    EXPECT_GT(without, 30) << "nothing was put to the test";
  }
}

// Some schedulers pause decodes while prompts are computed. What runs then stays longer than expected, and
// later requests are tested against when it will end.
TEST(KvAdmission, RequestsThatPauseAreExpectedToEndLater) {
  int64_t refused = 0, started = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    World world({Kind::kKvFeasible});
    for (uint64_t id = 1; id <= 150; ++id) {
      const Coming one = RandomRequest(rng, id);
      bool holds = world.size() == 0;
      int64_t most = 0;
      for (int64_t ahead = 0; ahead < one.request.max_new_tokens; ++ahead)
        most = std::max(most, world.HeldWith(one.request, ahead));
      holds = holds || most <= kMemory;
      ASSERT_EQ(world.Place(one.request, one.output), holds) << "seed " << seed << ", request " << id;
      (holds ? started : refused) += 1;
      const uint64_t pauses =
          world.size() > 0 && rng.Below(2) == 0 ? world.id(rng.Below(world.size())) : uint64_t{0};
      world.Step(0, pauses);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(started, 1000);
}

// A long request among short ones that keep arriving: after the bound none of them starts before it, so it
// starts when the running ones have ended. Without the bound it waits as long as they arrive.
TEST(KvAdmission, NoRequestPassesOneThatHasWaitedForTheBound) {
  constexpr int64_t kMost = 40, kArrives = 20, kSteps = 400, kShort = 10;
  for (const int64_t most : {kMost, int64_t{1} << 40}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Rng rng(seed);
      World world({Kind::kMcSf, 0, most});
      std::vector<Coming> waiting;
      std::map<uint64_t, int64_t> began;
      uint64_t id = 1;
      for (int64_t step = 0; step < kSteps; ++step) {
        if (step == kArrives) waiting.push_back({{1, 60, 90, true}, 90, step});
        for (uint64_t n = 3 + rng.Below(2); n > 0; --n) {
          const auto tokens = 1 + static_cast<int64_t>(rng.Below(kShort));
          waiting.push_back({{++id, 10 + static_cast<int64_t>(rng.Below(20)), tokens, true}, tokens, step});
        }
        const bool ran = began.contains(1);
        for (const uint64_t started : Offer(world, step, waiting)) {
          // All others that have arrived since are younger, and none of them starts in the same step.
          EXPECT_TRUE(started == 1 || step < kArrives + kMost || ran || most > kMost) << seed;
          began[started] = step;
        }
        ASSERT_LE(world.Held(), kMemory) << seed;
        world.Step();
        // Removes the other waiting requests before they become overdue.
        std::erase_if(waiting,
                      [&](const Coming& one) { return one.request.id != 1 && step - one.arrived > 8; });
      }
      if (most > kMost) {
        EXPECT_FALSE(began.contains(1)) << seed << ": nothing was put to the test";
      } else {
        ASSERT_TRUE(began.contains(1)) << seed;
        EXPECT_GE(began[1], kArrives + kMost) << seed << ": nothing was put to the test";
        EXPECT_LE(began[1], kArrives + kMost + kShort) << seed;
      }
    }
  }
}

TEST(KvAdmission, McSfStartsThoseThatReserveFirst) {
  World world({Kind::kMcSf});
  const std::vector<KvAdmission::Request> plan = {
      {1, 10, 50, true}, {2, 10, 60, false}, {3, 10, 20, true, 5}};
  std::vector<int32_t> order;
  world.admission().Sort(plan, order);
  EXPECT_EQ(order, std::vector<int32_t>({1, 2, 0}));
  World feasible({Kind::kKvFeasible});
  feasible.admission().Sort(plan, order);
  EXPECT_TRUE(order.empty()) << "as given";
}

// Requests wait in a queue; the first one starts as soon as it is admitted.
TEST(KvAdmission, FeasibleNeverRunsOutAndAdmitsMoreThanReserving) {
  int64_t taken = 0, reserved = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    World feasible({Kind::kKvFeasible}), reserving({Kind::kNone});
    std::vector<Coming> queue;
    for (uint64_t id = 1; id <= 400; ++id) {
      queue.push_back(RandomRequest(rng, id));
    }
    size_t next = 0, other = 0;
    for (int step = 0; step < 100; ++step) {
      while (next < queue.size() && feasible.Place(queue[next].request, queue[next].output)) ++next;
      ASSERT_LE(feasible.Held(), kMemory) << seed;
      while (other < queue.size()) {
        KvAdmission::Request request = queue[other].request;
        if (reserving.Free() < request.prompt_tokens + request.max_new_tokens - 1) break;
        request.on_demand = false;
        ASSERT_TRUE(reserving.Place(request, queue[other++].output));
      }
      feasible.Step();
      ASSERT_LE(feasible.Held(), kMemory) << seed;
      reserving.Step();
    }
    taken += static_cast<int64_t>(next);
    reserved += static_cast<int64_t>(other);
  }
  EXPECT_GT(static_cast<double>(taken), 1.02 * static_cast<double>(reserved));
}

// Reference by brute force: the sums of all requests at all times.
TEST(KvAdmission, FeasibleChecksEveryFutureStep) {
  int64_t refused = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    Rng rng(seed);
    World world({Kind::kKvFeasible});
    struct Line {
      int64_t tokens, steps;
      bool on_demand;
    };
    std::vector<Line> lines;
    for (uint64_t id = 1; id <= 12; ++id) {
      KvAdmission::Request request{id, 1 + static_cast<int64_t>(rng.Below(40)),
                                   1 + static_cast<int64_t>(rng.Below(40)), rng.Below(3) != 0};
      std::vector<Line> with = lines;
      with.push_back({request.prompt_tokens, request.max_new_tokens, request.on_demand});
      bool holds = true;
      for (int64_t t = 0; t < request.max_new_tokens; ++t) {
        int64_t sum = 0;
        for (const Line& line : with) {
          if (t < line.steps) sum += line.tokens + (line.on_demand ? t : line.steps - 1);
        }
        holds = holds && sum <= kMemory;
      }
      // Requests that reserve are checked by the engine and always admitted here. No request before this one
      // was refused, so the order does not matter.
      const bool expected = holds || lines.empty() || !request.on_demand;
      ASSERT_EQ(world.Place(request, request.max_new_tokens), expected) << seed;
      if (!expected) {
        ++refused;
        break;
      }
      lines = with;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(KvAdmission, TheWatermarkStaysFreeUnlessTheWorkerIsEmpty) {
  World world({Kind::kWatermark, 0.25});
  EXPECT_TRUE(world.Place({1, 180, 20, true}, 5)) << "it is alone";
  EXPECT_FALSE(world.Place({2, 1, 1, true}, 1));
  for (int i = 0; i < 5; ++i) world.Step();
  ASSERT_EQ(world.size(), 0U);
  EXPECT_TRUE(world.Place({2, 100, 50, true}, 50));
  EXPECT_TRUE(world.Place({3, 50, 50, true}, 50));
  EXPECT_FALSE(world.Place({4, 1, 50, true}, 50)) << "50 of 200 stay free";
  EXPECT_TRUE(world.Place({5, 10, 10, false}, 10)) << "it reserves, which is the engine's affair";
  World none({Kind::kNone});
  for (uint64_t id = 1; id <= 5; ++id) EXPECT_TRUE(none.Place({id, 150, 10, true}, 10));
}

}  // namespace
}  // namespace bfio::worker
