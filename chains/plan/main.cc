// bfio_plan: distributes a model that is too large for one server over a pool of unequal servers.
#include <cmath>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "chains/plan/model_file.h"
#include "chains/plan/output.h"
#include "chains/plan/planner.h"
#include "chains/plan/pool_file.h"
#include "common/base/shutdown.h"
#include "common/config/absl_flags.h"
#include "common/config/program.h"

ABSL_FLAG(std::string, pool, "", "JSON file that describes the servers; format: docs/chains.md");
ABSL_FLAG(std::string, model, "",
          "config.json of a checkpoint, or a JSON file with the sizes of a block; format: docs/chains.md");
ABSL_FLAG(std::string, demand, "0.2",
          "demand in jobs (requests) per second; a list A,B,C or a range FROM:TO:STEP runs a sweep");
ABSL_FLAG(double, target_load, 0.7,
          "largest share of the composed rate that the demand should use, above 0, at most 1");
ABSL_FLAG(std::string, tune, "lower",
          "choose c by the least lower bound (lower), upper bound (upper) or surrogate (surrogate) of the "
          "mean response");
ABSL_FLAG(int64_t, reserve, 0,
          "c: number of jobs for which every hosted block reserves cache; 0: chosen by --tune");
ABSL_FLAG(bool, use_all, true,
          "place blocks on every server; false: stop placement once the chains carry the demand, as GBP-CR "
          "does in the paper");
ABSL_FLAG(double, input_tokens, 2000, "prompt tokens of a mean job");
ABSL_FLAG(double, output_tokens, 20, "generated tokens of a mean job");
ABSL_FLAG(double, context_tokens, 2048,
          "tokens for which a job reserves cache; only if --model is a config.json");
ABSL_FLAG(double, weight_bytes, 2, "bytes per parameter (0.5: 4 bits); only if --model is a config.json");
ABSL_FLAG(double, kv_bytes, 2, "bytes per cached value; only if --model is a config.json");
ABSL_FLAG(double, block_overhead_ms, 1,
          "overhead of a block per job, in addition to compute and memory time");
ABSL_FLAG(double, message_overhead_ms, 18,
          "overhead of a token's message per server, in addition to its round trip");
ABSL_FLAG(bool, json, false, "print JSON instead of text");

namespace bfio::plan {
namespace {

constexpr char kUsage[] =
    "bfio_plan places the blocks of a model on servers with different memory, speed and distance,\n"
    "and composes chains of these servers. It prints the expected mean response, the effect of\n"
    "losing or adding a server and, for a sweep, how the best plan changes with demand.\n\n"
    "  bfio_plan --pool=pool.json --model=model.json --demand=0.2\n"
    "  bfio_plan --pool=pool.json --model=llama/config.json --weight_bytes=0.5 --demand=0.1:2:0.1\n\n"
    "pool.json   {\"servers\": [{\"name\": \"a100\", \"count\": 4, \"memory_gb\": 40, \"tflops\": 120,\n"
    "             \"memory_gb_per_s\": 1020, \"rtt_ms\": 20}, ...]}\n"
    "model.json  {\"blocks\": 70, \"block_gb\": 1.32, \"cache_gb\": 0.11, \"gflop_per_token\": 5}";

constexpr size_t kLargestFile = size_t{16} << 20;

absl::StatusOr<std::string> ReadFile(const char* flag, const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError(absl::StrCat("--", flag, "=FILE is required"));
  std::ifstream in(path, std::ios::binary);
  std::string text(kLargestFile + 1, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(text.size())) && in.gcount() == 0)
    return absl::NotFoundError(absl::StrCat("--", flag, "=", path, ": cannot be read or is empty"));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kLargestFile)
    return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": larger than 16 MiB"));
  return text;
}

absl::StatusOr<double> Within(const char* flag, double value, double least) {
  if (std::isfinite(value) && value >= least) return value;
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": must be at least ", least));
}

absl::StatusOr<core::TuningGoal> Goal(const std::string& name) {
  if (name == "lower") return core::TuningGoal::kLowerBound;
  if (name == "upper") return core::TuningGoal::kUpperBound;
  if (name == "surrogate") return core::TuningGoal::kSurrogate;
  return absl::InvalidArgumentError(absl::StrCat("--tune=", name, ": must be lower, upper or surrogate"));
}

