// The workers' remaining capacity while a decision is being made.
#include "router/core/model/free_capacity.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "router/core/model/kv_capacity.h"
#include "router/core/model/prefix_blocks.h"
#include "router/core/model/snapshot.h"

namespace bfio::core {
namespace {

WorkerView Worker(int32_t slots, int64_t kv) {
  WorkerView worker;
  worker.free_slots = slots;
  worker.free_kv_tokens = kv;
  return worker;
}

WaitingView Request(int64_t reserve, int32_t need = 0) {
  return {.prefill_tokens = reserve / 2, .kv_reserve_tokens = reserve, .kv_need = need};
}

// An outlook of two times, each with two ways to show that memory suffices. `room` is the workers' capacity;
// there are two kinds of needs.
class Memory {
 public:
  explicit Memory(std::vector<int64_t> capacity) : capacity_(std::move(capacity)) {}
  KvOutlook view() const { return {2, 2, capacity_, need_}; }

 private:
  const std::vector<int64_t> capacity_;
  const std::vector<int64_t> need_ = {10, 5, 20, 15, 40, 40, 40, 40};
};

TEST(FreeCapacityTest, ARequestFitsByItsReservationOrByTheOutlook) {
  const std::vector<WorkerView> workers = {Worker(4, 100)};
  FreeCapacity free;
  free.Reset(workers, {});
  EXPECT_TRUE(free.Fits(Request(100), 0));
  EXPECT_FALSE(free.Fits(Request(101), 0)) << "there is no outlook";
  const Memory enough({10, 5, 20, 15}), nothing({0, 0, 0, 0});
  free.Reset(workers, enough.view());
  EXPECT_TRUE(free.Fits(Request(101), 0));
  EXPECT_FALSE(free.Fits(Request(101, 1), 0)) << "it needs more";
  free.Reset(workers, nothing.view());
  EXPECT_FALSE(free.Fits(Request(101), 0));
  EXPECT_TRUE(free.Fits(Request(100), 0));
}

TEST(FreeCapacityTest, TakeAndReturnCancelOut) {
  const std::vector<WorkerView> workers = {Worker(2, 100), Worker(1, 10)};
  const Memory outlook({20, 10, 40, 30, 0, 0, 0, 0});
  FreeCapacity free;
  free.Reset(workers, outlook.view());
  free.Take(Request(80), 0);
  EXPECT_EQ(free.free_slots(), 2);
  EXPECT_EQ(free[0].free_slots, 1);
  EXPECT_EQ(free[0].active, 1);
  EXPECT_EQ(free[0].load_tokens, 40);
  EXPECT_EQ(free[0].free_kv_tokens, 20);
  EXPECT_EQ(free.kv().capacity[2], 20);
  free.Return(Request(80).kv(), 40, 0);
  EXPECT_EQ(free.free_slots(), 3);
  EXPECT_EQ(free[0].active, 0);
  EXPECT_EQ(free[0].load_tokens, 0);
  EXPECT_EQ(free[0].free_kv_tokens, 100);
  EXPECT_EQ(free.kv().capacity[2], 40);
}

TEST(FreeCapacityTest, SlotsThatAreClosedAreNotFree) {
  const std::vector<WorkerView> workers = {Worker(5, 100), Worker(3, 100)};
  FreeCapacity free;
  free.Reset(workers, {});
  free.LimitSlots(0, 2);
  EXPECT_EQ(free.free_slots(), 5);
  free.LimitSlots(0, 7);
  EXPECT_EQ(free[0].free_slots, 2) << "a limit opens none";
  free.LimitSlots(1, 0);
  EXPECT_EQ(free.free_slots(), 2);
  EXPECT_FALSE(free.Fits(Request(1), 1));
}

TEST(FreeCapacityTest, SlotsThatMemoryCannotFillAreClosed) {
  // By the outlook worker 0 can take two requests at the first time and one at the second. Worker 1 has
  // reservations for three; worker 2 has capacity for none.
  const std::vector<WorkerView> workers = {Worker(9, 0), Worker(9, 100), Worker(9, 29)};
  const Memory outlook({20, 10, 20, 15, 20, 10, 20, 15, -1, -1, -1, -1});
  FreeCapacity free;
  free.Reset(workers, outlook.view());
  const std::vector<WaitingView> waiting = {Request(50), Request(30), Request(40, 1)};
  free.LimitSlotsToMemory(waiting);
  EXPECT_EQ(free[0].free_slots, 1);
  EXPECT_EQ(free[1].free_slots, 3);
  EXPECT_EQ(free[2].free_slots, 0);
  free.Reset(workers, {});
  free.LimitSlotsToMemory(waiting);
  EXPECT_EQ(free.free_slots(), 27) << "without an outlook";
}

// --- names of prefix blocks ---

std::vector<uint32_t> Tokens(size_t count, uint32_t first = 0) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<uint32_t>(i) % 7;
  return tokens;
}

TEST(PrefixBlocks, OnlyWholeBlocksHaveNames) {
  EXPECT_EQ(NamePrefixBlocks({}), nullptr);
  EXPECT_EQ(NamePrefixBlocks(Tokens(kPrefixBlockTokens - 1)), nullptr);
  EXPECT_EQ(NamePrefixBlocks(Tokens(kPrefixBlockTokens))->size(), 1u);
  EXPECT_EQ(NamePrefixBlocks(Tokens(3 * kPrefixBlockTokens + 5))->size(), 3u);
}

TEST(PrefixBlocks, NamesAreEqualAsFarAsPromptsAre) {
  const std::vector<uint32_t> one = Tokens(6 * kPrefixBlockTokens);
  for (size_t at = 0; at < one.size(); at += 17) {
    std::vector<uint32_t> other = one;
    ++other[at];
    const PrefixBlocks a = NamePrefixBlocks(one), b = NamePrefixBlocks(other);
    for (size_t i = 0; i < a->size(); ++i)
      ASSERT_EQ((*a)[i] == (*b)[i], (i + 1) * kPrefixBlockTokens <= at) << "block " << i << ", token " << at;
  }
  EXPECT_EQ(NamePrefixBlocks(one)->back(), NamePrefixBlocks(Tokens(6 * kPrefixBlockTokens + 9))->back());
}

// Equal tokens in every block, and tokens in another order: no two names are the same.
TEST(PrefixBlocks, NamesTellPlaceAndOrder) {
  std::set<uint64_t> names;
  const std::vector<uint32_t> zeros(64 * kPrefixBlockTokens, 0);
  const PrefixBlocks of_zeros = NamePrefixBlocks(zeros);
  names.insert(of_zeros->begin(), of_zeros->end());
  std::vector<uint32_t> swapped = Tokens(kPrefixBlockTokens);
  names.insert(NamePrefixBlocks(swapped)->front());
  std::swap(swapped[0], swapped[1]);
  names.insert(NamePrefixBlocks(swapped)->front());
  EXPECT_EQ(names.size(), 66u);
}

}  // namespace
}  // namespace bfio::core
