// A program's options: one record each gives flag, default (the value of the variable when it is added),
// bounds, help and config key. Threads: fill and read the table before threads are started; the variables
// must outlive reading.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"

namespace bfio {

// Runs of line breaks and other control characters become one space; no leading or trailing space.
inline std::string OneLine(absl::string_view text) {
  std::string out;
  for (char c : text) {
    const bool control = absl::ascii_iscntrl(static_cast<unsigned char>(c));
    if (!control) out.push_back(c);
    if (control && !out.empty() && out.back() != ' ') out.push_back(' ');
  }
  absl::StripAsciiWhitespace(&out);
  return out;
}

// Inclusive bounds of a number, or of a duration in seconds. NaN is never allowed.
struct Within {
  Within(double least_value, double most_value) : least(least_value), most(most_value) {}
  Within(absl::Duration least_value, absl::Duration most_value)
      : least(absl::ToDoubleSeconds(least_value)), most(absl::ToDoubleSeconds(most_value)) {}
  double least;
  double most;
};

class OptionTable;

// Reads the next entry of a list in a config file into `entry`'s options; a value alone is that of the first
// one. False: there is no further entry.
using NextEntry = std::function<absl::StatusOr<bool>(OptionTable& entry)>;

struct Option {
  enum class Type { kBool, kNumber, kText };

  // Written with underscores.
  std::string name;
  Type type = Type::kText;
  std::string default_text;
  // Shown to users, such as "1..4096"; empty: the range of the type.
  std::string bounds;
  std::string help;
  // Parses, checks and stores. The error describes the permitted values, without the option's name.
  std::function<absl::Status(const std::string& text)> set;
  // Stores a list whose entries have keys of their own, which only config files have; reads it to its end.
  // Null: the option has none.
  std::function<absl::Status(const NextEntry& next)> set_list = nullptr;
  // A setting that few need: not a flag, but only a key of config files.
  bool only_in_config = false;
  // Accepted too: OLD where the name is given as "NAME|OLD".
  std::string old_name = "";
  // Whether the command line or config file set it, even to its default.
  bool given = false;
};

class OptionTable {
 public:
  // Contains only --config.
  OptionTable();
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  // T is bool, int32_t, int64_t, uint32_t, uint64_t, double, absl::Duration, std::string, or
  // std::vector<std::string> (separated by commas). REQUIRES: the name is new.
  template <typename T>
  void Add(absl::string_view name, T* value, absl::string_view help);
  // For numbers and durations.
  template <typename T>
  void Add(absl::string_view name, T* value, Within within, absl::string_view help);

  // A number that is stored in another unit or in several variables: `store` gets it after the check of its
  // bounds.
  void AddScaled(absl::string_view name, double default_value, Within within, absl::string_view help,
                 std::function<void(double)> store);

  // One of a few words, each of which has a value.
  template <typename T>
  void AddChoice(absl::string_view name, T* value, const std::vector<std::pair<std::string, T>>& choices,
                 absl::string_view help) {
    std::vector<std::string> words;
    std::string default_word;
    for (const auto& [word, meaning] : choices) {
      words.push_back(word);
      if (meaning == *value) default_word = word;
    }
    AddWords(name, words, default_word, help,
             [value, choices](size_t which) { *value = choices[which].second; });
  }

  // A text with its own syntax: `parse` converts it to absl::StatusOr<T>. If the default is empty, an empty
  // text means T().
  template <typename T, typename Parse>
  void AddParsed(absl::string_view name, T* value, absl::string_view default_text, absl::string_view help,
                 Parse parse) {
    Insert({std::string(name), Option::Type::kText, std::string(default_text), "", std::string(help),
            [value, parse, may_be_empty = default_text.empty()](const std::string& text) -> absl::Status {
              BFIO_ASSIGN_OR_RETURN(*value, text.empty() && may_be_empty ? T() : parse(text));
              return absl::OkStatus();
            }});
  }

  void Insert(Option option);

  // Null when there is no such option.
  Option* Find(absl::string_view name);
  // REQUIRES: the options have been added.
  void OnlyInConfig(const std::vector<absl::string_view>& names);
  // Options that --help shows under a heading of their own, after the others.
  void Group(absl::string_view heading, std::set<std::string> names) {
    groups_.emplace_back(heading, std::move(names));
  }
  // False if there is no such option.
  bool given(absl::string_view name) const;
  const std::vector<Option>& options() const { return options_; }

  // Stores a value and marks the option as given. INVALID_ARGUMENT "WHEREname=text: what it must be", one
  // line.
  absl::Status Set(Option& option, const std::string& text, absl::string_view where = "--");

  // Sets the options of this table from the text of one option of another, "NAME=VALUE,NAME=VALUE"; a NAME
  // alone is true. INVALID_ARGUMENT with the item.
  absl::Status ReadItems(const std::string& text);

  // Reads a config file of at most 1 MiB: YAML (JSON is YAML) whose keys are the options. A list of values is
  // the text of its values, separated by commas. Keys that are unknown or given twice, anchors, aliases and
  // tags are refused. NOT_FOUND, or INVALID_ARGUMENT "PATH:LINE: what is wrong", one line.
  absl::Status ReadConfigFile(const std::string& path);
  // The same for a file's text; `source` is its name in messages.
  absl::Status ReadConfig(const std::string& text, const std::string& source);

  // The text of --help: options by heading and name with default, bounds and help, wrapped to 100 columns.
  std::string Describe() const;

 private:
  void AddWords(absl::string_view name, const std::vector<std::string>& words,
                const std::string& default_word, absl::string_view help, std::function<void(size_t)> choose);

  std::string config_;
  std::vector<Option> options_;
  std::vector<std::pair<std::string, std::set<std::string>>> groups_;
};

// The option that `name` begins, or from which it differs by a few characters; empty: none.
std::string NearestOption(absl::string_view name, const OptionTable& options);

}  // namespace bfio
