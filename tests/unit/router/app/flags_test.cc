#include "router/app/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
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
  ASSERT_TRUE(Read({}).ok());
  EXPECT_EQ(options().max_waiting_bytes, int64_t{512} << 20);
  EXPECT_EQ(options().replay_budget_bytes, int64_t{256} << 20);
  ASSERT_TRUE(Read({"--request_memory_mb=768"}).ok());
  EXPECT_EQ(options().max_waiting_bytes, int64_t{512} << 20);
  EXPECT_EQ(options().replay_budget_bytes, int64_t{256} << 20);
  ASSERT_TRUE(Read({"--request_memory_mb=3"}).ok());
  EXPECT_EQ(options().requests().resume.budget_bytes, 1 << 20);
  EXPECT_EQ(options().overload().max_waiting_bytes, 2 << 20);
}

TEST_F(RouterFlags, ClientApisHaveOneForGatewaysAtMost) {
  ASSERT_TRUE(Read({}).ok());
  EXPECT_TRUE(options().client_apis.bfio && options().client_apis.vllm && !options().client_apis.sglang);
  ASSERT_TRUE(Read({"--client_apis=vllm"}).ok());
  EXPECT_TRUE(!options().client_apis.bfio && options().client_apis.vllm);
  ASSERT_TRUE(Read({"--client_apis=vllm,bfio"}).ok());
  EXPECT_TRUE(options().client_apis.bfio && options().client_apis.vllm);
  ASSERT_TRUE(Read({"--client_apis=bfio,sglang"}).ok());
  EXPECT_TRUE(options().client_apis.bfio && !options().client_apis.vllm && options().client_apis.sglang);
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
  ASSERT_TRUE(Read({"--client_timeout=7s", "--step_timeout=3s"}).ok());
  EXPECT_EQ(options().requests().resume.timeout, absl::Seconds(7));
  EXPECT_EQ(options().stream().timeout, absl::Seconds(7));
  EXPECT_EQ(options().group_set(1).group.retain, absl::Seconds(7));
  EXPECT_EQ(options().group_set(1).group.form_timeout, absl::Seconds(3));
  EXPECT_EQ(options().group_set(1).group.step_timeout, absl::Seconds(3));
}

TEST_F(RouterFlags, TheTimeInTheQueueIsBoundedUnlessItIsZero) {
  ASSERT_TRUE(Read({}).ok());
  EXPECT_EQ(options().requests().max_queue_time, absl::Minutes(5));
  ASSERT_TRUE(Read({"--max_queue_time=0"}).ok());
  EXPECT_EQ(options().requests().max_queue_time, absl::ZeroDuration());
}

TEST_F(RouterFlags, OptionsWithoutAFlagHaveTheirConstants) {
  ASSERT_TRUE(Read({}).ok());
  EXPECT_EQ(options().scheduler().window, 4096) << "the whole pool";
  EXPECT_EQ(options().scheduler().hold_after_steps, 64);
  EXPECT_EQ(options().overload().max_waiting_kv, 64);
  EXPECT_EQ(options().requests().resume.request_bytes, 1 << 20);
  EXPECT_EQ(options().stream().buffer_tokens, 16384);
  EXPECT_EQ(options().group_set(1).group.report_timeout, absl::Milliseconds(200));
  EXPECT_EQ(options().policy_options.seed, 1u);
  EXPECT_EQ(options().policy_options.discount, 1);
}

TEST_F(RouterFlags, AdmissionSetsBothGates) {
  ASSERT_TRUE(Read({"--admission=wait+kv_feasible:confidence=0.9"}).ok());
  EXPECT_EQ(options().admission.confidence, 0.9);
  EXPECT_EQ(options().wait.kind, core::WaitAdmissionOptions::Kind::kWait);
}

TEST_F(RouterFlags, EnginesTakeRequestsWhileMemoryIsFree) {
  using Kind = core::KvAdmissionOptions::Kind;
  ASSERT_TRUE(Read({}).ok());
  EXPECT_EQ(options().admission.kind, Kind::kNone);
  ASSERT_TRUE(Read({"--engines=vllm://127.0.0.1:1"}).ok());
  EXPECT_EQ(options().admission.kind, Kind::kProtection);
  EXPECT_EQ(options().admission.alpha, 0.05);
  ASSERT_TRUE(Read({"--engines=vllm://127.0.0.1:1", "--admission=none"}).ok());
  EXPECT_EQ(options().admission.kind, Kind::kNone);
}

// bfio's own workers have no prefix cache.
TEST_F(RouterFlags, PromptsAreNamedForEnginesOnly) {
  for (const char* coupling : {"--coupling=auto", "--coupling=none"}) {
    ASSERT_TRUE(Read({coupling}).ok());
    EXPECT_FALSE(options().limits.name_prefixes);
  }
  for (const char* engines : {"--engines=vllm://127.0.0.1:1", "--engines=vllm://127.0.0.1:1?barrier=b"}) {
    ASSERT_TRUE(Read({engines}).ok());
    EXPECT_TRUE(options().limits.name_prefixes);
  }
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

TEST_F(RouterFlags, IndependentWorkersHaveADefaultPolicyOfTheirOwn) {
  ASSERT_TRUE(Read({"--coupling=none"}).ok());
  EXPECT_EQ(options().policy, "jffc");
  ASSERT_TRUE(Read({"--coupling=none", "--policy=fcfs"}).ok());
  EXPECT_EQ(options().policy, "fcfs");
  ASSERT_TRUE(Read({"--engines=vllm://127.0.0.1:1"}).ok());
  EXPECT_EQ(options().policy, "least_work");
  ASSERT_TRUE(Read({"--engines=vllm://127.0.0.1:1?barrier=b"}).ok());
  EXPECT_EQ(options().policy, "bf_io_auto") << "ranks in a barrier";
  EXPECT_THAT(Error({"--coupling=none", "--plan_mode=lockstep"}), HasSubstr("--coupling=barrier"));
  EXPECT_THAT(Error({"--coupling=none", "--admission=wait"}), HasSubstr("--coupling=barrier"));
}

TEST_F(RouterFlags, MistakesNameTheFlag) {
  EXPECT_THAT(Error({"--groups=65"}), HasSubstr("--groups=65: must be within 1..64"));
  EXPECT_THAT(Error({"--models=xyz"}), HasSubstr("--models=xyz: 'xyz' must have 8 to 64"));
  EXPECT_THAT(Error({"--tenant_limits=a"}), HasSubstr("--tenant_limits=a: "));
  EXPECT_THAT(Error({"--client_tls=x"}), HasSubstr("--client_tls=x: must be cert=FILE"));
  EXPECT_THAT(Error({"--election_tls=ca=x"}), HasSubstr("--election_tls needs --election_etcd"));
  EXPECT_THAT(Error({"--replay_budget_mb=1"}), HasSubstr("unknown flag"));
}

}  // namespace
}  // namespace bfio::router
