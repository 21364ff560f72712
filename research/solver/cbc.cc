#include "research/solver/cbc.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace bfio::testing {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<CbcVariables> ReadVariables(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return absl::UnavailableError("cbc wrote no solution");
  CbcVariables answer;
  answer.optimal = line.rfind("Optimal", 0) == 0;
  // INDEX NAME VALUE REDUCED_COST, with "**" before a column that is not feasible.
  while (std::getline(in, line)) {
    char name[64];
    double value = 0;
    const char* text = line.c_str() + line.find_first_not_of(" *");
    if (std::sscanf(text, "%*d %63s %lf", name, &value) != 2) {
      return absl::UnavailableError(absl::StrCat("cbc's line '", line, "' cannot be parsed"));
    }
    answer.values[name] = value;
  }
  return answer;
}

}  // namespace

bool HaveCbc() {
  return std::system("command -v cbc > /dev/null 2>&1") == 0;
}

absl::StatusOr<CbcVariables> RunCbc(absl::string_view lp, double seconds) {
  std::string folder = fs::temp_directory_path() / "bfio-cbc-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::UnavailableError("no temporary folder");
  const fs::path dir = folder, problem = dir / "problem.lp", answer_file = dir / "answer.txt";
  std::ofstream(problem) << lp;
  const std::string command =
      absl::StrFormat("cbc %s seconds %g ratioGap 0 allowableGap 1e-4 solve solution %s > %s 2>&1",
                      problem.string(), seconds, answer_file.string(), (dir / "log.txt").string());
  const int code = std::system(command.c_str());
  absl::StatusOr<CbcVariables> answer =
      code == 0 ? ReadVariables(answer_file) : absl::UnavailableError(absl::StrCat("cbc exited with ", code));
  std::error_code ignored;
  fs::remove_all(dir, ignored);
  return answer;
}

absl::StatusOr<CbcAnswer> SolveWithCbc(absl::string_view lp, const core::Instance& instance, double seconds) {
  BFIO_ASSIGN_OR_RETURN(const CbcVariables variables, RunCbc(lp, seconds));
  CbcAnswer answer;
  answer.optimal = variables.optimal;
  answer.solution.worker_of.assign(instance.items.size(), core::kUnassigned);
  for (const auto& [name, value] : variables.values) {
    int item = 0, worker = 0;
    if (value < 0.5 || std::sscanf(name.c_str(), "x_%d_%d", &item, &worker) != 2) continue;
    answer.solution.worker_of[item] = worker;
    answer.found = true;
  }
  return answer;
}

}  // namespace bfio::testing
