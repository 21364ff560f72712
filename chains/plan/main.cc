// bfio_plan: distributes a model that is too large for one server over a pool of unequal servers.
#include <iostream>
#include <string>

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
    "and composes chains of these servers. It prints the expected mean response.\n\n"
    "  bfio_plan --pool=pool.json --model=model.json --demand=0.2\n\n"
    "pool.json   {\"servers\": [{\"name\": \"a100\", \"count\": 4, \"memory_gb\": 40, \"block_ms\": 109,\n"
    "             \"communication_ms\": 760}, ...]}\n"
    "model.json  {\"blocks\": 70, \"block_gb\": 1.32, \"cache_gb\": 0.11}";

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
  // With everything except servers and service.
  Problem problem{.demand = {.rate = 0.2, .use_all = true}};
  bool json = false;
};

void AddOptions(OptionTable& table, Settings& s) {
  table.Add("pool", &s.pool, "JSON file that describes the servers; format: docs/design/chains.md");
  table.Add("model", &s.model, "JSON file with the sizes of a block; format: docs/design/chains.md");
  table.Add("demand", &s.problem.demand.rate, Within(1e-9, 1e9), "demand in jobs (requests) per second");
  table.Add("target_load", &s.problem.demand.target_load, Within(1e-9, 1),
            "largest share of the composed rate that the demand should use");
  table.Add("use_all", &s.problem.demand.use_all,
            "place blocks on every server; false: stop placement once the chains carry the demand, as GBP-CR "
            "does in the paper");
  table.Add("json", &s.json, "print JSON instead of text");
}

absl::StatusOr<Problem> ReadProblem(const Settings& s) {
  BFIO_ASSIGN_OR_RETURN(const std::string pool, TextOf("pool", s.pool));
  BFIO_ASSIGN_OR_RETURN(const std::string text, TextOf("model", s.model));
  BFIO_ASSIGN_OR_RETURN(const core::ChainService model, ParseModel(text, s.model));
  Problem problem = s.problem;
  BFIO_ASSIGN_OR_RETURN(problem.servers, ParsePool(pool, s.pool, model));
  problem.service = model;
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
  std::cout << (settings.json ? Dump(PlanJson(problem, plan)) : PlanText(problem, plan));
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
