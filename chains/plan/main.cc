// bfio_plan: distributes a model that is too large for one server over a pool of unequal servers.
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "chains/plan/input.h"
#include "chains/plan/output.h"
#include "chains/plan/planner.h"
#include "common/base/read_file.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/config/program.h"
#include "common/json/json_reader.h"

namespace bfio::plan {
namespace {

constexpr char kUsage[] =
    "bfio_plan places the blocks of a model on servers with different memory, speed and distance,\n"
    "and composes chains of these servers. It prints the expected mean response, and the effect of\n"
    "losing or adding a server.\n\n"
    "  bfio_plan --pool=pool.json --model=model.json --demand=0.2\n"
    "  bfio_plan --pool=pool.json --model=llama/config.json --weight_bytes=0.5\n\n"
    "pool.json   {\"servers\": [{\"name\": \"a100\", \"count\": 4, \"memory_gb\": 40, \"tflops\": 120,\n"
    "             \"memory_gb_per_s\": 1020, \"rtt_ms\": 20}, ...]}\n"
    "model.json  {\"blocks\": 70, \"block_gb\": 1.32, \"cache_gb\": 0.11, \"gflop_per_token\": 5}";

constexpr size_t kLargestFile = size_t{16} << 20;

absl::StatusOr<std::string> TextOf(const char* flag, const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError(absl::StrCat("--", flag, "=FILE is required"));
  BFIO_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kLargestFile));
  if (text.size() > kLargestFile)
    return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": larger than 16 MiB"));
  return text;
}

struct Settings {
  std::string pool, model;
  StorageOptions storage;
  JobOptions job;
  // With everything except servers and service.
  Problem problem{.demand = {.rate = 0.2, .use_all = true}};
  bool json = false;
};

void AddOptions(OptionTable& table, Settings& s) {
  table.Add("pool", &s.pool, "JSON file that describes the servers; format: docs/design/chains.md");
  table.Add(
      "model", &s.model,
      "config.json of a checkpoint, or a JSON file with the sizes of a block; format: docs/design/chains.md");
  table.Add("demand", &s.problem.demand.rate, Within(1e-9, 1e9), "demand in jobs (requests) per second");
  table.Add("target_load", &s.problem.demand.target_load, Within(1e-9, 1),
            "largest share of the composed rate that the demand should use");
  table.Add("reserve", &s.problem.reserve, Within(0, 1e15),
            "c: number of jobs for which every hosted block reserves cache; 0: the one with the least lower "
            "bound of the mean response");
  table.Add("use_all", &s.problem.demand.use_all,
            "place blocks on every server; false: stop placement once the chains carry the demand, as GBP-CR "
            "does in the paper");
  constexpr double kMost = 1e15;
  table.Add("input_tokens", &s.job.job.input_tokens, Within(0, kMost), "prompt tokens of a mean job");
  table.Add("output_tokens", &s.job.job.output_tokens, Within(1, kMost), "generated tokens of a mean job");
  table.Add("context_tokens", &s.storage.context_tokens, Within(1, kMost),
            "tokens for which a job reserves cache; only if --model is a config.json");
  table.Add("weight_bytes", &s.storage.weight_bytes, Within(1e-3, kMost),
            "bytes per parameter (0.5: 4 bits); only if --model is a config.json");
  table.Add("kv_bytes", &s.storage.kv_bytes, Within(1e-3, kMost),
            "bytes per cached value; only if --model is a config.json");
  table.AddScaled("block_overhead_ms", 1e3 * s.job.block_overhead_s, Within(0, kMost),
                  "overhead of a block per job, in addition to compute and memory time",
                  [&s](double ms) { s.job.block_overhead_s = 1e-3 * ms; });
  table.AddScaled("message_overhead_ms", 1e3 * s.job.message_overhead_s, Within(0, kMost),
                  "overhead of a token's message per server, in addition to its round trip",
                  [&s](double ms) { s.job.message_overhead_s = 1e-3 * ms; });
  table.Add("json", &s.json, "print JSON instead of text");
}

absl::StatusOr<Problem> ReadProblem(const Settings& s) {
  BFIO_ASSIGN_OR_RETURN(const std::string pool, TextOf("pool", s.pool));
  BFIO_ASSIGN_OR_RETURN(const std::string text, TextOf("model", s.model));
  BFIO_ASSIGN_OR_RETURN(const ModelSizes model, ParseModel(text, s.model, s.storage));
  Problem problem = s.problem;
  BFIO_ASSIGN_OR_RETURN(problem.servers, ParsePool(pool, s.pool, model, s.job));
  problem.service = model.service;
  return problem;
}

// Names from files may be invalid UTF-8.
std::string Dump(const nlohmann::ordered_json& json) {
  return absl::StrCat(JsonText(json), "\n");
}

bool GoOn() {
  return !ShutdownSignal::Requested();
}

absl::Status Run(const Settings& settings) {
  BFIO_ASSIGN_OR_RETURN(const Problem problem, ReadProblem(settings));
  BFIO_ASSIGN_OR_RETURN(const Plan plan, MakePlan(problem, GoOn));
  BFIO_ASSIGN_OR_RETURN(const std::vector<Change> changes, Changes(problem, plan, GoOn));
  std::cout << (settings.json ? Dump(PlanJson(problem, plan, changes)) : PlanText(problem, plan, changes));
  return absl::OkStatus();
}

}  // namespace
}  // namespace bfio::plan

int main(int argc, char** argv) {
  const bfio::ProgramInfo info = {"bfio_plan", bfio::Version(), bfio::plan::kUsage};
  bfio::plan::Settings settings;
  bfio::OptionTable table;
  bfio::plan::AddOptions(table, settings);
  bfio::InitWithoutArguments(argc, argv, info, table);
  bfio::ShutdownSignal::Install();
  const absl::Status status = bfio::plan::Run(settings);
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
