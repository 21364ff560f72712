// What a rank's KV events say of its losses, and how they come.
#include "router/engine_link/http/kv_events.h"

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/kv_publisher.h"

namespace bfio::router {
namespace {

using Json = nlohmann::json;

std::string Packed(const Json& json) {
  return testing::KvPublisher::Packed(json);
}
Json Removed(int blocks, const Json& medium = "GPU") {
  return Json::array({"BlockRemoved", std::vector<int>(static_cast<size_t>(blocks), 7), medium});
}
// Another one, which tells no loss, comes first.
Json Batch(const Json& event) {
  const Json stored = {"BlockStored", {7, 8}, nullptr, {1, 2, 3}, 16, nullptr, "GPU"};
  return {1.5, {stored, event}, 3};
}

TEST(ReadKvEvents, BlocksThatAreRemovedAndAllThatAreCleared) {
  const struct {
    Json batch;
    int64_t blocks;
    bool all = false;
  } kCases[] = {
      {Batch(Removed(3)), 3},
      {Batch(Removed(3, nullptr)), 3},
      {Batch(Removed(3, "CPU")), 0},
      {Batch({"BlockRemoved", {Json::binary({1, 2}), Json::binary({3})}}), 2},
      {Batch({"BlockRemoved", {1, 2}, "GPU", 1}), 0},
      {Batch({"AllBlocksCleared"}), 0, true},
      {Batch({"Another", {1, 2}, {{{"a", 1}}}}), 0},
      {{1.5, Json::array()}, 0},
      {{{"ts", 1.5}, {"events", {{{"type", "BlockRemoved"}, {"block_hashes", {1, 2}}, {"medium", "GPU"}}}}},
       2},
      {{{"events", {{{"type", "AllBlocksCleared"}}}}, {"ts", 1.5}}, 0, true},
      {{{"others", {{{"type", "AllBlocksCleared"}}}}}, 0},
  };
  for (const auto& [batch, blocks, all] : kCases) {
    const auto losses = ReadKvEvents(Packed(batch));
    ASSERT_TRUE(losses.ok()) << batch;
    EXPECT_EQ(losses->blocks, blocks) << batch;
    EXPECT_EQ(losses->all, all) << batch;
  }
  const std::string good = Packed(Batch(Removed(3)));
  for (const std::string& bad :
       {std::string(), good.substr(0, good.size() - 1), good + "x", Packed("text"),
        std::string(size_t{1} << 20, '\x91'), std::string("\xdd\xff\xff\xff\xff", 5), std::string("\xc1")})
    EXPECT_FALSE(ReadKvEvents(bad).ok()) << bad.substr(0, 9);
}

// What is lost after a message, which changes something.
int64_t Lost(KvEvents& events, int32_t rank) {
  for (;; absl::SleepFor(absl::Milliseconds(1)))
    if (const int64_t lost = events.TakeLost(rank); lost > 0) return lost;
}

TEST(KvEvents, AShareIsLostByBlocksAndAllByGapsRestartsAndWhatCannotBeRead) {
  constexpr int32_t kRank = 2;
  testing::KvPublisher engine;
  KvEvents events("http://a:1", "127.0.0.1", engine.port() - kRank);
  EXPECT_EQ(events.TakeLost(kRank), 0) << "not followed yet";
  events.Follow(kRank, 1000);
  uint64_t number = 40;
  // Until it is subscribed.
  for (int64_t lost = 0; lost == 0; absl::SleepFor(absl::Milliseconds(1))) {
    engine.Send(number++, Packed(Batch(Removed(1))));
    lost = events.TakeLost(kRank);
    EXPECT_LT(lost, 1'000'000) << "its first number may be any";
  }
  engine.Send(number++, Packed(Batch({"AllBlocksCleared"})));
  while (Lost(events, kRank) < 1'000'000) continue;
  engine.Send(number++, Packed(Batch(Removed(250))));
  EXPECT_EQ(Lost(events, kRank), 250'000);
  engine.Send(number++, Packed(Batch({"AllBlocksCleared"})));
  EXPECT_EQ(Lost(events, kRank), 1'000'000);
  engine.Send(number + 1, Packed(Batch(Removed(1))));
  EXPECT_EQ(Lost(events, kRank), 1'000'000) << "one is missing";
  engine.Send(0, Packed(Batch(Removed(1))));
  EXPECT_EQ(Lost(events, kRank), 1'000'000) << "it has been restarted";
  engine.Send(1, "\xc1");
  EXPECT_EQ(Lost(events, kRank), 1'000'000);
  engine.Send(2, Packed(Batch(Removed(10))));
  EXPECT_EQ(Lost(events, kRank), 10'000);
  engine.Send({"one part"});
  EXPECT_EQ(Lost(events, kRank), 1'000'000);
  EXPECT_EQ(events.TakeLost(kRank + 1), 0);
}

}  // namespace
}  // namespace bfio::router
