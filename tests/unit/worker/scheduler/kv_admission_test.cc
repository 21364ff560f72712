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

// A worker that generates a token per request and step and relies on the admission under test.
class World {
 public:
  explicit World(const KvAdmissionOptions& options) : admission_(options, kMemory) {}

  bool Place(const KvAdmission::Request& request, int64_t output) {
    const absl::Status status = admission_.Check(request, Free());
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kResourceExhausted) << status;
    if (!status.ok()) return false;
    admission_.Begin(request);
    running_[request.id] = {request, output, 0};
    return true;
  }
  void Step() {
    for (auto it = running_.begin(); it != running_.end();) {
      admission_.OnToken(it->first);
      if (++it->second.made < it->second.output) {
        ++it;
        continue;
      }
      admission_.Remove(it->first);
      it = running_.erase(it);
    }
  }
  // Tokens held in the next step, including reservations.
  int64_t Held() const {
    int64_t held = 0;
    for (const auto& [id, r] : running_) {
      held += r.request.prompt_tokens + (r.request.on_demand ? r.made : r.request.max_new_tokens - 1);
    }
    return held;
  }
  int64_t Free() const { return kMemory - Held(); }
  size_t size() const { return running_.size(); }

 private:
  struct Running {
    KvAdmission::Request request;
    int64_t output = 0, made = 0;
  };
  KvAdmission admission_;
  std::map<uint64_t, Running> running_;
};

TEST(KvAdmission, ParsesItsSettings) {
  EXPECT_EQ(ParseKvAdmission("none")->kind, Kind::kNone);
  EXPECT_EQ(ParseKvAdmission("kv_feasible")->kind, Kind::kKvFeasible);
  EXPECT_EQ(ParseKvAdmission("watermark:share=0.25")->share, 0.25);
  for (const char* text : {"", "watermark", "watermark:share=1", "watermark:share=-0.1",
                           "watermark:share=nan", "watermark:share=x", "wait", "kv_feasible:share=0"}) {
    EXPECT_EQ(ParseKvAdmission(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

// Requests wait in a queue, whose first one begins as soon as it is admitted.
TEST(KvAdmission, FeasibleNeverRunsOutAndAdmitsMoreThanReserving) {
  struct Coming {
    KvAdmission::Request request;
    int64_t output;
  };
  int64_t taken = 0, reserved = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    World feasible({Kind::kKvFeasible}), reserving({Kind::kNone});
    std::vector<Coming> queue;
    for (uint64_t id = 1; id <= 400; ++id) {
      const auto most = 1 + static_cast<int64_t>(rng.Below(60));
      queue.push_back({{id, 1 + static_cast<int64_t>(rng.Below(50)), most, true},
                       1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(most)))});
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
      for (int64_t t = 0; t < 40; ++t) {
        int64_t sum = 0;
        for (const Line& line : with) {
          if (!line.on_demand) sum += line.tokens + line.steps - 1;
          if (line.on_demand && t < line.steps) sum += line.tokens + t;
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
