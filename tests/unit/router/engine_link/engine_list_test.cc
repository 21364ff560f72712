// Lists of engines that change while the router runs, and the threads that look them up.
#include "router/engine_link/engine_list.h"

#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine_link/engine_link.h"
#include "tests/testing/latch.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EngineListTest : public ::testing::Test {
 protected:
  ~EngineListTest() override { std::remove(path_.c_str()); }
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  // A value of the option, or a list of entries in a config file.
  static absl::StatusOr<EngineSource> Source(const std::string& text) {
    EngineSource source;
    OptionTable table;
    AddEngines(table, &source, "");
    BFIO_RETURN_IF_ERROR(table.ReadConfig("engines: " + text, "f"));
    return source;
  }
  absl::StatusOr<EngineSource> Read() { return Source("file:" + path_); }
  EngineList List(const std::string& text) {
    return {*Source(text), [this](const std::string& host) -> absl::StatusOr<std::vector<std::string>> {
              if (!hosts_.contains(host)) return absl::UnavailableError("no such name");
              return hosts_[host];
            }};
  }
  static std::vector<std::string> Names(const std::vector<EngineAddress>& engines) {
    std::vector<std::string> names;
    for (const EngineAddress& engine : engines) {
      names.push_back(engine.ToString());
      if (!engine.barrier.empty()) names.back() += "?" + engine.barrier;
    }
    return names;
  }

  const std::string path_ =
      ::testing::TempDir() + "/engines_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::map<std::string, std::vector<std::string>> hosts_;
};

TEST_F(EngineListTest, AGivenListIsNotWatched) {
  for (const auto& [list, watched] :
       {std::pair("vllm://a:1,vllm://b:1", false), {"''", false}, {"vllm+dns://a:1", true}})
    EXPECT_EQ(Source(list)->watched(), watched) << list;
  EXPECT_THAT(Names(List("vllm://a:1,vllm://b:1").Resolve()), ElementsAre("vllm://a:1", "vllm://b:1"));
}

TEST_F(EngineListTest, AFileHasTheSameList) {
  EXPECT_EQ(Read().status().message(), "f:1: engines=file:" + path_ + ": cannot read " + path_);
  for (const auto& [text, mistake] : std::vector<std::pair<std::string, std::string>>{
           {"# none\n", path_ + " lists no engine"},
           {"engines:\n- vllm://a:1\n- url: nonsense\n", path_ + ":3: url=nonsense: 'nonsense' must be"},
           {"engines: file:" + path_, path_ + ":1: engines=file:"},
           {"workers: 3\n", path_ + ":1: no flag is named workers"},
           {std::string((1 << 20) + 1, '#'), path_ + " is larger than"}}) {
    Write(text);
    EXPECT_THAT(Read().status().message(), HasSubstr(mistake));
  }
  Write(
      "\xef\xbb\xbf# the fleet\nengines:\n- {url: vllm://a:1, barrier: x}  # first\n- {url: vllm://b:1, "
      "barrier: x}\n");
  EXPECT_THAT(Names(Read()->engines), ElementsAre("vllm://a:1?x", "vllm://b:1?x"));
  EXPECT_TRUE(Read()->watched());
}

TEST_F(EngineListTest, ChangesOfAFileTakeEffectAndInvalidFilesDoNot) {
  Write("engines: [vllm://a:1, vllm://b:1]");
  EngineList list = List("file:" + path_);
  EXPECT_THAT(Names(list.Resolve()), ElementsAre("vllm://a:1", "vllm://b:1"));
  for (const char* wrong : {"engines: [vllm://b:1, vllm://c:1]", "", "engines: [",
                            "engines: [{url: vllm://d:1, barrier: now}]"}) {
    Write(wrong);
    EXPECT_THAT(Names(list.Resolve()), ElementsAre("vllm://b:1", "vllm://c:1")) << wrong;
  }
  std::remove(path_.c_str());
  EXPECT_THAT(Names(list.Resolve()), ElementsAre("vllm://b:1", "vllm://c:1"));
  Write("engines: vllm://d:1");
  EXPECT_THAT(Names(list.Resolve()), ElementsAre("vllm://d:1"));
}

TEST_F(EngineListTest, EachAddressOfANameIsAServer) {
  EngineList list = List("[{url: vllm+dns://pods:50, barrier: x}, {url: vllm+dns://more:50, barrier: x}]");
  EXPECT_THAT(list.Resolve(), IsEmpty()) << "it has never resolved";
  hosts_["pods"] = {"10.0.0.1", "10.0.0.2", "10.0.0.1"};
  hosts_["more"] = {"10.0.0.2", "10.0.0.4"};
  const auto servers = ElementsAre("vllm://10.0.0.1:50?x", "vllm://10.0.0.2:50?x", "vllm://10.0.0.4:50?x");
  EXPECT_THAT(Names(list.Resolve()), servers);
  // A name that resolves no more keeps its addresses.
  hosts_["pods"] = {};
  hosts_.erase("more");
  for (int i = 0; i < 2 * EngineList::kAnswersWithout; ++i) EXPECT_THAT(Names(list.Resolve()), servers);
}

