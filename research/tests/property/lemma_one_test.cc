// What the BF-IO paper's Lemma 1 states about optima, and what it does not state.
//
// All G B items must be admitted, B to a worker, so the sum is fixed and J is smallest where the largest load
// is. The lemma bounds the gap max - min by s_max; its proof picks the lexicographically smallest (largest
// load, number of workers that have it). Other partitions with the same largest load need not satisfy the
// bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/solver/solver.h"
#include "tests/testing/solver_case.h"

namespace bfio::core {
namespace {

struct Partition {
  int64_t max = 0;
  int64_t workers_at_max = 0;
  int64_t gap = 0;
  std::pair<int64_t, int64_t> key() const { return {max, workers_at_max}; }
};

// Enumerates all ways to give every worker `batch` of the items.
class Partitions {
 public:
  Partitions(int workers, int batch, const std::vector<int64_t>& items)
      : batch_(batch), items_(items), loads_(workers, 0), counts_(workers, 0) {
    Visit(0);
  }
  const std::vector<Partition>& all() const { return all_; }

 private:
  void Visit(size_t item) {
    if (item == items_.size()) {
      const auto [min, max] = std::minmax_element(loads_.begin(), loads_.end());
      all_.push_back({*max, std::count(loads_.begin(), loads_.end(), *max), *max - *min});
      return;
    }
    for (size_t g = 0; g < loads_.size(); ++g) {
      if (counts_[g] == batch_) continue;
      ++counts_[g];
      loads_[g] += items_[item];
      Visit(item + 1);
      loads_[g] -= items_[item];
      --counts_[g];
    }
  }
  int batch_;
  const std::vector<int64_t>& items_;
  std::vector<int64_t> loads_;
  std::vector<int> counts_;
  std::vector<Partition> all_;
};

TEST(LemmaOneTest, TheLexicographicOptimumKeepsTheGapWithinTheLargestItem) {
  Rng rng(17);
  int64_t wide = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    const int workers = 2 + static_cast<int>(rng.Below(2)),
              batch = 1 + static_cast<int>(rng.Below(workers == 2 ? 4 : 2));
    std::vector<int64_t> items;
    for (int i = 0; i < workers * batch; ++i) items.push_back(1 + static_cast<int64_t>(rng.Below(6)));
    const int64_t largest = *std::max_element(items.begin(), items.end());
    const std::vector<Partition> all = Partitions(workers, batch, items).all();
    const Partition best =
        *std::min_element(all.begin(), all.end(), [](auto& a, auto& b) { return a.key() < b.key(); });
    for (const Partition& partition : all) {
      if (partition.key() == best.key()) {
        ASSERT_LE(partition.gap, largest) << "trial " << trial;
      }
      wide += partition.max == best.max && partition.gap > largest;
    }
  }
  EXPECT_GT(wide, 0) << "some partition with the least maximum is wider than the largest item";
}

TEST(LemmaOneTest, AnArbitraryMinMaxPartitionMayBeWider) {
  const std::vector<int64_t> items = {1, 5, 5, 5, 5, 1};
  int64_t least = 1 << 20, widest = 0;
  const Partitions partitions(3, 2, items);
  for (const Partition& partition : partitions.all()) least = std::min(least, partition.max);
  for (const Partition& partition : partitions.all()) {
    if (partition.max == least) widest = std::max(widest, partition.gap);
  }
  EXPECT_EQ(least, 10);
  EXPECT_EQ(widest, 8) << "above s_max = 5";
}

TEST(LemmaOneTest, SquareFindsTheLexicographicOptimumPaperNeedNot) {
  Instance instance = {.workers = {{0, 0, 2, kAmple}, {0, 0, 2, kAmple}, {0, 0, 2, kAmple}}};
  for (int64_t load : {1, 5, 5, 5, 5, 1}) instance.items.push_back({load, load});
  instance.target_load = 22.0 / 3;
  const Solution wide = {{2, 0, 0, 1, 1, 2}};   // loads 10, 10, 2: gap 8 > s_max = 5
  const Solution tight = {{1, 0, 0, 1, 2, 2}};  // loads 10, 6, 6: gap 4
  SolverSettings paper, square;
  paper.objective = ObjectiveKind::kPaper;
  EXPECT_EQ(Evaluate(instance, paper, wide), 8);
  EXPECT_EQ(Evaluate(instance, paper, tight), 8);
  EXPECT_GT(Evaluate(instance, square, wide), Evaluate(instance, square, tight));
  EXPECT_EQ(Evaluate(instance, square, Solver(square).Solve(instance)), Evaluate(instance, square, tight));
}

}  // namespace
}  // namespace bfio::core
