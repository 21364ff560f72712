// Reading of config files: protobuf text or JSON into a message, with errors that name file, line and key.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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

// protobuf's JSON parser says "key: Cannot find field." or "(key): invalid value ..." without a line; the
// key's first place in the text gives it.
std::string JsonError(const std::string& text, absl::string_view source, const std::string& message) {
  const auto is_key = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  const auto begin = message.begin() + (absl::StartsWith(message, "(") ? 1 : 0);
  const std::string key(begin, std::find_if_not(begin, message.end(), is_key));
  const size_t at = key.empty() ? std::string::npos : text.find(absl::StrCat("\"", key, "\""));
  if (at == std::string::npos) return absl::StrCat(source, ": ", OneLine(message));
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
  return absl::StrCat(source, ":", line, ": ", OneLine(message));
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