TEST_F(EngineListTest, APoolHasTheServersThatItsWatchTells) {
  absl::StatusOr<std::vector<Address>> pool = absl::UnavailableError("no answer");
  std::vector<EngineAddress> asked;
  EngineList list(*Source("[{url: k8s://ns/p, slots: 8, api_server: 'api:6443', api_files: /f}]"), nullptr,
                  [&](const EngineAddress& engine) {
                    asked.push_back(engine);
                    return pool;
                  });
  EXPECT_THAT(list.Resolve(), IsEmpty());
  EXPECT_EQ(asked[0].pool, "ns/p");
  EXPECT_EQ(asked[0].api_server.ToString(), "api:6443");
  EXPECT_EQ(asked[0].api_files, "/f");
  pool = std::vector<Address>{{"10.0.0.1", 8200}, {"10.0.0.1", 8201}, {"fd00::2", 8200}};
  const auto engines = list.Resolve();
  EXPECT_THAT(Names(engines),
              ElementsAre("http://10.0.0.1:8200", "http://10.0.0.1:8201", "http://[fd00::2]:8200"));
  EXPECT_EQ(engines[0].slots, 8);
  pool = absl::UnavailableError("no answer");
  EXPECT_EQ(list.Resolve(), engines);
  pool = std::vector<Address>{{"10.0.0.1", 8201}};
  EXPECT_THAT(Names(list.Resolve()), ElementsAre("http://10.0.0.1:8201")) << "at once";
  pool = std::vector<Address>();
  EXPECT_THAT(list.Resolve(), IsEmpty());
  EXPECT_TRUE(Source("k8s://ns/p,k8s://ns/q")->watched());
}

TEST_F(EngineListTest, NamesWithTooManyAddressesLeaveTheFirst) {
  EngineList list = List("vllm+dns://few:50,vllm+dns://more:50,vllm+dns://many:50");
  hosts_["few"] = {"10.1.0.1"};
  for (size_t i = 0; i < kMostEngines; ++i)
    hosts_["more"].push_back(absl::StrCat("10.0.", i / 250, ".", i % 250));
  hosts_["many"] = hosts_["more"];
  hosts_["many"].push_back("10.1.0.2");
  const auto engines = list.Resolve();
  ASSERT_EQ(engines.size(), kMostEngines);
  EXPECT_EQ(engines.front().ToString(), "vllm://10.1.0.1:50");
}

TEST_F(EngineListTest, AnAddressLeavesWhenSeveralAnswersHaveNotHadIt) {
  // The name is looked up separately for each of the two ports.
  EngineList list = List("vllm+dns://pods:50,vllm+dns://pods:60");
  const auto both =
      ElementsAre("vllm://10.0.0.1:50", "vllm://10.0.0.2:50", "vllm://10.0.0.1:60", "vllm://10.0.0.2:60");
  hosts_["pods"] = {"10.0.0.1", "10.0.0.2"};
  EXPECT_THAT(Names(list.Resolve()), both);
  // A resolver that returns one of the two addresses alternately.
  for (int i = 0; i < 4 * EngineList::kAnswersWithout; ++i) {
    hosts_["pods"] = {i % 2 == 0 ? "10.0.0.1" : "10.0.0.2"};
    EXPECT_THAT(Names(list.Resolve()), both) << i;
  }
  hosts_["pods"] = {"10.0.0.1"};
  for (int i = 1; i < EngineList::kAnswersWithout; ++i) EXPECT_THAT(Names(list.Resolve()), both) << i;
  EXPECT_THAT(Names(list.Resolve()), ElementsAre("vllm://10.0.0.1:50", "vllm://10.0.0.1:60"));
  hosts_["pods"] = {"10.0.0.2", "10.0.0.1"};
  EXPECT_THAT(Names(list.Resolve()), both) << "it joins at once";
}

TEST_F(EngineListTest, ANameThatTheFileHasNoMoreIsForgotten) {
  Write("engines: [vllm+dns://pods:50, vllm://a:1]");
  EngineList list = List("file:" + path_);
  hosts_["pods"] = {"10.0.0.1"};
  EXPECT_THAT(Names(list.Resolve()), ElementsAre("vllm://10.0.0.1:50", "vllm://a:1"));
  Write("engines: [vllm://a:1]");
  EXPECT_THAT(Names(list.Resolve()), ElementsAre("vllm://a:1")) << "a file is obeyed at once";
  hosts_["pods"] = {"10.0.0.2"};
  Write("engines: [vllm+dns://pods:50]");
  EXPECT_THAT(Names(list.Resolve()), ElementsAre("vllm://10.0.0.2:50"));
}

TEST_F(EngineListTest, AServerOfBothFamiliesIsThereOnce) {
  EngineList list = List("vllm+dns://both:50,vllm+dns://six:50");
  hosts_["both"] = {"fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2"};
  hosts_["six"] = {"fd00::3"};
  const auto once = ElementsAre("vllm://10.0.0.1:50", "vllm://10.0.0.2:50", "vllm://[fd00::3]:50");
  EXPECT_THAT(Names(list.Resolve()), once);
  hosts_["both"] = {"fd00::1", "fd00::2"};
  EXPECT_THAT(Names(list.Resolve()), once) << "an answer of one family alone changes nothing";
}

