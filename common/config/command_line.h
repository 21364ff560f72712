// Parses the command line without exiting; used by InitProgram and by tests. Sets a program's options from
// `--config=FILE` and from arguments, with errors as values. Threads: call before threads are started.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/config/options.h"

namespace bfio {

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

}  // namespace bfio
