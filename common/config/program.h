// What the start of every bfio program has in common: options, config file, --help, --version.
//
// Purpose: `--config=FILE` (protobuf text or JSON) sets options by their names, flags on the command line
// win; `--some-flag` and `--some_flag` mean the same; a mistake ends the program with one clear line on
// standard error and exit code 2. Threads: call once from main, before threads are started.
#ifndef BFIO_COMMON_CONFIG_PROGRAM_H_
#define BFIO_COMMON_CONFIG_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/config/options.h"

namespace bfio {

struct ProgramInfo {
  // "bfio_router"
  std::string name;
  std::string version;
  // Shown by --help before the flags: what the program does, in a few lines, with examples.
  std::string usage;
};

// Parses the command line and the config file. Handles --help and --version (prints, exits 0). Lets the
// process open as many files as its hard limit allows. Returns the positional arguments after argv[0]. On any
// mistake prints "NAME: what is wrong" and exits 2.
std::vector<std::string> InitProgram(int argc, char** argv, const ProgramInfo& info, OptionTable& options);

// The same for a program that takes no arguments but flags: an argument is a mistake.
void InitWithoutArguments(int argc, char** argv, const ProgramInfo& info, OptionTable& options);

// Prints "NAME: MESSAGE" of a non-OK status on standard error, as one line, and returns the exit code for it:
// 2 for INVALID_ARGUMENT and NOT_FOUND (bad input), 1 otherwise.
int ExitWith(const ProgramInfo& info, const absl::Status& status);

}  // namespace bfio

#endif  // BFIO_COMMON_CONFIG_PROGRAM_H_