TEST_F(EngineListTest, TheSystemResolvesNames) {
  const auto addresses = ResolveBySystem("localhost");
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_THAT(*addresses, ::testing::AnyOf(::testing::Contains("127.0.0.1"), ::testing::Contains("::1")));
  EXPECT_THAT(*ResolveBySystem("127.0.0.3"), ElementsAre("127.0.0.3"));
  EXPECT_FALSE(ResolveBySystem("no such host").ok());
}

class NoHandler final : public WorkerHandler {
 public:
  void OnWorkerEvent(std::shared_ptr<WorkerChannel>, WorkerEvent) override {}
  core::RequestId NextId() override { return 0; }
};

TEST(EngineLink, StopWaitsForNoLookup) {
  testing::Latch asked{1}, answer{1};
  std::atomic<int> lookups = 0;
  std::atomic<bool> answered = false;
  NoHandler handler;
  {
    EngineLink::Options options;
    options.engines.engines = *ParseEngines("vllm+dns://one:1,vllm+dns://two:1");
    options.resolve = [&](const std::string&) -> absl::StatusOr<std::vector<std::string>> {
      if (lookups++ == 0) asked.count_down();
      // The timeout makes the test fail instead of hang if a link waits for this answer.
      answer.wait_for(absl::Seconds(20));
      answered = true;
      return absl::UnavailableError("no answer");
    };
    EngineLink link(std::move(options), &handler);
    asked.wait();
    link.Stop();
    EXPECT_FALSE(answered);
    answer.count_down();
  }
  EXPECT_EQ(lookups, 1) << "the other name is not looked up any more";
}

// --- engine address ---

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
  const auto secure = OfConfig("engines: [{url: 'https://a:1-2', tls: ca=c}, 'http://a:3']");
  ASSERT_TRUE(secure.ok()) << secure.status();
  EXPECT_EQ(secure->at(1).ToString() + " " + secure->at(2).ToString(), "https://a:2 http://a:3");
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
      " must be http://HOST:PORTS, https://HOST:PORTS, vllm://HOST:PORT, sglang://HOST:PORT, "
      "vllm+dns://NAME:PORT, sglang+dns://NAME:PORT, k8s://NAMESPACE/POOL or file:PATH";
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
           {"http://a:1-65535", "lists more than 4096 engines"},
           {"http://a:1-4096,http://b:1", "lists more than 4096 engines"},
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
            "role, kv_connector, kv_events, kv_replay, step_metrics, prefixes, tls, token_file"},
           {"{url: vllm://a:1, tls: x}",
            "tls=x: must be cert=FILE,key=FILE,ca=FILE or some of these, each at most once"},
           {"{url: vllm://a:1, token_file: x}",
            "engines: token_file needs tls: the token would not be encrypted"},
           {"{url: 'http://a:1', tls: ca=x}", "engines: tls needs https:// here"},
           {"https://a:1", "engines: https:// needs tls in its entry of --config"},
           {"{url: 'http://a:1', slots: 0}", "slots=0: must be within 1..65536"},
           {"{url: vllm://a:1, slots: 4}", "engines: slots is for http:// only: other engines report them"},
           {"{url: 'http://a:1', role: both}", "role=both: must be prefill or decode"},
           {"{url: http://a:1, api_files: /f}", "engines: api_server and api_files are for k8s:// only"},
           {"{url: k8s://ns}", "url=k8s://ns: 'k8s://ns' must be k8s://NAMESPACE/POOL"},
           {"{url: k8s://n&s/p}", "url=k8s://n&s/p: 'k8s://n&s/p' must be k8s://NAMESPACE/POOL"},
           {"{url: vllm://a:1, kv_events: 5557}", "engines: kv_events needs an IP address in url, or +dns"},
           {"{url: 'http://a:1', kv_replay: 5558}", "engines: kv_replay needs kv_events"},
           {"{url: vllm://a:1, step_metrics: 20380}", "engines: step_metrics is for http:// only"},
           {"{url: vllm://a:1, prefixes: exact}", "engines: prefixes: exact needs kv_events"},
           {"{url: 'http://a:1', prefixes: all}", "prefixes=all: must be text or exact"},
           {"{url: vllm://a:1, role: decode}", "engines: role is for http:// only: other engines report it"},
           {"{url: 'http://a:1', kv_connector: C}", "engines: kv_connector needs a role"},
           {"{url: 'http://a:1', role: prefill, kv_connector: MooncakeConnector}",
            "engines: kv_connector MooncakeConnector is for vllm:// only"},
           {"{url: 'http://a:1', kv_bootstrap: b:1}", "engines: kv_bootstrap needs kv_connector sglang here"},
       })
    EXPECT_THAT(std::string(OfConfig("engines: [" + entries + "]").status().message()),
                ::testing::StartsWith("f:1: " + mistake));
}

}  // namespace
}  // namespace bfio::router
