#include "router/app/flags.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/config/command_line.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RouterFlags : public ::testing::Test {
 protected:
  absl::Status Read(const std::vector<std::string>& args) {
    settings_ = std::make_unique<RouterSettings>();
    OptionTable table;
    AddRouterOptions(table, *settings_);
    if (const auto line = ParseCommandLine(args, table); !line.ok()) return line.status();
    return FinishRouterOptions(table, *settings_);
  }
  std::string Error(const std::vector<std::string>& args) { return std::string(Read(args).message()); }
  const RouterOptions& options() const { return settings_->router; }

  std::unique_ptr<RouterSettings> settings_;
};

TEST_F(RouterFlags, MemoryIsDividedTwoToOne) {
  for (const auto& [args, mib] : {std::pair(std::vector<std::string>(), 256),
                                  {{"--request_memory_mb=768"}, 256},
                                  {{"--request_memory_mb=3"}, 1}}) {
    ASSERT_TRUE(Read(args).ok());
    EXPECT_EQ(options().requests().resume.budget_bytes, int64_t{mib} << 20);
    EXPECT_EQ(options().overload().max_waiting_bytes, int64_t{2 * mib} << 20);
  }
}

TEST_F(RouterFlags, ClientApisHaveOneForGatewaysAtMost) {
  const auto served = [&](const std::vector<std::string>& args) {
    EXPECT_TRUE(Read(args).ok());
    const auto& apis = options().client_apis;
    return std::tuple(apis.bfio, apis.vllm, apis.sglang);
  };
  EXPECT_EQ(served({}), std::tuple(true, true, false));
  EXPECT_EQ(served({"--client_apis=vllm"}), std::tuple(false, true, false));
  EXPECT_EQ(served({"--client_apis=vllm,bfio"}), std::tuple(true, true, false));
  EXPECT_EQ(served({"--client_apis=bfio,sglang"}), std::tuple(true, false, true));
  for (const char* none : {"--client_apis=", "--client_apis=vllm,", "--client_apis=tgi"})
    EXPECT_THAT(Error({none}), HasSubstr("must be a comma-separated list of bfio, vllm and sglang")) << none;
  EXPECT_THAT(Error({"--client_apis=sglang,bfio,vllm"}), HasSubstr("must not have both vllm and sglang"));
}

TEST_F(RouterFlags, TheModelIsNamedAfterItsDirectory) {
  const auto name = [&](const std::vector<std::string>& args) {
    EXPECT_TRUE(Read(args).ok());
    return options().served_model_name;
  };
  // Empty: the name is that of the model files that workers offer.
  EXPECT_EQ(name({}), "");
  EXPECT_EQ(name({"--tokenizer=/models/qwen3/"}), "qwen3");
  EXPECT_EQ(name({"--tokenizer=."}), "bfio");
  EXPECT_EQ(name({"--tokenizer=/models/qwen3", "--served_model_name=Qwen/Qwen3-0.6B"}), "Qwen/Qwen3-0.6B");
}

TEST_F(RouterFlags, OneTimeoutForClientsAndOneForSteps) {
  ASSERT_TRUE(Read({}).ok());
  EXPECT_EQ(options().requests().max_queue_time, absl::Minutes(5));
  ASSERT_TRUE(Read({"--client_timeout=7s", "--step_timeout=3s", "--max_queue_time=0"}).ok());
  const auto group = options().group_set(1).group;
  EXPECT_EQ(std::tuple(options().requests().resume.timeout, options().stream().timeout, group.retain),
            std::tuple(absl::Seconds(7), absl::Seconds(7), absl::Seconds(7)));
  EXPECT_EQ(std::tuple(group.form_timeout, group.step_timeout),
            std::tuple(absl::Seconds(3), absl::Seconds(3)));
  EXPECT_EQ(options().requests().max_queue_time, absl::ZeroDuration()) << "not bounded";
}

// Engines take requests while memory is free. bfio's own workers have no prefix cache, so their prompts are
// not named. Independent workers have a default policy of their own.
TEST_F(RouterFlags, DefaultsDependOnTheWorkers) {
  using Kind = core::KvAdmissionOptions::Kind;
  const std::string engines = "--engines=vllm://127.0.0.1:1", coupled = ::testing::TempDir() + "coupled.yaml";
  std::ofstream(coupled) << "engines: [{url: vllm://127.0.0.1:1, barrier: b}]\n";
  for (const auto& [args, policy, named, admission] :
       std::vector<std::tuple<std::vector<std::string>, const char*, bool, Kind>>{
           {{}, "bf_io_auto", false, Kind::kNone},
           {{"--coupling=none"}, "jffc", false, Kind::kNone},
           {{"--coupling=none", "--policy=fcfs"}, "fcfs", false, Kind::kNone},
           {{engines}, "least_work", true, Kind::kProtection},
           {{"--config=" + coupled}, "bf_io_auto", true, Kind::kProtection},
           {{engines, "--admission=none"}, "least_work", true, Kind::kNone}}) {
    ASSERT_TRUE(Read(args).ok());
    EXPECT_EQ(options().policy.name, policy);
    EXPECT_EQ(options().limits.name_prefixes, named) << policy;
    EXPECT_EQ(options().admission.kind, admission) << policy;
  }
  ASSERT_TRUE(Read({engines}).ok());
  EXPECT_EQ(options().admission.alpha, 0.05);
  ASSERT_TRUE(Read({"--admission=wait+kv_feasible:confidence=0.9"}).ok());
  EXPECT_EQ(options().admission.confidence, 0.9);
  EXPECT_EQ(options().wait.kind, core::WaitAdmissionOptions::Kind::kWait);
}

TEST_F(RouterFlags, ListsAndTls) {
  ASSERT_TRUE(Read({"--models=0123abcd", "--admin_tls=cert=a,key=b", "--election_etcd=http://a:1",
                    "--listen=10.0.0.1:5"})
                  .ok());
  EXPECT_THAT(options().models, ElementsAre("0123abcd"));
  EXPECT_EQ(options().admin_tls.key, "b");
  EXPECT_EQ(settings_->election.name, "10.0.0.1:5");
  EXPECT_TRUE(options().http_may_fail);
}

TEST_F(RouterFlags, MistakesNameTheFlag) {
  for (const auto& [args, message] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"--groups=65"}, "--groups=65: must be within 1..64"},
           {{"--models=xyz"}, "--models=xyz: 'xyz' must have 8 to 64"},
           {{"--tenant_limits=a"}, "--tenant_limits=a: "},
           {{"--client_tls=x"}, "--client_tls=x: must be cert=FILE"},
           {{"--election_tls=ca=x"}, "--election_tls needs --election_etcd"},
           {{"--replay_budget_mb=1"}, "unknown flag"},
           {{"--election_ttl=9s"}, "election_ttl is no flag, but a key of --config"},
           {{"--picker_listen=a:1", "--engines=vllm://a:1"},
            "--picker_listen needs --engines=http://HOST:PORTS"},
           {{"--coupling=none", "--plan_mode=lockstep"}, "--coupling=barrier"},
           {{"--coupling=none", "--admission=wait"}, "--coupling=barrier"}})
    EXPECT_THAT(Error(args), HasSubstr(message));
}

}  // namespace
}  // namespace bfio::router
