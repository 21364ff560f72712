#include "router/engine_link/engine_list.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EngineAddress, ListsAreReadAsTheyAreWritten) {
  const auto engines = ParseEngines("vllm://a.b:1,vllm://[::1]:50");
  ASSERT_TRUE(engines.ok()) << engines.status();
  ASSERT_EQ(engines->size(), 2u);
  EXPECT_EQ((*engines)[0].ToString(), "vllm://a.b:1");
  EXPECT_EQ((*engines)[1].server, (Address{"::1", 50}));
  const auto named = ParseEngines("vllm+dns://engines.svc:1");
  EXPECT_TRUE(named->front().by_name);
  EXPECT_EQ(named->front().protocol, "vllm");
  EXPECT_EQ(named->front().ToString(), "vllm+dns://engines.svc:1");
  EXPECT_TRUE(ParseEngines("")->empty());
}

TEST(EngineAddress, ABarrierHoldsForTheServersBeforeIt) {
  const auto engines =
      ParseEngines("vllm://a:1,vllm://b:1?barrier=x,vllm://c:1,vllm://d:1?barrier=y-2&token_budget=512");
  ASSERT_TRUE(engines.ok()) << engines.status();
  std::vector<std::string> barriers;
  std::vector<int64_t> budgets;
  for (const EngineAddress& engine : *engines) {
    barriers.push_back(engine.barrier);
    budgets.push_back(engine.token_budget);
  }
  EXPECT_THAT(barriers, ElementsAre("x", "x", "y-2", "y-2"));
  EXPECT_THAT(budgets, ElementsAre(2048, 2048, 512, 512));
  EXPECT_EQ(engines->back().ToString(), "vllm://d:1") << "the name of its ranks says where it is";
}

TEST(EngineAddress, RanksOfSglangMayBePinned) {
  const auto engines = ParseEngines("sglang://a:1,sglang://b:1?pinned=1,sglang://c:1");
  ASSERT_TRUE(engines.ok()) << engines.status();
  EXPECT_EQ((*engines)[0].protocol, "sglang");
  EXPECT_TRUE((*engines)[0].pinned && (*engines)[1].pinned);
  EXPECT_FALSE((*engines)[2].pinned);
  const auto both = ParseEngines("sglang://a:1?pinned=1&barrier=x");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_TRUE(both->front().pinned);
  EXPECT_EQ(both->front().barrier, "x");
}

// Servers behind Envoy, which gets addresses and no names.
TEST(EngineAddress, APortRangeIsAServerForEachPort) {
  const auto engines =
      ParseEngines("http://10.0.0.1:8200-8202,8204,8206-8207?slots=32,http://[::1]:9000,9001,http://a.b:1");
  ASSERT_TRUE(engines.ok()) << engines.status();
  std::vector<std::string> texts;
  for (const EngineAddress& engine : *engines)
    texts.push_back(engine.ToString() + " " + std::to_string(engine.slots) + (engine.by_name ? " name" : ""));
  EXPECT_THAT(texts,
              ElementsAre("http://10.0.0.1:8200 32", "http://10.0.0.1:8201 32", "http://10.0.0.1:8202 32",
                          "http://10.0.0.1:8204 32", "http://10.0.0.1:8206 32", "http://10.0.0.1:8207 32",
                          "http://[::1]:9000 0", "http://[::1]:9001 0", "http://a.b:1 0 name"));
}

TEST(EngineAddress, MistakesAreNamed) {
  const std::string form =
      " must be http://HOST:PORTS, vllm://HOST:PORT, sglang://HOST:PORT, vllm+dns://NAME:PORT, "
      "sglang+dns://NAME:PORT or "
      "file:PATH";
  for (const auto& [text, mistake] : std::vector<std::pair<std::string, std::string>>{
           {"a:1", "'a:1'" + form},
           {"trt://a:1", "'trt://a:1'" + form},
           {"vllm://", "'vllm://'"},
           {"vllm://a", "address 'a' has no port"},
           {"vllm://a:0", "address 'a:0' has a port out of range"},
           {"sglang://a:1,vllm://b:1", "the same protocol"},
           {"vllm://a:1,vllm://b:1,vllm://a:1", "twice"},
           {"vllm://a:1,vllm://a:1?barrier=x", "twice"},
           {"vllm://a:1?pinned=1", "'pinned=1' is unknown"},
           {"sglang://a:1?pinned=2", "or pinned=1"},
           {"sglang://a:1?pinned=1&token_budget=9", "token_budget needs barrier"},
           {"vllm://a:1?barrier=x,vllm://b:1", "'vllm://b:1' has no barrier"},
           {"vllm://a:1?barrier=", "NAME must have 1 to 64"},
           {"vllm://a:1?barrier=" + std::string(65, 'x'), "NAME must have 1 to 64"},
           {"vllm://a:1?barrier=a/b", "NAME must have 1 to 64"},
           {"vllm://a:1?token_budget=512", "token_budget needs barrier"},
           {"vllm://a:1?barrier=x&token_budget=0", "within 1.."},
           {"vllm://a:1?barrier=x&budget=1", "'budget=1'"},
           {"vllm://a:1?", "is unknown"},
           {"http+dns://a:1", "'http+dns://a:1'" + form},
           {"http://a:8200-8199", "ports must be such as 8200-8207"},
           {"http://a:8200-x", "ports must be"},
           {"http://a:8200-70000", "ports must be"},
           {"http://a:1,0", "'0': ports must be"},
           {"http://a:1-3,2", "twice"},
           {"vllm://a:1,2", "'2'" + form},
           {"http://a:1?slots=0", "'slots=0': must be within 1.."},
           {"vllm://a:1?slots=4", "'slots=4' is unknown"},
       })
    EXPECT_THAT(std::string(ParseEngines(text).status().message()), HasSubstr(mistake)) << text;
}

}  // namespace
}  // namespace bfio::router
