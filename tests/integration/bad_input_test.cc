// User errors on the command line or in a file give one clear line and the right exit code.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/workload/trace.h"
#include "router/record/codec.h"
#include "router/record/log_format.h"
#include "tests/testing/bad_input.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// What a program finds before it does anything. Mistakes in its own flags:
// tests/unit/{common/config,router/app,worker/link}.
TEST(BadInput, MistakesAreOneLine) {
  const std::string router = "--router=10.0.0.1:50051", host = "--barrier_host=10.0.0.2";
  const std::string config = WriteFile("bad.json", "{\"workers\": 2, \"wrokers\": 3}\n");
  struct Row {
    const char* program;
    std::vector<std::string> args;
    const char* part;
  };
  for (const Row& row : {
           Row{"bfio_router", {"--workers=many"}, "min_ranks"},
           {"bfio_router", {absl::StrCat("--config=", config)}, "bad.json:1: no flag is named wrokers"},
           {"bfio_router", {"--engines=file:no/such/file"}, "--engines=file:no/such/file: cannot read"},
           {"bfio_worker", {"--engine=quantum"}, "quantum"},
           {"bfio_worker", {"--barrier=pigeon"}, "pigeon"},
           {"bfio_worker",
            {"--barrier=nccl", "--ranks_per_process=2"},
            "--barrier=nccl needs one process per GPU"},
           {"bfio_worker", {"--model=tests/golden/llama"}, "give --engine=cpu or cuda"},
           // Otherwise the secret that admits ranks would be sent unencrypted. The last three differ.
           {"bfio_worker", {router, host}, "give --worker_tls, or --insecure"},
           {"bfio_worker", {router, "--barrier=nccl"}, "--barrier=nccl: other machines can reach"},
           {"bfio_worker", {router, host, "--insecure", "--slots=0"}, "slots"},
           {"bfio_worker", {router, "--slots=0"}, "slots"},
           {"bfio_worker", {host, "--slots=0"}, "slots"},
           {"bfio_worker", {"--engine=cpu"}, "--engine=cpu requires --model=DIR"},
           {"bfio_worker", {"--engine=cpu", "--model=/nonexistent"}, "/nonexistent"},
           {"bfio_worker",
            {"--engine=cpu", "--model=tests/golden/qwen3", "--cpu_threads=0"},
            "--cpu_threads=0: must be within 1..256"},
           {"bfio_worker",
            {"--engine=cpu", "--model=tests/golden/qwen3", "--token_budget=2000000000"},
            "(--token_budget) must be in 1.."},
           {"bfio_loadgen", {"--arrival=never"}, "never"},
           {"bfio_sim", {"--trace=/nonexistent.csv"}, "/nonexistent.csv"},
           {"bfio_sim", {"serve", "--rule=fifo"}, "unknown rule 'fifo'"},
           {"bfio_sim", {"serve", "--cost=1,1,1e300,0,0"}, "--cost"},
           {"bfio_sim", {"serve", "--load=nan"}, "--load"},
           {"bfio_sim", {"serve-grid", "--groups=1e99"}, "--ranks"},
       }) {
    ExpectOneLine(row.program, row.args, 2, row.part);
  }
}

TEST(BadInput, TakenPort) {
  const Cluster cluster(ClusterOptions{.worker_processes = 0, .router_flags = {"--workers=1"}});
  ASSERT_TRUE(cluster.ok());
  ExpectOneLine("bfio_router", {absl::StrCat("--listen=", cluster.address()), "--admin_listen=127.0.0.1:0"},
                1, absl::StrCat("cannot listen on ", cluster.address()));
  const RunResult worker =
      RunProgram("bfio_worker", {"--router=127.0.0.1:1", "--http_listen=" + cluster.admin_address()});
  EXPECT_NE(worker.code, 0);
  EXPECT_THAT(worker.err, AllOf(HasSubstr("--http_listen"), HasSubstr("cannot listen on")));
}

