#include "research/chains/absl_flags.h"

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"

namespace bfio {
namespace {

Option::Type TypeOf(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<bool>()) return Option::Type::kBool;
  if (flag.IsOfType<double>()) return Option::Type::kNumber;
  if (flag.IsOfType<uint32_t>() || flag.IsOfType<uint64_t>()) return Option::Type::kUnsigned;
  return flag.IsOfType<int32_t>() || flag.IsOfType<int64_t>() ? Option::Type::kSigned : Option::Type::kText;
}

OptionTable& Flags() {
  static OptionTable* const table = [] {
    auto* flags = new OptionTable;
    for (const auto& [name, flag] : absl::GetAllFlags()) {
      flags->Insert({std::string(name), TypeOf(*flag), flag->DefaultValue(), "", flag->Help(),
                     [flag = flag](const std::string& text) {
                       std::string error;
                       if (flag->ParseFrom(text, &error)) return absl::OkStatus();
                       // The error has two lines: "Illegal value '3x' specified for flag 'workers'", and a
                       // reason.
                       const size_t newline = error.find('\n');
                       return absl::InvalidArgumentError(
                           newline == std::string::npos ? "invalid value" : error.substr(newline + 1));
                     }});
    }
    return flags;
  }();
  return *table;
}

}  // namespace

std::vector<std::string> InitProgram(int argc, char** argv, const ProgramInfo& info) {
  return InitProgram(argc, argv, info, Flags());
}

}  // namespace bfio
