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
  Write("# the fleet\nengines:\n- {url: vllm://a:1, barrier: x}  # first\n- {url: vllm://b:1, barrier: x}\n");
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

}  // namespace
}  // namespace bfio::router