TEST(BadInput, MalformedTraceLinesAreDroppedAndCounted) {
  const std::string trace = WriteFile(
      "half.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,3\nx,y,z\n0.1,7,-2\n0.2,4,2\n");
  Cluster cluster(ClusterOptions{.worker_processes = 1});
  ASSERT_TRUE(cluster.ok());
  const RunResult run = RunProgram("bfio_loadgen", {absl::StrCat("--target=", cluster.address()),
                                                    absl::StrCat("--trace=", trace), "--arrival=trace"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("line 3"));
  EXPECT_EQ(cluster.State().requests().completed(), 2u);
}

TEST(BadInput, HelpNamesEveryProfile) {
  const std::string help = RunProgram("bfio_loadgen", {"--help"}).out;
  for (const std::string& profile : ProfileNames()) EXPECT_THAT(help, HasSubstr(profile));
}

// --- checkpoints ---

// A copy of a model, in which a test may damage files.
std::string CopyOfAModel(const std::string& name) {
  const std::string folder = absl::StrCat(TestDirectory(), "/", name);
  std::filesystem::copy("tests/golden/llama", folder);
  return folder;
}

std::vector<std::string> CpuWorker(const std::string& model, const std::string& kv = "--kv_tokens=512") {
  return {"--engine=cpu",           "--model=" + model, "--router=127.0.0.1:1", "--slots=2", kv,
          "--connect_timeout=100ms"};
}

// Every damage that a reader must find is in tests/unit/worker/engine/model.
TEST(BadInput, DamagedCheckpoints) {
  const std::string cut = CopyOfAModel("cut"), config = CopyOfAModel("config");
  const std::string weights = cut + "/model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 1);
  ExpectOneLine("bfio_worker", CpuWorker(cut), 2, "truncated?");
  WriteFile("config/config.json", "model_type: llama\n");
  ExpectOneLine("bfio_worker", CpuWorker(config), 2, "config.json: ");
  // Valid, but not supported: the same again after a restart.
  WriteFile("config/config.json", "{\"model_type\": \"gpt2\"}\n");
  ExpectOneLine("bfio_worker", CpuWorker(config), 2,
                "model_type is 'gpt2'; llama, mistral, qwen2 and qwen3 are supported");
}

// Memory is allocated as it is used: too large a KV cache would end the worker hours later.
TEST(BadInput, MoreKvThanTheMachineHas) {
  ExpectOneLine("bfio_worker", CpuWorker("tests/golden/llama", "--kv_tokens=100000000000"), 1,
                "--kv_tokens=100000000000: the KV cache of one rank needs up to ");
  // Without the flag, the KV cache is as large as fits; the limit of 4 MiB includes the weights.
  const RunResult fits = RunProgram("bfio_worker", CpuWorker("tests/golden/llama", "--memory_limit_mb=4"));
  EXPECT_THAT(fits.err, HasSubstr("the most that fits into 4.0 MiB of memory"));
  EXPECT_THAT(fits.err, HasSubstr("router")) << "it went on";
}

// The file is complete when it is opened, and is truncated while the worker uses it.
TEST(BadInput, ACheckpointThatIsCutWhileItIsInUse) {
  const std::string model = CopyOfAModel("live"), weights = model + "/model.safetensors";
  Cluster cluster({.worker_processes = 1,
                   .worker_flags = {"--engine=cpu", "--model=" + model, "--slots=2", "--kv_tokens=1024"}});
  ASSERT_TRUE(cluster.ok());
  ASSERT_TRUE(Generate(cluster.inference(), SyntheticRequest(8, 4)).status.ok());
  std::filesystem::resize_file(weights, 4096);
  const RequestStream stream(cluster.inference(), SyntheticRequest(8, 4));
  Process& worker = cluster.workers()[0];
  EXPECT_EQ(worker.Wait(kSlowdown * absl::Seconds(30)), 1) << worker.Stderr();
  EXPECT_THAT(worker.Stderr(),
              HasSubstr(absl::StrCat("bfio_worker: ", weights, ": was truncated or became unreadable")));
}

// --- the table "Exit codes and messages" of docs/reference/messages.md ---

// A message of the table, without the program's name, and the command that prints it. "..." in the message
// stands for any text. Where a command cannot use the message's file or address, `instead` gives the one that
// it uses.
struct DocumentedMessage {
  std::string program, message;
  int code;
  std::vector<std::string> args;
  std::vector<std::pair<std::string, std::string>> instead = {};
};

// A decision log whose first files the router has removed.
std::string WriteLaterSegment() {
  std::string header, payload;
  record::Encode(record::LogHeader{.segment = 6, .policy = {"fcfs", {}}, .lookahead = "none"}, header);
  record::AppendRecord(header, payload);
  return WriteFile("decisions.000007", absl::StrCat(record::kMagic, record::Frame(payload), payload));
}

std::vector<DocumentedMessage> DocumentedMessages() {
  const std::string config = WriteFile("listn.yaml", "listn: 127.0.0.1:1\n");
  const std::string table = WriteFile("a_b.csv", "a,b\n1,2\n");
  const std::string folder = absl::StrCat(TestDirectory(), "/absent");
  const std::string router = "127.0.0.1:50051", nowhere = "127.0.0.1:1";
  return {
      {"bfio_router", "policy 'foo' is unknown, choose one of bf_io_auto, bf_io, ...", 2, {"--policy=foo"}},
      {"bfio_router",
       "lookahead 'foo' is unknown, choose one of none, survival, hint, max_tokens, oracle",
       2,
       {"--lookahead=foo"}},
      {"bfio_router",
       "bf_io: objective 'foo' is unknown, choose paper or square",
       2,
       {"--policy=bf_io:objective=foo"}},
      {"bfio_router",
       "--policy=bf_io:h=1: 'h=1' is none of objective=.., horizon=.., wait_ratio=..",
       2,
       {"--policy=bf_io:h=1"}},
      {"bfio_router",
       "--policy=br_h:horizon=501: horizon must be within 0..500",
       2,
       {"--policy=br_h:horizon=501"}},
      {"bfio_sim", "bf_io: discount 0 must be above 0 and at most 1", 2, {"--policy=bf_io", "--discount=0"}},
      {"bfio_router",
       "--listen=0.0.0.0:50051: other machines can reach it, and nothing is encrypted: give ...",
       2,
       {"--listen=0.0.0.0:50051"}},
      {"bfio_router",
       "router.yaml:1: no flag is named listn (did you mean listen?)",
       2,
       {absl::StrCat("--config=", config)},
       {{"router.yaml", config}}},
      {"bfio_router", "unknown flag ... (--help lists them)", 2, {"--zzzzzzzz"}},
      {"bfio_worker",
       "no router at 127.0.0.1:50051 within --connect_timeout=1m",
       1,
       {absl::StrCat("--router=", nowhere), "--connect_timeout=100ms"},
       {{router, nowhere}, {"1m", "100ms"}}},
      {"bfio_worker",
       "--barrier_host=10.0.0.11: other machines can reach the barrier, and the link to the router, ..., is "
       "not "
       "encrypted: give ...",
       2,
       {"--router=10.0.0.1:50051", "--barrier_host=10.0.0.11"}},
      {"bfio_worker", "--slots=0: must be within 1..65536", 2, {"--slots=0"}},
      {"bfio_loadgen",
       "no router answers at 127.0.0.1:50051 within 10s",
       1,
       {absl::StrCat("--target=", nowhere), "--connect_timeout=100ms"},
       {{router, nowhere}, {"10s", "100ms"}}},
      {"bfio_loadgen",
       "FILE: the header 'a,b' fits no known trace format (columns ...)",
       2,
       {absl::StrCat("--trace=", table)},
       {{"FILE", table}}},
      {"bfio_router",
       "--decision_log: cannot write DIR/log.000001: No such file or directory",
       2,
       {absl::StrCat("--decision_log=", folder, "/log"), "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
        "--http_listen="},
       {{"DIR", folder}}},
      {"bfio_sim",
       "FILE begins with segment N of its session, and only a log from its start can be replayed: ...",
       2,
       {"replay", absl::StrCat("--log=", WriteLaterSegment())},
       {{"FILE", WriteLaterSegment()}, {"N", "6"}}},
  };
}

TEST(BadInput, ADecisionLogWithoutItsStartIsPrintedAndNotReplayed) {
  const RunResult run =
      RunProgram("bfio_sim", {"replay", absl::StrCat("--log=", WriteLaterSegment()), "--print"},
                 kSlowdown * absl::Seconds(30));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("{\"record\":\"header\",\"segment\":6,"));
}

