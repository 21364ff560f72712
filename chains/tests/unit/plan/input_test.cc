// Input files of pools and models: what is read from them, and an error message for every mistake.
#include <gmock/gmock.h>

#include "chains/plan/input.h"
#include "chains/plan/planner.h"

namespace bfio::plan {
namespace {

using ::testing::HasSubstr;

std::string ModelError(const char* text) {
  return std::string(ParseModel(text, "m.json").status().message());
}

constexpr char kBloom[] = R"({"blocks": 70, "block_gb": 1.32, "cache_gb": 0.11})";

std::string PoolError(const std::string& server) {
  const std::string text = "{\"servers\": [" + server + "]}";
  return std::string(ParsePool(text, "p.json", *ParseModel(kBloom, "m.json")).status().message());
}

TEST(ParseModel, Sizes) {
  const core::ChainService sizes = *ParseModel(kBloom, "m.json");
  EXPECT_EQ(sizes.blocks, 70);
  EXPECT_EQ(sizes.block_size, 1.32);
  EXPECT_EQ(sizes.cache_size, 0.11);
}

TEST(ParseModel, Mistakes) {
  EXPECT_EQ(ModelError("[1]"), "m.json: is not a JSON object");
  EXPECT_EQ(ModelError(R"({"block_gb": 1, "cache_gb": 1})"), "m.json: blocks is missing");
  EXPECT_EQ(ModelError(R"({"blocks": 1.5, "block_gb": 1, "cache_gb": 1})"),
            "m.json: blocks is 1.5; must be an integer");
  EXPECT_EQ(ModelError(R"({"blocks": 2, "block_gb": "1", "cache_gb": 1})"),
            "m.json: block_gb is '1'; must be a number");
  EXPECT_THAT(ModelError(R"({"blocks": 2, "block_gb": 1, "cash_gb": 1})"), HasSubstr("'cash_gb' is unknown"));
  EXPECT_EQ(ModelError(R"({"blocks": 2, "block_gb": 0, "cache_gb": 1})"),
            "m.json: block_gb is 0; must be at least 1e-09");
}

TEST(ParsePool, TimesAndNames) {
  const auto servers = *ParsePool(
      R"({"servers": [{"name": "fast", "count": 2, "memory_gb": 40, "block_ms": 109, "communication_ms": 760},
                      {"memory_gb": 20, "block_ms": 175, "communication_ms": 760}]})",
      "p.json", *ParseModel(kBloom, "m.json"));
  ASSERT_EQ(servers.size(), 3u);
  EXPECT_EQ(servers[1].name, "fast-1");
  EXPECT_EQ(servers[2].name, "server-1");
  EXPECT_NEAR(servers[0].compute, 0.109, 1e-12);
  EXPECT_NEAR(servers[0].communication, 0.76, 1e-12);
  EXPECT_NEAR(servers[2].compute, 0.175, 1e-12);
  EXPECT_NEAR(servers[2].communication, 0.76, 1e-12);
}

TEST(ParsePool, Mistakes) {
  EXPECT_THAT(PoolError(R"({"memory_gb": 20, "block_ms": 1})"),
              HasSubstr("p.json: servers[0]: communication_ms is missing"));
  EXPECT_THAT(PoolError(R"({"block_ms": 1, "communication_ms": 1})"), HasSubstr("memory_gb is missing"));
  EXPECT_THAT(PoolError(R"({"memory_gb": -1, "block_ms": 1, "communication_ms": 1})"),
              HasSubstr("memory_gb is -1; must be"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1, "memory": 2, "block_ms": 1, "communication_ms": 1})"),
              HasSubstr("'memory'"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1, "communication_ms": 1})"), HasSubstr("block_ms is missing"));
  EXPECT_THAT(PoolError("7"), HasSubstr("servers[0]: is not a JSON object"));
  EXPECT_THAT(PoolError(""), HasSubstr("1 to 1024 servers, not 0"));
  EXPECT_THAT(PoolError(R"({"count": 2000, "memory_gb": 1, "block_ms": 1, "communication_ms": 1})"),
              HasSubstr("count is 2000; must be"));
  EXPECT_THAT(PoolError(R"({"name": "a", "count": 2, "memory_gb": 1, "block_ms": 1, "communication_ms": 1},
                           {"name": "a-1", "memory_gb": 1, "block_ms": 1, "communication_ms": 1})"),
              HasSubstr("servers[0] and servers[1] have the same name 'a-1'"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1, "block_ms": 1, "communication_ms": 1e250})"),
              HasSubstr("within 0..1e9 s"));
  EXPECT_THAT(PoolError(R"({"memory_gb": 1e300, "block_ms": 1, "communication_ms": 1})"),
              HasSubstr("holds more than"));
  EXPECT_THAT(std::string(ParsePool(R"({"server": []})", "p.json", {}).status().message()),
              HasSubstr("the list 'servers'"));
}

}  // namespace
}  // namespace bfio::plan
