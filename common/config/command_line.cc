#include "common/config/command_line.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/config/one_line.h"

ABSL_FLAG(
    std::string, config, "",
    "configuration file, protobuf text or JSON; its fields have the names of the flags, and a flag on the "
    "command line wins");

namespace bfio {
namespace {

struct Assignment {
  absl::CommandLineFlag* flag;
  std::string value;
};

// Number of single-character edits between two words; flag names are short, so the plain table will do.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row[b.size()];
}

absl::Status UnknownFlag(absl::string_view name) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const auto& [candidate, flag] : absl::GetAllFlags()) {
    const size_t distance = absl::StartsWith(candidate, name) ? 1 : EditDistance(name, candidate);
    if (distance < best_distance || (distance == best_distance && !best.empty() && candidate < best)) {
      best_distance = distance;
      best = std::string(candidate);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag --", name,
                   best.empty() ? " (--help lists them)" : absl::StrCat(" (did you mean --", best, "?)")));
}

// Names of the flags set since ParseCommandLine began.
std::set<std::string, std::less<>>& GivenFlags() {
  static auto* const given = new std::set<std::string, std::less<>>;
  return *given;
}

absl::Status SetFlag(absl::CommandLineFlag& flag, const std::string& value, absl::string_view where) {
  std::string error;
  if (flag.ParseFrom(value, &error)) {
    GivenFlags().emplace(flag.Name());
    return absl::OkStatus();
  }
  // absl's text is "Illegal value '3x' specified for flag 'workers'" and a reason on the next line, if there
  // is one.
  const size_t newline = error.find('\n');
  const std::string reason = newline == std::string::npos ? "" : OneLine(error.substr(newline + 1));
  return absl::InvalidArgumentError(absl::StrCat(where, "bad value '", OneLine(value), "' for --",
                                                 flag.Name(),
                                                 reason.empty() ? "" : absl::StrCat(": ", reason)));
}

// Splits the arguments into assignments and the rest without setting anything, so that the config file can go
// first.
class ArgumentReader {
 public:
  explicit ArgumentReader(absl::Span<const std::string> args) : args_(args) {}

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
        // Somebody who asks for help gets it, whatever else is on the line.
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
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr && !has_value && absl::StartsWith(name, "no")) {
      absl::CommandLineFlag* negated = absl::FindCommandLineFlag(name.substr(2));
      if (negated != nullptr && negated->IsOfType<bool>()) {
        assignments.push_back({negated, "false"});
        return absl::OkStatus();
      }
    }
    if (flag == nullptr) return UnknownFlag(name);
    if (has_value) {
      assignments.push_back({flag, std::string(parts.second)});
    } else if (flag->IsOfType<bool>()) {
      assignments.push_back({flag, "true"});
    } else if (next_ < args_.size()) {
      assignments.push_back({flag, args_[next_++]});
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
    }
    return absl::OkStatus();
  }

  const absl::Span<const std::string> args_;
  size_t next_ = 0;
  absl::Status first_error_;
};

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const std::string> args,
                                             const google::protobuf::Message& config_prototype) {
  GivenFlags().clear();
  CommandLine out;
  std::vector<Assignment> assignments;
  if (absl::Status status = ArgumentReader(args).Read(out, assignments); !status.ok()) return status;
  if (out.help || out.version) return out;
  std::string config_path = absl::GetFlag(FLAGS_config);
  for (const Assignment& a : assignments) {
    if (a.flag->Name() == "config") config_path = a.value;
  }
  if (!config_path.empty()) {
    std::unique_ptr<google::protobuf::Message> config(config_prototype.New());
    if (absl::Status status = LoadConfig(config_path, *config); !status.ok()) return status;
    if (absl::Status status = ApplyConfig(*config, config_path); !status.ok()) return status;
  }
  for (const Assignment& a : assignments) {
    if (absl::Status status = SetFlag(*a.flag, a.value, ""); !status.ok()) return status;
  }
  return out;
}

absl::Status ApplyConfig(const google::protobuf::Message& config, absl::string_view source) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& get = *config.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  get.ListFields(config, &fields);
  for (const FieldDescriptor* field : fields) {
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(field->name());
    if (flag == nullptr || field->is_repeated()) {
      return absl::InternalError(
          absl::StrCat(source, ": config field ", field->name(), " has no flag of its name"));
    }
    std::string value;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        value = get.GetString(config, field);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        value = get.GetBool(config, field) ? "true" : "false";
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        value = absl::StrCat(get.GetInt32(config, field));
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        value = absl::StrCat(get.GetUInt32(config, field));
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        value = absl::StrCat(get.GetInt64(config, field));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        value = absl::StrCat(get.GetUInt64(config, field));
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        value = ExactDecimal(get.GetDouble(config, field));
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        value = ExactDecimal(get.GetFloat(config, field));
        break;
      default:
        return absl::InternalError(
            absl::StrCat(source, ": config field ", field->name(), " has no flag type"));
    }
    absl::Status status = SetFlag(*flag, value, absl::StrCat(source, ": "));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

bool FlagWasGiven(absl::string_view name) {
  return GivenFlags().find(name) != GivenFlags().end();
}

std::string DescribeFlags() {
  constexpr size_t kColumns = 100;
  const std::string indent(6, ' ');
  std::map<std::string, absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) flags.emplace(std::string(name), flag);
  std::string out;
  for (const auto& [name, flag] : flags) {
    const bool is_bool = flag->IsOfType<bool>();
    const bool quoted = flag->IsOfType<std::string>();
    const std::string value = flag->DefaultValue();
    absl::StrAppend(&out, "  --", name,
                    is_bool ? (value == "true" ? " (on; --no" + name + " turns it off)" : "") : "=",
                    is_bool  ? ""
                    : quoted ? absl::StrCat("\"", value, "\"")
                             : value,
                    "\n");
    std::string line = indent;
    const std::string help = flag->Help();
    for (absl::string_view word : absl::StrSplit(help, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
      if (line.size() + 1 + word.size() > kColumns) {
        absl::StrAppend(&out, line, "\n");
        line = indent;
      }
      absl::StrAppend(&line, line.size() > indent.size() ? " " : "", word);
    }
    if (line.size() > indent.size()) absl::StrAppend(&out, line, "\n");
  }
  return out;
}

}  // namespace bfio
