// A program's options, one record each: flag, default, bounds, help and config field come from it.
//
// Purpose: a program says once what each option is, such as
//
//   table.Add("max_waiting", &options.max_waiting, Within(1, 1'000'000), "bound of the pool in requests");
//
// and the command line (command_line.h), the config file and --help follow. What the variable holds when it
// is added is the default. Threads: fill and read before threads are started; the variables must outlive
// reading.
#ifndef BFIO_COMMON_CONFIG_OPTIONS_H_
#define BFIO_COMMON_CONFIG_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio {

// Least and most of a number, or of a duration (in seconds). Both are allowed, NaN never is.
struct Within {
  Within(double least_value, double most_value) : least(least_value), most(most_value) {}
  Within(absl::Duration least_value, absl::Duration most_value)
      : least(absl::ToDoubleSeconds(least_value)), most(absl::ToDoubleSeconds(most_value)) {}
  double least;
  double most;
};

struct Option {
  // What a config file gives: bare words and numbers, or quoted text (durations and lists too).
  enum class Type { kBool, kSigned, kUnsigned, kNumber, kText };

  // With underscores.
  std::string name;
  Type type = Type::kText;
  std::string default_text;
  // For people: "1..4096"; empty: whatever the type can hold.
  std::string bounds;
  std::string help;
  // Parses, checks and stores. The error says what the value must be and does not name the option.
  std::function<absl::Status(const std::string& text)> set;
  // By command line or config file, even with the default's value.
  bool given = false;
};

class OptionTable {
 public:
  // With --config alone.
  OptionTable();
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  // T: bool, int32_t, int64_t, uint32_t, uint64_t, double, absl::Duration, std::string, or
  // std::vector<std::string> (separated by commas). Names must be new.
  template <typename T>
  void Add(absl::string_view name, T* value, absl::string_view help);
  // Numbers and durations.
  template <typename T>
  void Add(absl::string_view name, T* value, Within within, absl::string_view help);

  // A number that is kept in another unit, or in several places: `store` gets it within bounds.
  void AddScaled(absl::string_view name, double default_value, Within within, absl::string_view help,
                 std::function<void(double)> store);

  // One of a few words, each of which stands for a value.
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

  // A text with a syntax of its own: `parse` makes an absl::StatusOr<T> of it. Where the default is empty,
  // an empty text means T().
  template <typename T, typename Parse>
  void AddParsed(absl::string_view name, T* value, absl::string_view default_text, absl::string_view help,
                 Parse parse) {
    Insert({std::string(name), Option::Type::kText, std::string(default_text), "", std::string(help),
            [value, parse, may_be_empty = default_text.empty()](const std::string& text) -> absl::Status {
              absl::StatusOr<T> parsed = text.empty() && may_be_empty ? T() : parse(text);
              if (!parsed.ok()) return parsed.status();
              *value = *std::move(parsed);
              return absl::OkStatus();
            }});
  }

  void Insert(Option option);

  // Null when there is none.
  Option* Find(absl::string_view name);
  // False for an option that there is not.
  bool given(absl::string_view name) const;
  const std::vector<Option>& options() const { return options_; }
  // The file of --config; empty: none.
  const std::string& config() const { return config_; }

  // Stores and marks as given. INVALID_ARGUMENT "WHERE--name=text: what it must be", one line.
  absl::Status Set(Option& option, const std::string& text, absl::string_view where = "");

  // Reads a config file's text: protobuf text or, when its first character that is not space is '{', JSON;
  // its fields are the options. INVALID_ARGUMENT, with `source` and line or key, when it does not parse.
  absl::Status ReadConfig(const std::string& text, const std::string& source);

  // What --help prints: options by name with default, bounds and help, wrapped to 100 columns.
  std::string Describe() const;

 private:
  void AddWords(absl::string_view name, const std::vector<std::string>& words,
                const std::string& default_word, absl::string_view help, std::function<void(size_t)> choose);

  std::string config_;
  std::vector<Option> options_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_CONFIG_OPTIONS_H_
