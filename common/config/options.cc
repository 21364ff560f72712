#include "common/config/options.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>
#include <tuple>
#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace bfio {
namespace {

constexpr char kConfigHelp[] =
    "configuration file in YAML; its keys are the names of the flags. Flags on the command line take "
    "precedence";

template <typename T>
Option::Type TypeOf() {
  if (std::is_same_v<T, bool>) return Option::Type::kBool;
  return std::is_arithmetic_v<T> ? Option::Type::kNumber : Option::Type::kText;
}

std::string TextOf(bool value) {
  return value ? "true" : "false";
}
std::string TextOf(absl::Duration value) {
  return absl::FormatDuration(value);
}
std::string TextOf(const std::vector<std::string>& value) {
  return absl::StrJoin(value, ",");
}
template <typename T>
std::string TextOf(const T& value) {
  return absl::StrCat(value);
}

// Parses `text`; returns null, or what a valid value is.
const char* Read(const std::string& text, bool& value) {
  return absl::SimpleAtob(text, &value) ? nullptr : "true or false";
}
const char* Read(const std::string& text, double& value) {
  return absl::SimpleAtod(text, &value) ? nullptr : "a number";
}
const char* Read(const std::string& text, absl::Duration& value) {
  return absl::ParseDuration(text, &value) ? nullptr : "a duration, such as 500ms or 2s";
}
const char* Read(const std::string& text, std::string& value) {
  value = text;
  return nullptr;
}
const char* Read(const std::string& text, std::vector<std::string>& value) {
  value = absl::StrSplit(text, ',', absl::SkipEmpty());
  return nullptr;
}
template <typename T>
const char* Read(const std::string& text, T& value) {
  return absl::SimpleAtoi(text, &value) ? nullptr : "a whole number";
}

double InBounds(absl::Duration value) {
  return absl::ToDoubleSeconds(value);
}
template <typename T>
double InBounds(T value) {
  return static_cast<double>(value);
}

template <typename T>
std::string BoundsText(const Within& within) {
  if constexpr (std::is_same_v<T, absl::Duration>) {
    return absl::StrCat(absl::FormatDuration(absl::Seconds(within.least)), "..",
                        absl::FormatDuration(absl::Seconds(within.most)));
  }
  // Prints whole numbers without an exponent: not 1e+06.
  const auto text = [](double bound) {
    return bound == std::nearbyint(bound) && std::abs(bound) < 1e15
               ? absl::StrCat(static_cast<int64_t>(bound))
               : absl::StrCat(bound);
  };
  return absl::StrCat(text(within.least), "..", text(within.most));
}

template <typename T>
Option MakeOption(absl::string_view name, const T& value, std::optional<Within> within,
                  absl::string_view help, std::function<void(T)> store) {
  const std::string bounds = within ? BoundsText<T>(*within) : "";
  const auto set = [within, bounds, store](const std::string& text) -> absl::Status {
    T value{};
    if (const char* what = Read(text, value)) {
      return absl::InvalidArgumentError(absl::StrCat("must be ", what));
    }
    if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, absl::Duration>) {
      const double at = InBounds(value);
      if (within && !(at >= within->least && at <= within->most)) {
        return absl::InvalidArgumentError(absl::StrCat("must be within ", bounds));
      }
    }
    store(std::move(value));
    return absl::OkStatus();
  };
  return {std::string(name), TypeOf<T>(), TextOf(value), bounds, std::string(help), set};
}

// Number of single-character edits between two words; flag names are short, so the full table is fast enough.
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

}  // namespace

OptionTable::OptionTable() {
  Add("config", &config_, kConfigHelp);
}

template <typename T>
void OptionTable::Add(absl::string_view name, T* value, absl::string_view help) {
  Insert(MakeOption<T>(name, *value, std::nullopt, help, [value](T v) { *value = std::move(v); }));
}
template <typename T>
void OptionTable::Add(absl::string_view name, T* value, Within within, absl::string_view help) {
  Insert(MakeOption<T>(name, *value, within, help, [value](T v) { *value = v; }));
}
template void OptionTable::Add(absl::string_view, bool*, absl::string_view);
template void OptionTable::Add(absl::string_view, int32_t*, absl::string_view);
template void OptionTable::Add(absl::string_view, int64_t*, absl::string_view);
template void OptionTable::Add(absl::string_view, uint64_t*, absl::string_view);
template void OptionTable::Add(absl::string_view, uint32_t*, absl::string_view);
template void OptionTable::Add(absl::string_view, double*, absl::string_view);
template void OptionTable::Add(absl::string_view, std::string*, absl::string_view);
template void OptionTable::Add(absl::string_view, std::vector<std::string>*, absl::string_view);
template void OptionTable::Add(absl::string_view, int32_t*, Within, absl::string_view);
template void OptionTable::Add(absl::string_view, int64_t*, Within, absl::string_view);
template void OptionTable::Add(absl::string_view, uint32_t*, Within, absl::string_view);
template void OptionTable::Add(absl::string_view, double*, Within, absl::string_view);
template void OptionTable::Add(absl::string_view, absl::Duration*, Within, absl::string_view);

