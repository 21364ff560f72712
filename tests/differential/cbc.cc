#include "tests/differential/cbc.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::testing {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<CbcAnswer> ReadAnswer(const fs::path& file, const core::Instance& instance) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return absl::UnavailableError("cbc wrote no solution");
  CbcAnswer answer;
  answer.optimal = line.rfind("Optimal", 0) == 0;
  answer.solution.worker_of.assign(instance.items.size(), core::kUnassigned);
  // INDEX NAME VALUE REDUCED_COST, with "**" before a column that is not feasible.
  int64_t placed = 0;
  while (std::getline(in, line)) {
    int item = 0, worker = 0;
    double value = 0;
    const size_t name = line.find(" x_");
    if (name == std::string::npos) continue;
    if (std::sscanf(line.c_str() + name, " x_%d_%d %lf", &item, &worker, &value) != 3) {
      return absl::UnavailableError(absl::StrCat("cbc's line '", line, "' is not understood"));
    }
    if (value < 0.5) continue;
    answer.solution.worker_of[item] = worker;
    ++placed;
  }
  answer.found = placed > 0;
  return answer;
}

}  // namespace

bool HaveCbc() {
  return std::system("command -v cbc > /dev/null 2>&1") == 0;
}

absl::StatusOr<CbcAnswer> SolveWithCbc(absl::string_view lp, const core::Instance& instance, double seconds) {
  std::string folder = fs::temp_directory_path() / "bfio-cbc-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::UnavailableError("no temporary folder");
  const fs::path dir = folder, problem = dir / "problem.lp", answer_file = dir / "answer.txt";
  std::ofstream(problem) << lp;
  const std::string command =
      absl::StrFormat("cbc %s seconds %g ratioGap 0 allowableGap 1e-4 solve solution %s > %s 2>&1",
                      problem.string(), seconds, answer_file.string(), (dir / "log.txt").string());
  const int code = std::system(command.c_str());
  absl::StatusOr<CbcAnswer> answer = code == 0
                                         ? ReadAnswer(answer_file, instance)
                                         : absl::UnavailableError(absl::StrCat("cbc exited with ", code));
  std::error_code ignored;
  fs::remove_all(dir, ignored);
  return answer;
}

}  // namespace bfio::testing
