// Config files. libyaml gives events instead of a tree, so nothing is nested deeper than an option's list of
// entries, and no alias is expanded.
#include <yaml.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/config/options.h"

namespace bfio {
namespace {

// Far above any configuration.
constexpr size_t kMostFileBytes = size_t{1} << 20;

class ConfigReader {
 public:
  ConfigReader(const std::string& text, absl::string_view source) : text_(text), source_(source) {
    yaml_parser_initialize(&parser_);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~ConfigReader() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  ConfigReader(const ConfigReader&) = delete;
  ConfigReader& operator=(const ConfigReader&) = delete;

  absl::Status Read(OptionTable& table) {
    BFIO_RETURN_IF_ERROR(Next());  // the stream's start
    BFIO_RETURN_IF_ERROR(Next());
    if (event_.type == YAML_STREAM_END_EVENT) return absl::OkStatus();
    BFIO_RETURN_IF_ERROR(Next());
    if (event_.type != YAML_MAPPING_START_EVENT) return Error("must have lines such as 'NAME: VALUE'");
    BFIO_RETURN_IF_ERROR(ReadKeys(table, /*in_list=*/false));
    BFIO_RETURN_IF_ERROR(Next());  // the document's end
    BFIO_RETURN_IF_ERROR(Next());
    return event_.type == YAML_STREAM_END_EVENT ? absl::OkStatus() : Error("must be one YAML document");
  }

 private:
  absl::Status Error(absl::string_view what) {
    error_ = absl::InvalidArgumentError(absl::StrCat(source_, ":", line_, ": ", OneLine(what)));
    return error_;
  }

  absl::Status Next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) == 0) {
      // An error in the text's encoding has no mark.
      const bool encoding = parser_.error == YAML_READER_ERROR;
      const auto before = text_.substr(0, parser_.problem_offset);
      line_ = 1 + (encoding ? std::count(before.begin(), before.end(), '\n') : parser_.problem_mark.line);
      return Error(absl::StrCat(parser_.context != nullptr ? parser_.context : "not YAML", ": ",
                                parser_.problem != nullptr ? parser_.problem : "no memory"));
    }
    line_ = event_.start_mark.line + 1;
    const bool scalar = event_.type == YAML_SCALAR_EVENT, list = event_.type == YAML_SEQUENCE_START_EVENT;
    const bool keys = event_.type == YAML_MAPPING_START_EVENT;
    if (event_.type == YAML_ALIAS_EVENT || (scalar && event_.data.scalar.anchor != nullptr) ||
        (list && event_.data.sequence_start.anchor != nullptr) ||
        (keys && event_.data.mapping_start.anchor != nullptr)) {
      return Error("anchors (&) and aliases (*) are not supported");
    }
    if ((scalar && event_.data.scalar.tag != nullptr) ||
        (list && event_.data.sequence_start.tag != nullptr) ||
        (keys && event_.data.mapping_start.tag != nullptr)) {
      return Error("tags (!) are not supported");
    }
    return absl::OkStatus();
  }

  std::string Text() const {
    return {reinterpret_cast<const char*>(event_.data.scalar.value), event_.data.scalar.length};
  }

  absl::Status UnknownKey(const std::string& key, const OptionTable& table, bool in_list) {
    if (key == "config") return Error("a config file cannot set config");
    const std::string nearest = NearestOption(key, table);
    if (!nearest.empty() && nearest != "config") {
      return Error(
          absl::StrCat("no ", in_list ? "key" : "flag", " is named ", key, " (did you mean ", nearest, "?)"));
    }
    if (!in_list) return Error(absl::StrCat("no flag is named ", key, " (--help lists them)"));
    const auto name = [](std::string* out, const Option& option) { out->append(option.name); };
    const auto& all = table.options();
    return Error(absl::StrCat("no key is named ", key, "; choose from ",
                              absl::StrJoin(all.begin() + 1, all.end(), ", ", name)));
  }