// Messages of the table for which a port, a GPU, a leader or a damaged log is needed.
const char* const kNotTried[] = {
    "bfio_router: cannot listen on 127.0.0.1:50051: ",
    "bfio_router: standing by for the router at ",
    "bfio_worker: ncclCommAbort hangs: ",
    "bfio_worker: --kv_tokens=1048576 needs 128.33 GiB ",
    "bfio_worker: barrier 'nccl' needs GPU 0; ",
    "bfio_sim: the decision log is damaged: ",
    "bfio_sim: the replayed decisions differ from the recorded ones: ",
};

TEST(BadInput, MessagesAreTheDocumentedOnes) {
  std::set<std::string> tried;
  for (const DocumentedMessage& documented : DocumentedMessages()) {
    tried.insert(absl::StrCat(documented.program, ": ", documented.message));
    const std::string expected =
        absl::StrReplaceAll(absl::StrCat(documented.program, ": ", documented.message), documented.instead);
    const RunResult run = RunProgram(documented.program, documented.args, kSlowdown * absl::Seconds(30));
    EXPECT_EQ(run.code, documented.code) << expected << "\n" << run.err;
    // A worker's log is before it.
    const std::vector<std::string> lines = absl::StrSplit(run.err, '\n', absl::SkipEmpty());
    ASSERT_FALSE(lines.empty()) << expected;
    absl::string_view rest = lines.back();
    const std::vector<std::string> parts = absl::StrSplit(expected, "...");
    ASSERT_TRUE(absl::ConsumePrefix(&rest, parts.front())) << expected << "\n" << run.err;
    for (size_t i = 1; i < parts.size(); ++i) {
      const size_t at = i + 1 == parts.size() && !parts[i].empty() && absl::EndsWith(rest, parts[i])
                            ? rest.size() - parts[i].size()
                            : rest.find(parts[i]);
      ASSERT_NE(at, absl::string_view::npos) << expected << "\n" << run.err;
      rest.remove_prefix(parts[i].empty() ? rest.size() : at + parts[i].size());
    }
    EXPECT_EQ(rest, "") << expected << "\n" << run.err;
  }
  std::ifstream page("docs/reference/messages.md");
  std::set<std::string> documented;
  for (std::string line; std::getline(page, line);) {
    absl::string_view row = line;
    if (!absl::ConsumePrefix(&row, "| `bfio_")) continue;
    const std::string message = absl::StrCat("bfio_", row.substr(0, row.find('`')));
    const bool skipped = std::any_of(std::begin(kNotTried), std::end(kNotTried),
                                     [&](const char* begin) { return absl::StartsWith(message, begin); });
    if (absl::StrContains(message, ": ") && !skipped) documented.insert(message);
  }
  EXPECT_EQ(documented, tried) << "docs/reference/messages.md has other messages";
}

