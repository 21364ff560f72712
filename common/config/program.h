// The common start of every bfio program: options, config file, --help, --version. Threads: call once from
// main, before threads are started.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/config/options.h"

namespace bfio {

// What ParseCommandLine reads besides options.
struct CommandLine {
  bool help = false;
  bool version = false;
  std::vector<std::string> positional;
};

// Reads `args` (without the program's name): `--name=value`, `--name value`, `--bool`, `--nobool`. `-` and
// `_` in names are equivalent, and so are one and two leading dashes; `--` ends the flags. If a flag is given
// twice, the last value counts. Applies the config file first, then the flags. With --help or --version
// nothing else is read. INVALID_ARGUMENT or NOT_FOUND with a one-line message otherwise.
absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const std::string> args, OptionTable& options);

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
