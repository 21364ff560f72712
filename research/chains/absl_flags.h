// Options that a program defines with ABSL_FLAG, if its modules define their own flags.
//
// Purpose: the same command line, config file and --help as an OptionTable. absl's own parser is not used
// because it exits by itself, with several lines and code 1. Threads: call before threads are started.
#ifndef BFIO_RESEARCH_CHAINS_ABSL_FLAGS_H_
#define BFIO_RESEARCH_CHAINS_ABSL_FLAGS_H_

#include <string>
#include <vector>

#include "common/config/program.h"

namespace bfio {

// As InitProgram, with a table of all flags of the program.
std::vector<std::string> InitProgram(int argc, char** argv, const ProgramInfo& info);

}  // namespace bfio

#endif  // BFIO_RESEARCH_CHAINS_ABSL_FLAGS_H_
