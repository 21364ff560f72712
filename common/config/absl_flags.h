// Options that a program defines with ABSL_FLAG, where its parts define their own flags (bfio_sim, tests).
//
// Purpose: the same command line, config file and --help as an OptionTable. absl's own parser is not used
// because it ends the program by itself, with several lines and exit code 1. Threads: call before threads
// are started.
#ifndef BFIO_COMMON_CONFIG_ABSL_FLAGS_H_
#define BFIO_COMMON_CONFIG_ABSL_FLAGS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/config/program.h"

namespace bfio {

// As InitProgram with the table of all flags of the program.
std::vector<std::string> InitProgram(int argc, char** argv, const ProgramInfo& info);

// By that command line or config file, even with the default's value.
bool FlagWasGiven(absl::string_view name);

}  // namespace bfio

#endif  // BFIO_COMMON_CONFIG_ABSL_FLAGS_H_
