// The flags of bfio_router, and the engines that they name.
#include "router/app/flags.h"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/config/program.h"
#include "router/app/engines.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
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
  EXPECT_EQ(options().requests().max_queue_time, absl::Minutes(1));
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

// --- engines ---

struct Engine {
  // Absent: it never answers.
  std::optional<absl::StatusOr<EngineDescription>> description;
  std::vector<EngineRankLoad> loads;
};

class FakeClient final : public EngineClient {
 public:
  explicit FakeClient(const Engine& engine) : engine_(engine) {}
  void Describe(absl::Duration,
                absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&> done) override {
    if (engine_.description) std::move(done)(*engine_.description);
  }
  void CheckHealth(absl::Duration, absl::AnyInvocable<void(absl::Status) &&>) override {}
  void GetLoads(absl::Duration,
                absl::AnyInvocable<void(absl::StatusOr<std::vector<EngineRankLoad>>) &&> done) override {
    if (engine_.loads.empty()) return std::move(done)(absl::UnimplementedError("no loads"));
    std::move(done)(engine_.loads);
  }
  std::shared_ptr<EngineRecords> Subscribe(RecordCallbacks) override { return nullptr; }
  std::shared_ptr<EngineStream> Generate(const EngineCall&, std::optional<int32_t>, const std::string&,
                                         StreamCallbacks) override {
    return nullptr;
  }

 private:
  const Engine engine_;
};

EngineDescription Of(const std::string& model, int32_t ranks = 1, int32_t first = 0, int32_t all = 1) {
  return {.ranks = ranks,
          .first_rank = first,
          .all_ranks = all,
          .slots = 8,
          .kv_tokens = 4000,
          .max_sequence_tokens = 1000,
          .model = model};
}

EngineCheck Check(const std::string& engines, int32_t workers, const std::map<std::string, Engine>& at,
                  const std::string& barrier = "") {
  RouterOptions options;
  options.engines.engines = *ParseEngines(engines);
  for (EngineAddress& engine : options.engines.engines) engine.barrier = barrier;
  options.workers = workers;
  options.step_timeout = absl::ZeroDuration();
  return CheckEngines(options,
                      {.resolve = [](const std::string& host) -> absl::StatusOr<std::vector<std::string>> {
                         if (host == "pods") return std::vector<std::string>{"10.0.0.1", "10.0.0.2"};
                         return absl::NotFoundError("no such name");
                       },
                       .make_client =
                           [&at](const EngineAddress& engine) {
                             return std::make_unique<FakeClient>(at.at(engine.server.host));
                           },
                       .grace = absl::ZeroDuration()});
}

TEST(CheckEngines, ALineForEachRank) {
  const EngineCheck check = Check("vllm+dns://pods:1,vllm://a:1", 4,
                                  {{"10.0.0.1", {Of("m"), {{0, {.requests = 3, .tokens = 70}}}}},
                                   {"10.0.0.2", {Of("m"), {{7, {.requests = 9}}}}},
                                   {"a", {Of("m", 2, 2, 4)}}},
                                  "ep");
  EXPECT_THAT(
      check.ranks,
      ElementsAre("vllm://10.0.0.1:1 rank 0: model m, 8 slots, 4000 KV tokens, barrier ep, load 3 "
                  "requests and 70 tokens",
                  "vllm://10.0.0.2:1 rank 0: model m, 8 slots, 4000 KV tokens, barrier ep, load not "
                  "reported",
                  "vllm://a:1 rank 2: model m, 8 slots, 4000 KV tokens, barrier ep, load not reported",
                  "vllm://a:1 rank 3: model m, 8 slots, 4000 KV tokens, barrier ep, load not reported"));
  EXPECT_THAT(check.faults, ElementsAre());
}

TEST(CheckEngines, EachFaultIsALine) {
  const std::map<std::string, Engine> at = {{"a", {Of("m")}},
                                            {"b", {Of("m")}},
                                            {"other", {Of("n")}},
                                            {"part", {Of("m", 2, 0, 4)}},
                                            {"refuses", {absl::UnavailableError("Connection refused")}},
                                            {"silent", {}},
                                            {"small", {EngineDescription{.model = "m"}}}};
  struct Row {
    const char* engines;
    int32_t workers;
    const char* barrier;
    std::vector<std::string> faults;
  };
  for (const Row& row : {
           Row{"vllm://a:1,vllm://b:1", 1, "", {}},
           {"vllm://a:1,vllm://b:1", 2, "ep", {}},
           {"vllm://refuses:1",
            1,
            "",
            {"vllm://refuses:1: Connection refused (is it started, and is this its port?)"}},
           {"vllm://a:1,vllm://silent:1", 1, "", {"vllm://silent:1: no answer"}},
           {"vllm://a:1,vllm+dns://nowhere:1", 1, "", {"vllm+dns://nowhere:1: the name has no address"}},
           {"vllm://a:1,vllm://other:1", 1, "", {"vllm://other:1: model n, but vllm://a:1 has m"}},
           {"vllm://small:1",
            1,
            "",
            {"vllm://small:1: it does not report how many requests it runs at a time (max_num_seqs)"}},
           {"vllm://a:1,vllm://b:1", 3, "", {"the engines: 2 ranks found, but --min_ranks=3"}},
           {"vllm://a:1,vllm://b:1", 1, "ep", {"barrier ep: 2 ranks found, but --min_ranks=1"}},
           {"vllm://part:1", 2, "ep", {"barrier ep: 2 of the model's 4 ranks are listed"}},
       }) {
    EXPECT_THAT(Check(row.engines, row.workers, at, row.barrier).faults, ElementsAreArray(row.faults))
        << row.engines;
  }
}

}  // namespace
}  // namespace bfio::router