// The help of a subcommand lists the flags of every command line of it in the documentation.
TEST(BadInput, HelpOfASimulationListsTheFlagsOfTheDocumentation) {
  const std::regex command(
      "\\bbfio_sim "
      "(replay|workload|dominance|admit|hindsight|engine|serve-grid|serve|prefixes)\\b([^`|;&#]*)");
  const std::regex flag("[^\\w-]--([a-z_]+)");
  std::map<std::string, std::set<std::string>> flags;
  for (const auto& page : std::filesystem::recursive_directory_iterator("docs")) {
    if (page.path().extension() != ".md") continue;
    std::stringstream text;
    text << std::ifstream(page.path()).rdbuf();
    // A command line may go on in the next line.
    const std::string lines = std::regex_replace(text.str(), std::regex("\\\\\n\\s*"), " ");
    for (const absl::string_view part : absl::StrSplit(lines, '\n')) {
      std::string line(part);
      for (std::smatch of; std::regex_search(line, of, command); line = of.suffix()) {
        const std::string rest = of[2];
        for (std::sregex_iterator at(rest.begin(), rest.end(), flag), end; at != end; ++at)
          flags[of[1]].insert((*at)[1]);
      }
    }
  }
  for (const char* name : {"workload", "dominance", "serve", "prefixes"})
    EXPECT_FALSE(flags[name].empty()) << name << ": no command line found in the documentation";
  for (const auto& [name, used] : flags) {
    const std::string help = RunProgram("bfio_sim", {name, "--help"}).out;
    for (const std::string& of : used)
      EXPECT_THAT(help, ContainsRegex(absl::StrCat("\n  --", of, "[= \n]"))) << "bfio_sim " << name;
  }
}

TEST(BadInput, HelpAndVersion) {
  for (const std::string program : {"bfio_router", "bfio_worker", "bfio_loadgen", "bfio_sim"}) {
    const RunResult help = RunProgram(program, {"--help"});
    EXPECT_EQ(help.code, 0) << program;
    EXPECT_THAT(help.out, HasSubstr("--config"));
    const RunResult version = RunProgram(program, {"--version"});
    EXPECT_EQ(version.code, 0) << program;
    EXPECT_THAT(version.out, HasSubstr(program + " "));
  }
}

}  // namespace
}  // namespace bfio::testing