void OptionTable::AddScaled(absl::string_view name, double default_value, Within within,
                            absl::string_view help, std::function<void(double)> store) {
  Insert(MakeOption<double>(name, default_value, within, help, std::move(store)));
}

void OptionTable::AddWords(absl::string_view name, const std::vector<std::string>& words,
                           const std::string& default_word, absl::string_view help,
                           std::function<void(size_t)> choose) {
  const std::string all = absl::StrCat(absl::StrJoin(words.begin(), words.end() - 1, ", "), " or ",
                                       words.back().empty() ? "empty" : words.back());
  const auto set = [words, all, choose](const std::string& text) {
    const auto at = std::find(words.begin(), words.end(), text);
    if (at == words.end()) return absl::InvalidArgumentError(absl::StrCat("must be ", all));
    choose(static_cast<size_t>(at - words.begin()));
    return absl::OkStatus();
  };
  Insert({std::string(name), Option::Type::kText, default_word, absl::StrJoin(words, "|"), std::string(help),
          set});
}

void OptionTable::Insert(Option option) {
  std::vector<std::string> names = absl::StrSplit(option.name, absl::MaxSplits('|', 1));
  option.name = names[0];
  option.old_name = names.back();
  assert(Find(option.name) == nullptr && Find(option.old_name) == nullptr);
  options_.push_back(std::move(option));
}

Option* OptionTable::Find(absl::string_view name) {
  const auto at = std::find_if(options_.begin(), options_.end(),
                               [&](const Option& o) { return o.name == name || o.old_name == name; });
  return at == options_.end() ? nullptr : &*at;
}

void OptionTable::OnlyInConfig(const std::vector<absl::string_view>& names) {
  for (const absl::string_view name : names) Find(name)->only_in_config = true;
}

bool OptionTable::given(absl::string_view name) const {
  return std::any_of(options_.begin(), options_.end(),
                     [&](const Option& o) { return o.name == name && o.given; });
}

absl::Status OptionTable::Set(Option& option, const std::string& text, absl::string_view where) {
  if (absl::Status status = option.set(text); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, option.name, "=", OneLine(text), ": ", OneLine(status.message())));
  }
  option.given = true;
  return absl::OkStatus();
}

absl::Status OptionTable::ReadItems(const std::string& text) {
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(item, absl::MaxSplits('=', 1));
    Option* const option = Find(parts.first);
    if (option == nullptr || option->name == "config") {
      const std::string names =
          absl::StrJoin(options_.begin() + 1, options_.end(), ", ",
                        [](std::string* out, const Option& o) { absl::StrAppend(out, o.name, "=.."); });
      return absl::InvalidArgumentError(absl::StrCat("'", item, "' is none of ", names));
    }
    const bool alone = option->type == Option::Type::kBool && item == option->name;
    if (absl::Status status = option->set(alone ? "true" : parts.second); !status.ok())
      return absl::InvalidArgumentError(absl::StrCat(option->name, " ", status.message()));
  }
  return absl::OkStatus();
}

std::string OptionTable::Describe() const {
  constexpr size_t kColumns = 100;
  const std::string indent(6, ' ');
  std::vector<std::tuple<size_t, absl::string_view, const Option*>> sorted;
  for (const Option& option : options_) {
    size_t group = groups_.size();
    while (group > 0 && !groups_[group - 1].second.contains(option.name)) --group;
    sorted.emplace_back(group, option.name, &option);
  }
  std::sort(sorted.begin(), sorted.end());
  std::string out;
  size_t last = 0;
  for (const auto& [group, name, option] : sorted) {
    if (group != last) absl::StrAppend(&out, "\n", groups_[group - 1].first, ":\n");
    last = group;
    absl::StrAppend(&out, option->only_in_config ? "  only in --config: " : "  --", option->name);
    if (option->type == Option::Type::kBool) {
      if (option->default_text == "true") absl::StrAppend(&out, " (on; --no", option->name, " turns it off)");
    } else if (option->type == Option::Type::kText) {
      absl::StrAppend(&out, "=\"", option->default_text, "\"");
    } else {
      absl::StrAppend(&out, "=", option->default_text);
    }
    absl::StrAppend(&out, option->bounds.empty() ? "" : absl::StrCat(" (", option->bounds, ")"), "\n");
    std::string line = indent;
    const std::string old = option->old_name == option->name ? "" : "; older name: --" + option->old_name;
    for (absl::string_view word :
         absl::StrSplit(option->help + old, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
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

std::string NearestOption(absl::string_view name, const OptionTable& options) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const Option& option : options.options()) {
    const std::string& candidate = option.name;
    const size_t distance = absl::StartsWith(candidate, name) ? 1 : EditDistance(name, candidate);
    if (distance < best_distance || (distance == best_distance && !best.empty() && candidate < best)) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace bfio
