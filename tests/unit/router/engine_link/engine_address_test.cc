#include "router/engine_link/engine_address.h"

#include <string>
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
  EXPECT_FALSE(ParseEngines("sglang://a:1")->front().pinned);
  const auto engines = ParseEngines("sglang://a:1,sglang://b:1?pinned=1,sglang://c:1");
  ASSERT_TRUE(engines.ok()) << engines.status();
  EXPECT_TRUE((*engines)[0].pinned && (*engines)[1].pinned);
  EXPECT_FALSE((*engines)[2].pinned);
  const auto both = ParseEngines("sglang://a:1?pinned=1&barrier=x");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_TRUE(both->front().pinned);
  EXPECT_EQ(both->front().barrier, "x");
  EXPECT_THAT(ParseEngines("vllm://a:1?pinned=1").status().message(), HasSubstr("'pinned=1' is unknown"));
  EXPECT_THAT(ParseEngines("sglang://a:1?pinned=2").status().message(), HasSubstr("or pinned=1"));
  EXPECT_THAT(ParseEngines("sglang://a:1?pinned=1&token_budget=9").status().message(),
              HasSubstr("token_budget needs barrier"));
}

TEST(EngineAddress, MistakesInABarrierAreNamed) {
  const auto mistake = [](const std::string& text) {
    return std::string(ParseEngines(text).status().message());
  };
  EXPECT_THAT(mistake("vllm://a:1?barrier=x,vllm://b:1"), HasSubstr("'vllm://b:1' has no barrier"));
  EXPECT_THAT(mistake("vllm://a:1?barrier="), HasSubstr("NAME must have 1 to 64"));
  EXPECT_THAT(mistake("vllm://a:1?barrier=" + std::string(65, 'x')), HasSubstr("NAME must have 1 to 64"));
  EXPECT_THAT(mistake("vllm://a:1?barrier=a/b"), HasSubstr("NAME must have 1 to 64"));
  EXPECT_THAT(mistake("vllm://a:1?token_budget=512"), HasSubstr("token_budget needs barrier"));
  EXPECT_THAT(mistake("vllm://a:1?barrier=x&token_budget=0"), HasSubstr("within 1.."));
  EXPECT_THAT(mistake("vllm://a:1?barrier=x&budget=1"), HasSubstr("'budget=1'"));
  EXPECT_THAT(mistake("vllm://a:1?"), HasSubstr("is unknown"));
  EXPECT_THAT(mistake("vllm://a:1,vllm://a:1?barrier=x"), HasSubstr("twice"));
}

TEST(EngineAddress, MistakesAreNamed) {
  EXPECT_EQ(ParseEngines("sglang://a:1")->front().protocol, "sglang");
  EXPECT_THAT(ParseEngines("sglang://a:1,vllm://b:1").status().message(), HasSubstr("the same protocol"));
  EXPECT_THAT(ParseEngines("trt://a:1").status().message(), HasSubstr("'trt://a:1'"));
  EXPECT_EQ(ParseEngines("a:1").status().message(),
            "'a:1' must be vllm://HOST:PORT, sglang://HOST:PORT, vllm+dns://NAME:PORT, "
            "sglang+dns://NAME:PORT or file:PATH");
  EXPECT_FALSE(ParseEngines("vllm://").ok());
  EXPECT_FALSE(ParseEngines("vllm://a").ok());
  EXPECT_FALSE(ParseEngines("vllm://a:0").ok());
  EXPECT_THAT(ParseEngines("vllm://a:1,vllm://b:1,vllm://a:1").status().message(), HasSubstr("twice"));
}

}  // namespace
}  // namespace bfio::router
