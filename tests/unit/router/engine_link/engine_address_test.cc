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

absl::StatusOr<std::vector<EngineAddress>> OfConfig(const std::string& text) {
  EngineSource source;
  OptionTable table;
  AddEngines(table, &source, "");
  BFIO_RETURN_IF_ERROR(table.ReadConfig(text, "f"));
  return source.engines;
}

TEST(EngineAddress, EntriesHaveSettings) {
  const auto engines = OfConfig(
      "engines:\n"
      "- url: sglang://a:1\n  barrier: x\n"
      "- url: sglang+dns://b:1\n  barrier: y-2\n  token_budget: 512\n  pinned: true\n  tls: ca=c\n  "
      "token_file: t\n");
  ASSERT_TRUE(engines.ok()) << engines.status();
  EXPECT_THAT(*engines, ElementsAre(EngineAddress{.protocol = "sglang", .server = {"a", 1}, .barrier = "x"},
                                    EngineAddress{.protocol = "sglang",
                                                  .server = {"b", 1},
                                                  .by_name = true,
                                                  .barrier = "y-2",
                                                  .token_budget = 512,
                                                  .pinned = true,
                                                  .tls = {.ca = "c"},
                                                  .token_file = "t"}));
  EXPECT_EQ(engines->back().ToString(), "sglang+dns://b:1") << "the name of its ranks says where it is";
  const auto ports = OfConfig("engines: [{url: 'http://a.b:1-2,7', slots: 9}, 'http://a.c:1', http://a.c:2]");
  ASSERT_TRUE(ports.ok()) << ports.status();
  std::vector<int32_t> slots;
  for (const EngineAddress& engine : *ports) slots.push_back(engine.slots);
  EXPECT_THAT(slots, ElementsAre(9, 9, 9, 0, 0));
  const auto roles = OfConfig(
      "engines: [{url: 'http://a:1', role: prefill}, {url: 'http://a:2', role: decode, kv_connector: "
      "Other}]");
  ASSERT_TRUE(roles.ok()) << roles.status();
  EXPECT_TRUE(roles->front().hands_over && !roles->back().hands_over);
  EXPECT_EQ(roles->front().kv_connector + roles->back().kv_connector, "NixlConnectorOther");
  EXPECT_THAT(*OfConfig("engines: vllm://a:1,vllm://b:1"), ::testing::SizeIs(2)) << "as the flag";
}

// Servers behind Envoy, which gets addresses and no names.
TEST(EngineAddress, APortRangeIsAServerForEachPort) {
  const auto engines =
      ParseEngines("http://10.0.0.1:8200-8202,8204,8206-8207,http://[::1]:9000,9001,http://a.b:1");
  ASSERT_TRUE(engines.ok()) << engines.status();
  std::vector<std::string> texts;
  for (const EngineAddress& engine : *engines)
    texts.push_back(engine.ToString() + (engine.by_name ? " name" : ""));
  EXPECT_THAT(texts, ElementsAre("http://10.0.0.1:8200", "http://10.0.0.1:8201", "http://10.0.0.1:8202",
                                 "http://10.0.0.1:8204", "http://10.0.0.1:8206", "http://10.0.0.1:8207",
                                 "http://[::1]:9000", "http://[::1]:9001", "http://a.b:1 name"));
}

