// Every step of a run as a line of CSV. --steps_csv writes it and research/ reads it: step, begin_s and
// seconds (simulated), the number of waiting requests, then load_0 .. (tokens) and active_0 .. (requests) of
// the workers. Steps of the warm-up are included. Ownership: owns the file. Threads: one.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/run/statistics.h"

namespace bfio::sim {

class StepsCsv {
 public:
  // Replaces the file and writes the header; Close reports errors.
  StepsCsv(const std::string& path, int32_t workers) : path_(path), file_(path) {
    file_ << "step,begin_s,seconds,waiting";
    for (const char* column : {"load", "active"}) {
      for (int32_t g = 0; g < workers; ++g) file_ << ',' << column << '_' << g;
    }
    file_ << '\n';
  }

  void Write(const StepView& view) {
    file_ << absl::StrFormat("%d,%.9g,%.9g,%d", view.step, view.begin_s, view.seconds, view.waiting);
    for (const int64_t load : view.loads) file_ << ',' << load;
    for (const int64_t active : view.active) file_ << ',' << active;
    file_ << '\n';
  }

  // INVALID_ARGUMENT, naming the file, when it could not be written completely.
  absl::Status Close() {
    file_.close();
    if (file_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--steps_csv=", path_, ": cannot be written"));
  }

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace bfio::sim
