// The command line and the config file, without ending the process: what InitProgram is made of and tests
// drive.
//
// Purpose: sets absl flags from `--config=FILE` and from arguments, with errors as values. absl's own parser
// is not used because it ends the program by itself, with several lines and exit code 1. Threads: writes
// global flags; call before threads are started.
#ifndef BFIO_COMMON_CONFIG_COMMAND_LINE_H_
#define BFIO_COMMON_CONFIG_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/message.h"

namespace bfio {

struct CommandLine {
  bool help = false;
  bool version = false;
  std::vector<std::string> positional;
};

// Reads `args` (without the program's name): `--name=value`, `--name value`, `--bool`, `--nobool`; `-` and
// `_` in names are the same, as are one and two leading dashes; `--` ends the flags. Applies the config file
// first, then the flags. With --help or --version nothing else is looked at. INVALID_ARGUMENT or NOT_FOUND
// with a one-line message otherwise.
absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const std::string> args,
                                             const google::protobuf::Message& config_prototype);

// Sets the flags named by the set fields of `config`. `source` is used in messages. INTERNAL for a field
// without a flag, INVALID_ARGUMENT for a value that the flag does not take.
absl::Status ApplyConfig(const google::protobuf::Message& config, absl::string_view source);

// Reads a config file into `config`; the first character that is not space tells JSON ('{') from protobuf
// text. NOT_FOUND when it cannot be read; INVALID_ARGUMENT, with line or key, when it does not parse.
absl::Status LoadConfig(const std::string& path, google::protobuf::Message& config);
absl::Status ParseConfig(const std::string& text, absl::string_view source,
                         google::protobuf::Message& config);

// True when the last ParseCommandLine found the flag on the command line or in the config file, even with the
// value that is its default.
bool FlagWasGiven(absl::string_view name);

// "--name (what it is) default: value" for every flag of the program, wrapped to 100 columns.
std::string DescribeFlags();

}  // namespace bfio

#endif  // BFIO_COMMON_CONFIG_COMMAND_LINE_H_