TEST(EngineAddress, MistakesAreNamed) {
  const std::string form =
      " must be http://HOST:PORTS, vllm://HOST:PORT, sglang://HOST:PORT, vllm+dns://NAME:PORT, "
      "sglang+dns://NAME:PORT or file:PATH";
  const std::string ports = ": ports must be such as 8200-8207 or 8200,8202";
  for (const auto& [text, mistake] : std::vector<std::pair<std::string, std::string>>{
           {"a:1", "'a:1'" + form},
           {"trt://a:1", "'trt://a:1'" + form},
           {"vllm://", "'vllm://'" + form},
           {"vllm://a", "address 'a' has no port; HOST:PORT is expected"},
           {"vllm://a:0", "address 'a:0' has a port out of range; HOST:PORT is expected"},
           {"sglang://a:1,vllm://b:1",
            "'vllm://b:1': all engines of a router must have the same protocol, http, vllm or sglang"},
           {"vllm://a:1,vllm://b:1,vllm://a:1", "'vllm://a:1' is listed twice"},
           {"vllm://a:1?barrier=x",
            "'vllm://a:1?barrier=x': settings of an engine must be keys of its entry in "
            "--config, not after '?'"},
           {"http+dns://a:1", "'http+dns://a:1'" + form},
           {"http://a", "address 'a' has no port; HOST:PORT is expected"},
           {"http://a:8200-8199", "'http://a:8200-8199'" + ports},
           {"http://a:8200-x", "'http://a:8200-x'" + ports},
           {"http://a:8200-", "'http://a:8200-'" + ports},
           {"http://a:8200-70000", "'http://a:8200-70000'" + ports},
           {"http://a:1,0", "'http://a:1,0'" + ports},
           {"http://a:1-3,2", "'http://a:2' is listed twice"},
           {"vllm://a:1,2", "'2'" + form},
       })
    EXPECT_EQ(std::string(ParseEngines(text).status().message()), mistake) << text;
  const std::string barriers = ": either all engines of a router have a barrier, or none";
  for (const auto& [entries, mistake] : std::vector<std::pair<std::string, std::string>>{
           {"{url: vllm://a:1}, {url: vllm://a:1}", "engines: 'vllm://a:1' is listed twice"},
           {"{slots: 3}", "engines: an engine has no url"},
           {"{url: 'trt://a:1'}", "url=trt://a:1: 'trt://a:1'" + form},
           {"{url: vllm://a:1, barrier: x}, vllm://b:1", "engines: 'vllm://b:1'" + barriers},
           {"vllm://b:1, {url: vllm://a:1, barrier: x}", "engines: 'vllm://a:1'" + barriers},
           {"{url: vllm://a:1, pinned: false}", "engines: pinned is for sglang:// only"},
           {"{url: sglang://a:1, pinned: 2}", "pinned=2: must be true or false"},
           {"{url: vllm://a:1, barrier: ''}", "barrier=: must have 1 to 64 letters, digits, '-', '_' or '.'"},
           {"{url: vllm://a:1, barrier: a/b}",
            "barrier=a/b: must have 1 to 64 letters, digits, '-', '_' or '.'"},
           {"{url: vllm://a:1, token_budget: 9}", "engines: token_budget needs a barrier"},
           {"{url: vllm://a:1, barrier: x, token_budget: 0}", "token_budget=0: must be within 1..16777216"},
           {"{url: vllm://a:1, budget: 9}",
            "no key is named budget; choose from url, barrier, token_budget, pinned, slots, "
            "role, kv_connector, tls, token_file"},
           {"{url: vllm://a:1, tls: x}",
            "tls=x: must be cert=FILE,key=FILE,ca=FILE or some of these, each at most once"},
           {"{url: vllm://a:1, token_file: x}",
            "engines: token_file needs tls: the token would not be encrypted"},
           {"{url: 'http://a:1', tls: ca=x}", "engines: tls is for vllm:// and sglang:// only"},
           {"{url: 'http://a:1', slots: 0}", "slots=0: must be within 1..65536"},
           {"{url: vllm://a:1, slots: 4}", "engines: slots is for http:// only: other engines report them"},
           {"{url: 'http://a:1', role: both}", "role=both: must be prefill or decode"},
           {"{url: vllm://a:1, role: decode}", "engines: role is for http:// only: other engines report it"},
           {"{url: 'http://a:1', kv_connector: C}", "engines: kv_connector needs a role"},
       })
    EXPECT_EQ(std::string(OfConfig("engines: [" + entries + "]").status().message()), "f:1: " + mistake);
}

}  // namespace
}  // namespace bfio::router
