// The common start of every bfio program: options, config file, --help, --version. `--config=FILE` (YAML)
// sets options by name; flags on the command line override it. `--some-flag` and `--some_flag`
// are equivalent. An error ends the program with one line on standard error and exit code 2. Threads: call
// once from main, before threads are started.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/options.h"

namespace bfio {

struct ProgramInfo {
  // Such as "bfio_router".
  std::string name;
  std::string version;
  // Shown by --help before the flags: a short description of the program, with examples.
  std::string usage;
};

// Parses the command line and the config file. Handles --help and --version (prints, exits with 0). Raises
// the limit of open files to the process's hard limit. Returns the positional arguments after argv[0]. On any
// error prints "NAME: what is wrong" and exits with 2.
std::vector<std::string> InitProgram(int argc, char** argv, const ProgramInfo& info, OptionTable& options);

// The same for a program without positional arguments: an argument is an error.
void InitWithoutArguments(int argc, char** argv, const ProgramInfo& info, OptionTable& options);

// Prints "NAME: MESSAGE" of an error status on standard error, as one line. Returns the exit code: 2 for
// INVALID_ARGUMENT, NOT_FOUND and UNIMPLEMENTED (the same input fails again), 1 otherwise.
int ExitWith(const ProgramInfo& info, const absl::Status& status);

}  // namespace bfio
