// Every step of a run as a line of CSV. --steps_csv writes it and research/ reads it: step, begin_s and
// seconds (simulated), the number of waiting requests, then load_0 .. (tokens) and active_0 .. (requests) of
// the workers. Steps of the warm-up are included. Ownership: owns the file. Threads: one.
#ifndef BFIO_TOOLS_SIM_RUN_STEPS_CSV_H_
#define BFIO_TOOLS_SIM_RUN_STEPS_CSV_H_

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "tools/sim/run/statistics.h"

namespace bfio::sim {

class StepsCsv {
 public:
  // Replaces the file and writes the header; Close reports errors.
  StepsCsv(const std::string& path, int32_t workers);

  void Write(const StepView& view);

  // INVALID_ARGUMENT, naming the file, when it could not be written completely.
  absl::Status Close();

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_STEPS_CSV_H_
