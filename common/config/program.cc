#include "common/config/program.h"

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

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
    absl::StrAppend(&text, "\n\nFlags, with their defaults:\n  --help, --version\n", options.Describe());
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

namespace {

struct Assignment {
  Option* option;
  std::string value;
};

absl::Status UnknownFlag(absl::string_view name, const OptionTable& options) {
  const std::string nearest = NearestOption(name, options);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag --", name,
      nearest.empty() ? " (--help lists them)" : absl::StrCat(" (did you mean --", nearest, "?)")));
}

// Splits the arguments into assignments and positional arguments without setting anything, so that the config
// file can be applied first.
class ArgumentReader {
 public:
  ArgumentReader(absl::Span<const std::string> args, OptionTable& options) : args_(args), options_(options) {}

  absl::Status Read(CommandLine& out, std::vector<Assignment>& assignments) {
    while (next_ < args_.size()) {
      const std::string& arg = args_[next_++];
      if (arg == "--") {
        out.positional.insert(out.positional.end(), args_.begin() + static_cast<ptrdiff_t>(next_),
                              args_.end());
        break;
      }
      if (arg.size() < 2 || arg[0] != '-') {
        out.positional.push_back(arg);
        continue;
      }
      absl::string_view body = arg;
      if (!absl::ConsumePrefix(&body, "--")) body.remove_prefix(1);
      if (body == "help" || body == "h") {
        out.help = true;
      } else if (body == "version") {
        out.version = true;
      } else if (absl::Status status = ReadFlag(body, assignments); !status.ok()) {
        // --help works even if the rest of the line is invalid.
        if (first_error_.ok()) first_error_ = status;
      }
    }
    return out.help || out.version ? absl::OkStatus() : first_error_;
  }

 private:
  absl::Status ReadFlag(absl::string_view body, std::vector<Assignment>& assignments) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(body, absl::MaxSplits('=', 1));
    const bool has_value = body.find('=') != absl::string_view::npos;
    const std::string name = absl::StrReplaceAll(parts.first, {{"-", "_"}});
    Option* option = options_.Find(name);
    if (option == nullptr && !has_value && absl::StartsWith(name, "no")) {
      Option* negated = options_.Find(name.substr(2));
      if (negated != nullptr && negated->type == Option::Type::kBool) {
        assignments.push_back({negated, "false"});
        return absl::OkStatus();
      }
    }
    if (option == nullptr) return UnknownFlag(name, options_);
    if (option->only_in_config)
      return absl::InvalidArgumentError(absl::StrCat(name, " is no flag, but a key of --config"));
    if (has_value) {
      assignments.push_back({option, std::string(parts.second)});
    } else if (option->type == Option::Type::kBool) {
      assignments.push_back({option, "true"});
    } else if (next_ < args_.size()) {
      assignments.push_back({option, args_[next_++]});
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
    }
    return absl::OkStatus();
  }

  const absl::Span<const std::string> args_;
  OptionTable& options_;
  size_t next_ = 0;
  absl::Status first_error_;
};

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const std::string> args, OptionTable& options) {
  CommandLine out;
  std::vector<Assignment> assignments;
  if (absl::Status status = ArgumentReader(args, options).Read(out, assignments); !status.ok()) return status;
  if (out.help || out.version) return out;
  std::map<Option*, std::string> last;
  for (const Assignment& a : assignments) last[a.option] = a.value;
  const auto config = last.find(options.Find("config"));
  if (config != last.end() && !config->second.empty()) {
    if (absl::Status status = options.ReadConfigFile(config->second); !status.ok()) return status;
  }
  for (const auto& [option, value] : last) {
    if (absl::Status status = options.Set(*option, value); !status.ok()) return status;
  }
  return out;
}

}  // namespace bfio