absl::Status CheckNumbers() {
  const std::vector<std::tuple<const char*, double, double>> numbers = {
      {"input_tokens", absl::GetFlag(FLAGS_input_tokens), 0},
      {"output_tokens", absl::GetFlag(FLAGS_output_tokens), 1},
      {"context_tokens", absl::GetFlag(FLAGS_context_tokens), 1},
      {"weight_bytes", absl::GetFlag(FLAGS_weight_bytes), 1e-3},
      {"kv_bytes", absl::GetFlag(FLAGS_kv_bytes), 1e-3},
      {"block_overhead_ms", absl::GetFlag(FLAGS_block_overhead_ms), 0},
      {"message_overhead_ms", absl::GetFlag(FLAGS_message_overhead_ms), 0},
      {"reserve", static_cast<double>(absl::GetFlag(FLAGS_reserve)), 0}};
  for (const auto& [flag, value, least] : numbers) {
    if (const auto number = Within(flag, value, least); !number.ok()) return number.status();
  }
  const double load = absl::GetFlag(FLAGS_target_load);
  if (!(load > 0 && load <= 1))
    return absl::InvalidArgumentError(absl::StrCat("--target_load=", load, ": must be above 0, at most 1"));
  return absl::OkStatus();
}

// Everything except the demand.
absl::StatusOr<Problem> ReadProblem() {
  if (absl::Status status = CheckNumbers(); !status.ok()) return status;
  const std::string model_path = absl::GetFlag(FLAGS_model), pool_path = absl::GetFlag(FLAGS_pool);
  const absl::StatusOr<std::string> pool_text = ReadFile("pool", pool_path);
  if (!pool_text.ok()) return pool_text.status();
  const absl::StatusOr<std::string> model_text = ReadFile("model", model_path);
  if (!model_text.ok()) return model_text.status();
  const absl::StatusOr<core::TuningGoal> goal = Goal(absl::GetFlag(FLAGS_tune));
  if (!goal.ok()) return goal.status();
  const auto model = ParseModel(*model_text, model_path,
                                {absl::GetFlag(FLAGS_weight_bytes), absl::GetFlag(FLAGS_kv_bytes),
                                 absl::GetFlag(FLAGS_context_tokens)});
  if (!model.ok()) return model.status();
  JobOptions job;
  job.job = {absl::GetFlag(FLAGS_input_tokens), absl::GetFlag(FLAGS_output_tokens)};
  job.block_overhead_s = 1e-3 * absl::GetFlag(FLAGS_block_overhead_ms);
  job.message_overhead_s = 1e-3 * absl::GetFlag(FLAGS_message_overhead_ms);
  auto servers = ParsePool(*pool_text, pool_path, *model, job);
  if (!servers.ok()) return servers.status();
  Problem problem;
  problem.servers = *std::move(servers);
  problem.service = model->service;
  problem.demand.target_load = absl::GetFlag(FLAGS_target_load);
  problem.demand.use_all = absl::GetFlag(FLAGS_use_all);
  problem.goal = *goal;
  problem.reserve = absl::GetFlag(FLAGS_reserve);
  return problem;
}

// Names from files may be invalid UTF-8.
std::string Dump(const nlohmann::ordered_json& json) {
  return absl::StrCat(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "\n");
}

bool GoOn() {
  return !ShutdownSignal::Requested();
}

absl::Status RunSweep(const Problem& problem, const std::vector<double>& demands) {
  const auto swept = SweepDemand(problem, demands, GoOn);
  if (!swept.ok()) return swept.status();
  const std::vector<SweepPoint>& points = *swept;
  if (!points[0].plan.has_value()) {
    Problem least = problem;
    least.demand.rate = demands[0];
    return MakePlan(least, GoOn).status();
  }
  std::cout << (absl::GetFlag(FLAGS_json) ? Dump(SweepJson(points)) : SweepText(points));
  return absl::OkStatus();
}

absl::Status Run(const std::vector<std::string>& arguments) {
  if (!arguments.empty())
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arguments[0], "'"));
  const auto demands = ParseDemands(absl::GetFlag(FLAGS_demand));
  if (!demands.ok()) return demands.status();
  absl::StatusOr<Problem> problem = ReadProblem();
  if (!problem.ok()) return problem.status();
  if (demands->size() > 1) return RunSweep(*problem, *demands);
  problem->demand.rate = (*demands)[0];
  const absl::StatusOr<Plan> plan = MakePlan(*problem, GoOn);
  if (!plan.ok()) return plan.status();
  const absl::StatusOr<std::vector<Change>> changes = Changes(*problem, *plan, GoOn);
  if (!changes.ok()) return changes.status();
  std::cout << (absl::GetFlag(FLAGS_json) ? Dump(PlanJson(*problem, *plan, *changes))
                                          : PlanText(*problem, *plan, *changes));
  return absl::OkStatus();
}

}  // namespace
}  // namespace bfio::plan

int main(int argc, char** argv) {
  const bfio::ProgramInfo info = {"bfio_plan", BFIO_VERSION, bfio::plan::kUsage};
  const std::vector<std::string> arguments = bfio::InitProgram(argc, argv, info);
  bfio::ShutdownSignal::Install();
  const absl::Status status = bfio::plan::Run(arguments);
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
