// User errors on the command line or in a file give one clear line and the right exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/bad_input.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

TEST(BadInput, UnknownPolicy) {
  ExpectOneLine("bfio_router", {"--policy=best"}, 2, "policy 'best' is unknown");
  ExpectOneLine("bfio_sim", {"--policy=best", "--profile=conversation"}, 2, "best");
}

TEST(BadInput, UnknownFlagAndBadValue) {
  ExpectOneLine("bfio_router", {"--no-such-flag"}, 2, "no");
  ExpectOneLine("bfio_router", {"--workers=many"}, 2, "workers");
  ExpectOneLine("bfio_router", {"--workers=0"}, 2, "--workers=0: must be within 1..4096");
  ExpectOneLine("bfio_router", {"--plan_mode=fast"}, 2, "must be pipelined or lockstep");
  ExpectOneLine("bfio_router", {"--step_timeout=0s"}, 2, "--step_timeout");
  ExpectOneLine("bfio_worker", {"--slots=0"}, 2, "slots");
  ExpectOneLine("bfio_worker", {"--engine=quantum"}, 2, "quantum");
  ExpectOneLine("bfio_worker", {"--barrier=pigeon"}, 2, "pigeon");
  ExpectOneLine("bfio_worker", {"--barrier=nccl", "--ranks_per_process=2"}, 2,
                "--barrier=nccl needs a process for each GPU");
  ExpectOneLine("bfio_loadgen", {"--arrival=never"}, 2, "never");
}

TEST(BadInput, ServingSimulations) {
  ExpectOneLine("bfio_sim", {"serve", "--rule=fifo"}, 2, "unknown rule 'fifo'");
  ExpectOneLine("bfio_sim", {"serve", "--cost=1,2"}, 2, "C,A,B0,K1,K2");
  ExpectOneLine("bfio_sim", {"serve", "--cost=1,1,1e300,0,0"}, 2, "--cost");
  ExpectOneLine("bfio_sim", {"serve", "--load=nan"}, 2, "--load");
  ExpectOneLine("bfio_sim", {"serve-grid", "--groups=1e99"}, 2, "--groups");
  ExpectOneLine("bfio_sim", {"serve-grid", "--seeds=0"}, 2, "--seeds");
}

// Otherwise the secret that admits ranks would be sent unencrypted.
TEST(BadInput, ABarrierForOtherMachinesNeedsALinkThatKeepsItsSecret) {
  const std::string router = "--router=10.0.0.1:50051", host = "--barrier_host=10.0.0.2";
  ExpectOneLine("bfio_worker", {router, host}, 2, "give --worker_tls, or --insecure");
  ExpectOneLine("bfio_worker", {router, "--barrier=nccl"}, 2, "--barrier=nccl: other machines can reach");
  // These errors are not about the barrier.
  ExpectOneLine("bfio_worker", {router, host, "--insecure", "--slots=0"}, 2, "slots");
  ExpectOneLine("bfio_worker", {router, "--slots=0"}, 2, "slots");
  ExpectOneLine("bfio_worker", {host, "--slots=0"}, 2, "slots");
}

TEST(BadInput, TakenPort) {
  ClusterOptions options;
  options.worker_processes = 0;
  options.router_flags = {"--workers=1"};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  ExpectOneLine("bfio_router", {absl::StrCat("--listen=", cluster.address()), "--admin_listen=127.0.0.1:0"},
                1, absl::StrCat("cannot listen on ", cluster.address()));
}

TEST(BadInput, WrongConfigKey) {
  const std::string text = WriteFile("bad.textproto", "workers: 2\nwrokers: 3\n");
  ExpectOneLine("bfio_router", {absl::StrCat("--config=", text)}, 2, "wrokers");
  const std::string json = WriteFile("bad.json", "{\"workers\": 2, \"wrokers\": 3}\n");
  ExpectOneLine("bfio_router", {absl::StrCat("--config=", json)}, 2, "wrokers");
  ExpectOneLine("bfio_router", {"--config=/nonexistent/file"}, 2, "/nonexistent/file");
}

TEST(BadInput, ConfigFilesSetFlagsAndTheCommandLineOverridesThem) {
  const std::string text =
      WriteFile("good.textproto",
                "workers: 3\npolicy: \"fcfs\"\nlisten: \"127.0.0.1:0\"\nadmin_listen: \"127.0.0.1:0\"\n");
  Process router("bfio_router", {absl::StrCat("--config=", text), "--policy=lpt"});
  EXPECT_TRUE(router.WaitForOutput("policy lpt, waiting for 3 workers", kSlowdown * absl::Seconds(20)))
      << router.Stderr();
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

TEST(BadInput, UnusableTrace) {
  const std::string trace = WriteFile("none.csv", "a,b,c\n1,2,3\n");
  ExpectOneLine("bfio_sim", {absl::StrCat("--trace=", trace)}, 2, trace);
  ExpectOneLine("bfio_loadgen", {absl::StrCat("--trace=", trace)}, 2, trace);
  ExpectOneLine("bfio_sim", {"--trace=/nonexistent.csv"}, 2, "/nonexistent.csv");
}

TEST(BadInput, NoRouterThere) {
  const RunResult run = RunProgram("bfio_loadgen", {"--target=127.0.0.1:1", "--profile=conversation",
                                                    "--requests=1", "--connect_timeout=1s"});
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_THAT(run.err, HasSubstr("127.0.0.1:1"));
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
