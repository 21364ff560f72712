#include "tools/sim/run/steps_csv.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::sim {

StepsCsv::StepsCsv(const std::string& path, int32_t workers) : path_(path), file_(path) {
  std::string header = "step,begin_s,seconds,waiting";
  for (const char* column : {"load", "active"}) {
    for (int32_t g = 0; g < workers; ++g) absl::StrAppend(&header, ",", column, "_", g);
  }
  file_ << header << '\n';
}

void StepsCsv::Write(const StepView& view) {
  std::string line = absl::StrFormat("%d,%.9g,%.9g,%d", view.step, view.begin_s, view.seconds, view.waiting);
  for (const int64_t load : view.loads) absl::StrAppend(&line, ",", load);
  for (const int64_t active : view.active) absl::StrAppend(&line, ",", active);
  file_ << line << '\n';
}

absl::Status StepsCsv::Close() {
  file_.close();
  if (file_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--steps_csv=", path_, ": cannot be written"));
}

}  // namespace bfio::sim
