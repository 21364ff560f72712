// Invalid command lines about chains end with one clear line and the right exit code.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/bad_input.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

TEST(ChainBadInput, FlagsOfRouterAndWorker) {
  ExpectOneLine("bfio_router", {"--chains=slots=0"}, 2, "--chains=slots=0: slots must be within 1..4096");
  ExpectOneLine("bfio_router", {"--chains=job=much"}, 2, "--chains=job=much: job must be INPUT:OUTPUT");
  ExpectOneLine("bfio_router", {"--chains=servers=2", "--plan_mode=lockstep"}, 2, "needs --coupling=barrier");
  const std::string listen = "--pipeline_listen=127.0.0.1:0", model = "--model=/nonexistent";
  const std::string limit = "--memory_limit_mb=3", anywhere = "--pipeline_listen=0.0.0.0:0";
  const std::pair<std::vector<std::string>, std::string> rows[] = {
      {{listen + ",micro_batches=65"}, "micro_batches=N with N within 1..64"},
      {{listen, limit}, "--memory_limit_mb requires --engine=cpu"},
      {{listen}, "--pipeline_listen requires --engine=cpu or --engine=cuda"},
      {{"--engine=cuda", model, limit}, "--memory_limit_mb requires --engine=cpu"},
      {{"--engine=cuda", model, listen}, "--pipeline_listen requires --memory_limit_mb"},
      {{"--engine=cpu", model, listen}, "--pipeline_listen requires --memory_limit_mb"},
      {{"--engine=cpu", model, listen, limit, "--ranks_per_process=2"}, "--ranks_per_process=1"},
      {{"--engine=cpu", model, limit, "--pipeline_listen=nowhere"}, "--pipeline_listen: "},
      {{"--engine=cpu", model, limit, anywhere}, "add address=HOST:PORT"},
      {{"--engine=cpu", model, limit, anywhere + ",address=10.0.0.1:7"}, "other machines can reach it"}};
  for (const auto& [args, message] : rows) ExpectOneLine("bfio_worker", args, 2, message);
}

TEST(ChainBadInput, Planner) {
  ExpectOneLine("bfio_plan", {"--demand=much"}, 2, "--demand=much: must be a number");
  ExpectOneLine("bfio_plan", {"--pool=/nonexistent"}, 2, "cannot read /nonexistent");
}

TEST(ChainBadInput, InfeasiblePlans) {
  const std::string pool = absl::StrCat("--pool=", WriteFile("pool.json", R"({"servers": [
      {"count": 3, "memory_gb": 10, "block_ms": 100, "communication_ms": 760}]})"));
  const std::string model =
      absl::StrCat("--model=", WriteFile("model.json", R"({"blocks": 24, "block_gb": 1, "cache_gb": 0.1})"));
  ExpectOneLine("bfio_plan", {pool, model, "--demand=3"}, 1, "rate: the demand of 3 jobs/s");
  const RunResult run = RunProgram("bfio_plan", {pool, model, "--demand=0.1", "--json"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("\"blocks\":24"));
  const std::string large =
      absl::StrCat("--model=", WriteFile("large.json", R"({"blocks": 40, "block_gb": 1, "cache_gb": 0.1})"));
  ExpectOneLine("bfio_plan", {pool, large}, 1,
                "the pool holds 27 of 40 blocks; memory for 13 more blocks (14.3 GB)");
}

}  // namespace
}  // namespace bfio::testing
