#include "common/config/program.h"

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/command_line.h"
#include "common/config/options.h"

namespace bfio {

namespace {

// Every connection uses a file descriptor. The soft limit, often 1,024, exists for programs that use
// select(), which bfio's do not; with it, a router with that many streams could not answer its probes.
void RaiseFileLimit() {
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

std::vector<std::string> InitProgram(int argc, char** argv, const ProgramInfo& info, OptionTable& options) {
  const std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  absl::StatusOr<CommandLine> line = ParseCommandLine(args, options);
  if (!line.ok()) {
    ExitWith(info, line.status());
    std::exit(2);
  }
  if (line->help) {
    std::string text = info.usage;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    absl::StrAppend(&text, "\n\nFlags, with their defaults:\n", options.Describe(), "  --help, --version\n");
    std::fputs(text.c_str(), stdout);
    std::exit(0);
  }
  if (line->version) {
    std::printf("%s %s\n", info.name.c_str(), info.version.c_str());
    std::exit(0);
  }
  RaiseFileLimit();
  return std::move(line->positional);
}

void InitWithoutArguments(int argc, char** argv, const ProgramInfo& info, OptionTable& options) {
  const std::vector<std::string> rest = InitProgram(argc, argv, info, options);
  if (rest.empty()) return;
  std::exit(ExitWith(info, absl::InvalidArgumentError(absl::StrCat("unexpected argument '", rest[0], "'"))));
}

int ExitWith(const ProgramInfo& info, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", info.name.c_str(), OneLine(status.message()).c_str());
  const bool same_again =
      absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsUnimplemented(status);
  return same_again ? 2 : 1;
}

}  // namespace bfio
