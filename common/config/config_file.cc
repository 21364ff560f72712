// Reading of config files: protobuf text or JSON into a message, with errors that name file, line and key.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/config/command_line.h"
#include "common/config/one_line.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"

namespace bfio {
namespace {

// Keeps the first error; protobuf counts lines from 0.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(absl::string_view source) : source_(source) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(source_, ":", line + 1, ": ", OneLine(message));
  }

  const std::string& text() const { return text_; }

 private:
  const std::string source_;
  std::string text_;
};

// protobuf's JSON parser says "(key): Cannot find field." without a line; the key's first place in the text
// gives it.
std::string JsonError(const std::string& text, absl::string_view source, const std::string& message) {
  const size_t open = message.find('(');
  const size_t close = open == std::string::npos ? open : message.find(')', open);
  if (close == std::string::npos) return absl::StrCat(source, ": ", OneLine(message));
  const std::string key = message.substr(open + 1, close - open - 1);
  const size_t at = text.find(absl::StrCat("\"", key, "\""));
  std::string where(source);
  if (!key.empty() && at != std::string::npos) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
    absl::StrAppend(&where, ":", line);
  }
  return absl::StrCat(where, ": ", OneLine(message));
}

}  // namespace

absl::Status ParseConfig(const std::string& text, absl::string_view source,
                         google::protobuf::Message& config) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') {
    const auto status = google::protobuf::util::JsonStringToMessage(text, &config);
    if (status.ok()) return absl::OkStatus();
    return absl::InvalidArgumentError(JsonError(text, source, std::string(status.message())));
  }
  FirstError error(source);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (parser.ParseFromString(text, &config)) return absl::OkStatus();
  return absl::InvalidArgumentError(error.text().empty() ? absl::StrCat(source, ": not a config file")
                                                         : error.text());
}

absl::Status LoadConfig(const std::string& path, google::protobuf::Message& config) {
  std::ifstream in(path);
  std::ostringstream text;
  // A directory opens but does not read; an empty file sets failbit on the empty copy and is a valid, empty
  // config.
  if (!in || (in.peek() == EOF && in.bad())) {
    return absl::NotFoundError(absl::StrCat("cannot read config file ", path));
  }
  text << in.rdbuf();
  return ParseConfig(text.str(), path, config);
}

}  // namespace bfio