  // After the start of a mapping, to its end.
  absl::Status ReadKeys(OptionTable& table, bool in_list) {
    std::set<std::string> keys;
    while (true) {
      BFIO_RETURN_IF_ERROR(Next());
      if (event_.type == YAML_MAPPING_END_EVENT) return absl::OkStatus();
      if (event_.type != YAML_SCALAR_EVENT) return Error("a key must be a name");
      const std::string key = Text();
      Option* const option = table.Find(key);
      if (option == nullptr || key == "config") return UnknownKey(key, table, in_list);
      if (!keys.insert(option->name).second) return Error(absl::StrCat(key, " is given twice"));
      BFIO_RETURN_IF_ERROR(Next());
      BFIO_RETURN_IF_ERROR(ReadValue(table, *option));
    }
  }

  absl::Status ReadValue(OptionTable& table, Option& option) {
    if (event_.type == YAML_SCALAR_EVENT) return Set(table, option);
    if (event_.type == YAML_SEQUENCE_START_EVENT && option.set_list != nullptr) return ReadList(option);
    if (event_.type != YAML_SEQUENCE_START_EVENT || option.type != Option::Type::kText)
      return Error(absl::StrCat(option.name, " must be a single value"));
    const size_t line = line_;
    std::vector<std::string> values;
    while (true) {
      BFIO_RETURN_IF_ERROR(Next());
      if (event_.type == YAML_SEQUENCE_END_EVENT) break;
      if (event_.type != YAML_SCALAR_EVENT)
        return Error(absl::StrCat("each entry of ", option.name, " must be a single value"));
      values.push_back(Text());
    }
    line_ = line;
    return Set(table, option, absl::StrJoin(values, ","));
  }

  absl::Status ReadList(Option& option) {
    option.given = true;
    size_t line = line_;
    const auto next = [&](OptionTable& entry) -> absl::StatusOr<bool> {
      BFIO_RETURN_IF_ERROR(Next());
      if (event_.type == YAML_SEQUENCE_END_EVENT) return false;
      line = line_;
      if (event_.type == YAML_MAPPING_START_EVENT) {
        BFIO_RETURN_IF_ERROR(ReadKeys(entry, /*in_list=*/true));
      } else if (event_.type == YAML_SCALAR_EVENT) {
        BFIO_RETURN_IF_ERROR(Set(entry, *entry.Find(entry.options()[1].name)));
      } else {
        return Error(absl::StrCat("an entry of ", option.name, " must have lines such as 'NAME: VALUE'"));
      }
      return true;
    };
    const absl::Status status = option.set_list(next);
    // What is wrong with an entry as a whole has no line yet.
    if (status.ok() || status == error_) return status;
    line_ = line;
    return Error(absl::StrCat(option.name, ": ", status.message()));
  }

  absl::Status Set(OptionTable& table, Option& option) {
    if (event_.data.scalar.length == 0 && event_.data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
      return Error(absl::StrCat(option.name, " has no value; an empty text is ''"));
    return Set(table, option, Text());
  }
  absl::Status Set(OptionTable& table, Option& option, const std::string& text) {
    error_ = table.Set(option, text, absl::StrCat(source_, ":", line_, ": "));
    return error_;
  }

  const absl::string_view text_, source_;
  yaml_parser_t parser_ = {};
  yaml_event_t event_ = {};
  // Of the last event, counted from 1.
  size_t line_ = 1;
  absl::Status error_;
};

}  // namespace

absl::Status OptionTable::ReadConfig(const std::string& text, const std::string& source) {
  return ConfigReader(text, source).Read(*this);
}

absl::Status OptionTable::ReadConfigFile(const std::string& path) {
  BFIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMostFileBytes));
  if (text.size() > kMostFileBytes)
    return absl::InvalidArgumentError(absl::StrCat(path, " is larger than ", kMostFileBytes, " bytes"));
  return ReadConfig(text, path);
}

}  // namespace bfio
